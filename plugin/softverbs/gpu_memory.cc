#include "softverbs/gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "softverbs/config.h"
#include "softverbs/process.h"

namespace verbena::softverbs {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::Driver;

struct PointerFacts {
  cuda::CUcontext context = nullptr;
  unsigned type = 0;
  unsigned is_managed = 0;
  int device = -1;
  unsigned is_legacy = 0;
  cuda::CUdeviceptr range_start = 0;
  size_t range_bytes = 0;
};

// Attributes that do not apply are left zero; unknown pointers give type 0.
bool read_facts(const Driver& driver, uint64_t address, PointerFacts& facts) {
  cuda::CUpointer_attribute which[] = {cuda::CU_POINTER_ATTRIBUTE_CONTEXT,
                                       cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       cuda::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                       cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                       cuda::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                       cuda::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                       cuda::CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* data[] = {&facts.context,   &facts.type,        &facts.is_managed, &facts.device,
                  &facts.is_legacy, &facts.range_start, &facts.range_bytes};
  return driver.cuPointerGetAttributes(std::size(which), which, data, address) == CUDA_SUCCESS;
}

bool is_gpu(const PointerFacts& facts) {
  return facts.type == cuda::CU_MEMORYTYPE_DEVICE && facts.is_managed == 0;
}

// One for each device, for the rest of the process. A graph launch holds the application's context while it
// waits for an earlier replay, which may wait for our copy; a context of our own is not held. It shares the
// GPU by time slices with the application's kernels, so that a small copy, which the driver lets a kernel
// make, waits milliseconds.
cuda::CUcontext find_own_context(const Driver& driver, cuda::CUdevice device) {
  static std::mutex mutex;
  static std::map<cuda::CUdevice, cuda::CUcontext> contexts;
  const std::lock_guard lock(mutex);
  cuda::CUcontext& context = contexts[device];
  if (context != nullptr || driver.cuCtxCreate_v2 == nullptr) return context;
  cuda::CUcontext before = nullptr;
  driver.cuCtxGetCurrent(&before);
  if (driver.cuCtxCreate_v2(&context, 0, device) != CUDA_SUCCESS) context = nullptr;
  driver.cuCtxSetCurrent(before);
  return context;
}

// The context that allocated it; memory of the virtual memory calls belongs to none, and its device's primary
// one is used.
cuda::CUcontext find_context(const Driver& driver, const PointerFacts& facts) {
  if (get_config().own_gpu_context) return find_own_context(driver, facts.device);
  if (facts.context != nullptr) return facts.context;
  cuda::CUcontext context = nullptr;
  return driver.cuDevicePrimaryCtxRetain(&context, facts.device) == CUDA_SUCCESS ? context : nullptr;
}

// Peers take the descriptor out of this process; it stays open until the last registration ends.
int export_descriptor(const Driver& driver, uint64_t base) {
  if (driver.cuMemRetainAllocationHandle == nullptr) return -1;
  cuda::CUmemGenericAllocationHandle handle = 0;
  if (driver.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(base)) != CUDA_SUCCESS) return -1;
  int fd = -1;
  if (driver.cuMemExportToShareableHandle(&fd, handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
      CUDA_SUCCESS)
    fd = -1;
  driver.cuMemRelease(handle);
  return fd;
}

void publish(const Driver& driver, const PointerFacts& facts, bool is_whole, SharedGpu& shared) {
  shared.kind = kNotExported;
  shared.fd = -1;
  shared.base = facts.range_start;
  shared.bytes = facts.range_bytes;
  cuda::CUuuid uuid{};
  driver.cuDeviceGetUuid(&uuid, facts.device);
  memcpy(shared.device, uuid.bytes, sizeof(shared.device));
  cuda::CUipcMemHandle handle{};
  if (!is_whole) {
    // Nobody else can map it.
  } else if (facts.is_legacy != 0 && driver.cuIpcGetMemHandle(&handle, facts.range_start) == CUDA_SUCCESS) {
    memcpy(shared.ipc_handle, handle.reserved, sizeof(shared.ipc_handle));
    shared.kind = kExportedAsIpc;
  } else if (const int fd = export_descriptor(driver, facts.range_start); fd >= 0) {
    shared.fd = fd;
    shared.kind = kExportedAsFd;
  }
  shared.life.fetch_add(1, std::memory_order_release);  // odd: in use
}

}  // namespace

bool GpuMemory::owns(uint64_t address) {
  const Driver* driver = get_config().gpu ? cuda::find_driver() : nullptr;
  PointerFacts facts;
  return driver != nullptr && read_facts(*driver, address, facts) && is_gpu(facts);
}

int GpuMemory::attach(uint64_t address, uint64_t bytes, uint32_t& gpu) {
  const Driver& driver = *cuda::find_driver();
  PointerFacts facts;
  if (!read_facts(driver, address, facts) || !is_gpu(facts)) return EFAULT;
  // What spans several mappings has no handle of its own: it is offered by its address only.
  const bool is_whole =
      address >= facts.range_start && address + bytes <= facts.range_start + facts.range_bytes;
  if (!is_whole) {
    facts.range_start = address;
    facts.range_bytes = bytes;
  }
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < high_water_; ++i) {
    GpuAllocation& known = allocations_[i];
    if (known.users == 0 || known.base != facts.range_start || known.bytes != facts.range_bytes) continue;
    ++known.users;
    gpu = i + 1;
    return 0;
  }
  GpuAllocation allocation{facts.range_start, facts.range_bytes, find_context(driver, facts), 1};
  if (allocation.context == nullptr) return EFAULT;
  if (const int error = add(allocation, gpu); error != 0) return error;
  const cuda::Scope scope(driver, allocation.context);
  SharedGpu& shared = Process::get()->segment().gpu(gpu - 1);
  auto known = std::find(contexts_.begin(), contexts_.end(), allocation.context);
  if (known == contexts_.end()) known = contexts_.insert(known, allocation.context);
  shared.context = static_cast<uint32_t>(known - contexts_.begin());
  publish(driver, facts, is_whole, shared);
  return 0;
}

int GpuMemory::add(const GpuAllocation& allocation, uint32_t& gpu) {
  const auto free_one = std::find_if(allocations_.begin(), allocations_.end(),
                                     [](const GpuAllocation& known) { return known.users == 0; });
  if (free_one == allocations_.end()) return ENOMEM;
  const uint32_t index = static_cast<uint32_t>(free_one - allocations_.begin());
  Segment& segment = Process::get()->segment();
  if (const int error = segment.commit(segment.gpu(index)); error != 0) return error;
  *free_one = allocation;
  high_water_ = std::max(high_water_, index + 1);
  is_any_registered_.store(true, std::memory_order_relaxed);
  gpu = index + 1;
  return 0;
}

void GpuMemory::detach(uint32_t gpu) {
  std::lock_guard lock(mutex_);
  GpuAllocation& allocation = allocations_[gpu - 1];
  if (--allocation.users != 0) return;
  SharedGpu& shared = Process::get()->segment().gpu(gpu - 1);
  shared.life.fetch_add(1, std::memory_order_release);
  if (shared.fd >= 0) close(shared.fd);
  shared.fd = -1;
}

}  // namespace verbena::softverbs
