#include "softverbs/gpu/gpu_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "softverbs/engine/objects.h"
#include "softverbs/engine/process.h"
#include "softverbs/gpu/call_watch.h"
#include "softverbs/gpu/cuda_driver.h"
#include "softverbs/shared/config.h"

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
  const WatchedCall call("cuPointerGetAttributes");
  return driver.cuPointerGetAttributes(std::size(which), which, data, address) == CUDA_SUCCESS;
}

bool is_gpu(const PointerFacts& facts) {
  return facts.type == cuda::CU_MEMORYTYPE_DEVICE && facts.is_managed == 0;
}

// If cuMemMap() mapped the memory, its range is the whole reservation, which may contain many allocations.
// This range is used if the driver cannot distinguish the allocations, for example without a context.
bool find_allocation(const Driver& driver, uint64_t address, PointerFacts& facts) {
  if (facts.is_legacy == 0 && driver.cuMemRetainAllocationHandle != nullptr) {
    const WatchedCall call("cuMemGetAddressRange");
    const cuda::Scope scope(driver, facts.context);
    cuda::CUdeviceptr start = 0;
    size_t bytes = 0;
    if (driver.cuMemGetAddressRange_v2(&start, &bytes, address) == CUDA_SUCCESS) {
      facts.range_start = start;
      facts.range_bytes = bytes;
    }
  }
  return facts.range_bytes != 0;
}

// Returns the allocations that contain [address, address + bytes), all of one GPU. PyTorch's expandable
// segments and windows of symmetric memory consist of many allocations. Returns an empty list if some bytes
// are in no allocation.
std::vector<PointerFacts> list_allocations(const Driver& driver, uint64_t address, uint64_t bytes) {
  std::vector<PointerFacts> found;
  for (uint64_t at = address; at < address + bytes;
       at = found.back().range_start + found.back().range_bytes) {
    PointerFacts facts;
    const bool is_known = read_facts(driver, at, facts) && is_gpu(facts) &&
                          find_allocation(driver, at, facts) &&
                          (found.empty() || (facts.device == found[0].device && facts.range_start == at));
    if (!is_known) return {};
    found.push_back(facts);
  }
  return found;
}

// Returns -1 if no other process can map the memory.
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

constexpr char kCannotMap[] =
    "the copier process cannot map this memory, because the memory was allocated by cudaMallocAsync, or by "
    "cuMemCreate without a shareable handle. Allocate the memory with cudaMalloc, with ncclMemAlloc, or with "
    "cuMemCreate and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";

// How another process maps the memory: by an IPC handle, or by a descriptor for each allocation.
class Export {
 public:
  Export() = default;
  ~Export() {
    for (const Copier::Part& part : parts_) close(part.fd);
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;

  bool make(const Driver& driver, const std::vector<PointerFacts>& allocations);
  bool map(Copier& copier, uint32_t device, const cuda::CUuuid& home, uint64_t bytes, uint32_t& area,
           std::string& why) const {
    return is_ipc_ ? copier.map_ipc(device, home, handle_, bytes, area, why)
                   : copier.map_parts(device, home, parts_, area, why);
  }
  // Offers the memory to peers, which take a descriptor from this process; it stays open until the last
  // registration ends. Memory of several allocations is not offered: its owner copies it for peers.
  void publish(SharedGpu& shared);

 private:
  bool is_ipc_ = false;
  cuda::CUipcMemHandle handle_{};
  std::vector<Copier::Part> parts_;
};

bool Export::make(const Driver& driver, const std::vector<PointerFacts>& allocations) {
  const PointerFacts& first = allocations[0];
  const WatchedCall call("exporting GPU memory (cuIpcGetMemHandle, cuMemExportToShareableHandle)");
  const cuda::Scope scope(driver, first.context);
  if (allocations.size() == 1 && first.is_legacy != 0) {
    is_ipc_ = driver.cuIpcGetMemHandle(&handle_, first.range_start) == CUDA_SUCCESS;
    return is_ipc_;
  }
  for (const PointerFacts& facts : allocations) {
    const int fd = export_descriptor(driver, facts.range_start);
    if (fd < 0) return false;
    parts_.push_back({fd, facts.range_bytes});
  }
  return true;
}

void Export::publish(SharedGpu& shared) {
  shared.kind = is_ipc_ ? kExportedAsIpc : parts_.size() == 1 ? kExportedAsFd : kNotExported;
  shared.fd = -1;
  memcpy(shared.ipc_handle, handle_.reserved, sizeof(shared.ipc_handle));
  if (shared.kind != kExportedAsFd) return;
  shared.fd = parts_[0].fd;
  parts_.clear();
}

// Memory of the GPU whose context is current, to test whether another process can map it: with a descriptor,
// as NCCL allocates its buffers, or by an IPC handle. Returns false if the driver supports neither.
class Trial {
 public:
  explicit Trial(const Driver& driver) : driver_(driver) {}
  ~Trial() {
    if (handle_ != 0) driver_.cuMemRelease(handle_);
    if (address_ != 0) driver_.cuMemFree_v2(address_);
    if (fd_ >= 0) close(fd_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool map_descriptor(cuda::CUdevice device, Copier& copier, uint32_t index, const cuda::CUuuid& home,
                      std::string& why);
  bool map_ipc(Copier& copier, uint32_t index, const cuda::CUuuid& home, std::string& why);

 private:
  static constexpr uint64_t kBytes = 2 << 20;

  const Driver& driver_;
  cuda::CUmemGenericAllocationHandle handle_ = 0;
  cuda::CUdeviceptr address_ = 0;
  int fd_ = -1;
};

bool Trial::map_descriptor(cuda::CUdevice device, Copier& copier, uint32_t index, const cuda::CUuuid& home,
                           std::string& why) {
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (driver_.cuMemRetainAllocationHandle == nullptr ||
      driver_.cuMemCreate(&handle_, kBytes, &properties, 0) != CUDA_SUCCESS ||
      driver_.cuMemExportToShareableHandle(&fd_, handle_, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           0) != CUDA_SUCCESS) {
    why = "the driver exports no file descriptors of GPU memory";
    return false;
  }
  uint32_t area = 0;
  if (!copier.map_parts(index, home, {{fd_, kBytes}}, area, why)) return false;
  copier.release(area);
  return true;
}

bool Trial::map_ipc(Copier& copier, uint32_t index, const cuda::CUuuid& home, std::string& why) {
  cuda::CUipcMemHandle handle{};
  if (driver_.cuMemAlloc_v2(&address_, kBytes) != CUDA_SUCCESS ||
      driver_.cuIpcGetMemHandle(&handle, address_) != CUDA_SUCCESS) {
    why += ", and no IPC handles";
    return false;
  }
  uint32_t area = 0;
  std::string refusal;
  const bool is_mapped = copier.map_ipc(index, home, handle, kBytes, area, refusal);
  if (is_mapped) copier.release(area);
  if (!is_mapped) why += "; " + refusal;
  return is_mapped;
}

// Returns an empty text if memory of the current GPU can be registered, otherwise the reason; nothing if no
// GPU is current.
std::optional<std::string> try_gpu(Copier& copier) {
  const Driver* const driver = cuda::find_driver();
  cuda::CUcontext context = nullptr;
  cuda::CUdevice device = 0;
  cuda::CUuuid uuid{};
  if (driver == nullptr || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return {};
  const WatchedCall call("a test of GPU memory");
  const cuda::Scope scope(*driver, nullptr);
  if (driver->cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      driver->cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS)
    return {};
  uint32_t index = 0;
  std::string why;
  if (!copier.open_device(uuid, index, why)) return "the copier process cannot be used: " + why;
  Trial trial(*driver);
  if (trial.map_descriptor(device, copier, index, uuid, why) || trial.map_ipc(copier, index, uuid, why))
    return "";
  return "the copier process cannot map memory of this GPU: " + why;
}

}  // namespace

const char* GpuMemory::explain_refusal() {
  if (!get_config().gpu) return "SOFTVERBS_GPU=0";
  std::lock_guard lock(trial_mutex_);
  if (!trial_) trial_ = try_gpu(Process::get()->copier);
  return trial_ && !trial_->empty() ? trial_->c_str() : nullptr;
}

bool GpuMemory::owns(uint64_t address) {
  const Driver* driver = get_config().gpu ? cuda::find_driver() : nullptr;
  PointerFacts facts;
  return driver != nullptr && read_facts(*driver, address, facts) && is_gpu(facts);
}

// Logs each reason once, because an application may try repeatedly.
int GpuMemory::refuse(const std::string& why) {
  if (refusals_.insert(why).second) warn("GPU memory cannot be registered: %s", why.c_str());
  return EOPNOTSUPP;
}

int GpuMemory::attach(uint64_t address, uint64_t bytes, uint32_t& gpu) {
  const Driver& driver = *cuda::find_driver();
  Process& process = *Process::get();
  const std::vector<PointerFacts> allocations = list_allocations(driver, address, bytes);
  if (allocations.empty()) return EFAULT;
  GpuAllocation allocation{allocations[0].range_start, 0, 1, 0, 0};
  for (const PointerFacts& facts : allocations) allocation.bytes += facts.range_bytes;

  std::lock_guard lock(mutex_);
  uint32_t index = kGpuCount;
  for (uint32_t i = 0; i < std::min(high_water_ + 1, kGpuCount); ++i) {
    GpuAllocation& known = allocations_[i];
    if (known.users == 0) index = std::min(index, i);
    if (known.users == 0 || known.base != allocation.base || known.bytes != allocation.bytes) continue;
    ++known.users;
    gpu = i + 1;
    return 0;
  }
  if (index == kGpuCount) return ENOMEM;
  SharedGpu& shared = process.segment().gpu(index);
  if (const int error = process.segment().commit(shared); error != 0) return error;

  cuda::CUuuid uuid{};
  if (driver.cuDeviceGetUuid(&uuid, allocations[0].device) != CUDA_SUCCESS) return EFAULT;
  Export exported;
  std::string why;
  if (!process.copier.open_device(uuid, allocation.device, why))
    return refuse("the copier process cannot be used: " + why);
  if (!exported.make(driver, allocations)) return refuse(kCannotMap);
  if (!exported.map(process.copier, allocation.device, uuid, allocation.bytes, allocation.area, why))
    return refuse("the copier process cannot map the memory: " + why);
  exported.publish(shared);
  shared.device_index = allocation.device;
  shared.base = allocation.base;
  shared.bytes = allocation.bytes;
  memcpy(shared.device, uuid.bytes, sizeof(shared.device));
  allocations_[index] = allocation;
  high_water_ = std::max(high_water_, index + 1);
  is_any_registered_.store(true, std::memory_order_relaxed);
  shared.life.fetch_add(1, std::memory_order_release);  // odd: in use
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
  Process::get()->copier.release(allocation.area);
}

}  // namespace verbena::softverbs

SOFTVERBS_API const char* softverbs_explain_no_gpu() {
  auto* const process = verbena::softverbs::Process::get();
  return process == nullptr ? nullptr : process->gpu_memory.explain_refusal();
}
