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

using cuda::Driver;
using cuda::kSuccess;

struct PointerFacts {
  cuda::Context context = nullptr;
  unsigned type = 0;
  unsigned is_managed = 0;
  int device = -1;
  unsigned is_legacy = 0;
  cuda::Pointer range_start = 0;
  size_t range_bytes = 0;
};

// Attributes that do not apply are left zero; unknown pointers give type 0.
bool read_facts(const Driver& driver, uint64_t address, PointerFacts& facts) {
  cuda::PointerAttribute which[] = {cuda::kContextOf,     cuda::kMemoryType,         cuda::kIsManaged,
                                    cuda::kDeviceOrdinal, cuda::kIsLegacyIpcCapable, cuda::kRangeStart,
                                    cuda::kRangeBytes};
  void* data[] = {&facts.context,   &facts.type,        &facts.is_managed, &facts.device,
                  &facts.is_legacy, &facts.range_start, &facts.range_bytes};
  return driver.pointer_attributes(std::size(which), which, data, address) == kSuccess;
}

bool is_gpu(const PointerFacts& facts) {
  return facts.type == cuda::kTypeDevice && facts.is_managed == 0;
}

// One for each device, for the rest of the process. A graph launch holds the application's context while it
// waits for an earlier replay, which may wait for our copy; a context of our own is not held. It shares the
// GPU by time slices with the application's kernels, so that a small copy, which the driver lets a kernel
// make, waits milliseconds.
cuda::Context find_own_context(const Driver& driver, cuda::Device device) {
  static std::mutex mutex;
  static std::map<cuda::Device, cuda::Context> contexts;
  const std::lock_guard lock(mutex);
  cuda::Context& context = contexts[device];
  if (context != nullptr || driver.context_create == nullptr) return context;
  cuda::Context before = nullptr;
  driver.context_get_current(&before);
  if (driver.context_create(&context, 0, device) != kSuccess) context = nullptr;
  driver.context_set_current(before);
  return context;
}

// The context that allocated it; memory of the virtual memory calls belongs to none, and its device's primary
// one is used.
cuda::Context find_context(const Driver& driver, const PointerFacts& facts) {
  if (get_config().own_gpu_context) return find_own_context(driver, facts.device);
  if (facts.context != nullptr) return facts.context;
  cuda::Context context = nullptr;
  return driver.primary_context_retain(&context, facts.device) == kSuccess ? context : nullptr;
}

// Peers take the descriptor out of this process; it stays open until the last registration ends.
int export_descriptor(const Driver& driver, uint64_t base) {
  if (driver.retain_allocation == nullptr) return -1;
  cuda::Handle handle = 0;
  if (driver.retain_allocation(&handle, reinterpret_cast<void*>(base)) != kSuccess) return -1;
  int fd = -1;
  if (driver.export_handle(&fd, handle, cuda::kPosixFd, 0) != kSuccess) fd = -1;
  driver.release(handle);
  return fd;
}

void publish(const Driver& driver, const PointerFacts& facts, bool is_whole, SharedGpu& shared) {
  shared.kind = kNotExported;
  shared.fd = -1;
  shared.base = facts.range_start;
  shared.bytes = facts.range_bytes;
  cuda::Uuid uuid{};
  driver.device_uuid(&uuid, facts.device);
  memcpy(shared.device, uuid.bytes, sizeof(shared.device));
  cuda::IpcHandle handle{};
  if (!is_whole) {
    // Nobody else can map it.
  } else if (facts.is_legacy != 0 && driver.ipc_get_handle(&handle, facts.range_start) == kSuccess) {
    memcpy(shared.ipc_handle, handle.bytes, sizeof(shared.ipc_handle));
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
  publish(driver, facts, is_whole, Process::get()->segment().gpu(gpu - 1));
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
