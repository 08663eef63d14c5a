#include "softverbs/gpu_import.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace verbena::softverbs {
namespace {

using cuda::CUDA_SUCCESS;
using cuda::Driver;

uint64_t open_ipc(const Driver& driver, const SharedGpu& shared) {
  cuda::CUipcMemHandle handle{};
  memcpy(handle.reserved, shared.ipc_handle, sizeof(handle.reserved));
  cuda::CUdeviceptr base = 0;
  return driver.cuIpcOpenMemHandle_v2(&base, handle, cuda::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS
             ? base
             : 0;
}

// Gives a mapped range the right to be used by the current context's device.
bool allow_access(const Driver& driver, cuda::CUdeviceptr base, size_t bytes) {
  cuda::CUdevice device = 0;
  if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return false;
  const cuda::CUmemAccessDesc access{{cuda::CU_MEM_LOCATION_TYPE_DEVICE, device},
                                     cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver.cuMemSetAccess(base, bytes, &access, 1) == CUDA_SUCCESS;
}

uint64_t map_handle(const Driver& driver, cuda::CUmemGenericAllocationHandle handle, size_t bytes) {
  cuda::CUdeviceptr base = 0;
  if (driver.cuMemAddressReserve(&base, bytes, 0, 0, 0) != CUDA_SUCCESS) return 0;
  if (driver.cuMemMap(base, bytes, 0, handle, 0) == CUDA_SUCCESS) {
    if (allow_access(driver, base, bytes)) return base;
    driver.cuMemUnmap(base, bytes);
  }
  driver.cuMemAddressFree(base, bytes);
  return 0;
}

uint64_t open_descriptor(const Driver& driver, const Peer& peer, const SharedGpu& shared) {
  if (driver.cuMemRetainAllocationHandle == nullptr) return 0;
  const long fd = peer.is_self ? dup(shared.fd) : syscall(SYS_pidfd_getfd, peer.pidfd, shared.fd, 0);
  if (fd < 0) return 0;
  cuda::CUmemGenericAllocationHandle handle = 0;
  const bool is_imported =
      driver.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(fd),
                                            cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS;
  close(static_cast<int>(fd));
  if (!is_imported) return 0;
  const uint64_t base = map_handle(driver, handle, shared.bytes);
  driver.cuMemRelease(handle);  // the mapping keeps the memory
  return base;
}

void unmap(const Driver& driver, cuda::CUcontext context, bool is_ipc, uint64_t base, uint64_t bytes) {
  if (base == 0) return;
  const cuda::Scope scope(driver, context);
  if (is_ipc) {
    driver.cuIpcCloseMemHandle(base);
  } else {
    driver.cuMemUnmap(base, bytes);
    driver.cuMemAddressFree(base, bytes);
  }
}

}  // namespace

uint64_t GpuImports::find(const Driver& driver, cuda::CUcontext context, Peer& peer, uint32_t gpu,
                          uint64_t address) {
  // First: what was found stale by who has dropped before is found stale here, too.
  const bool is_dropping = is_dropping_.load();
  const SharedGpu& shared = peer.segment->gpu(gpu - 1);
  const uint32_t life = shared.life.load(std::memory_order_acquire);
  thread_local Latest latest;
  // Without the lock, unless somebody drops mappings: either that is seen here, or this use there.
  const bool is_latest = latest.peer == &peer && latest.gpu == gpu && latest.context == context &&
                         latest.life == life && !peer.dead.load(std::memory_order_acquire);
  if (is_latest && !is_dropping) return latest.base + (address - latest.peer_base);
  std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_[{&peer, gpu, context}];
  if (mapping.life != life) {
    unmap(driver, context, mapping.is_ipc, mapping.base, mapping.bytes);
    mapping = {life, 0, shared.base, shared.bytes, shared.kind == kExportedAsIpc};
    if (shared.kind == kExportedAsIpc) mapping.base = open_ipc(driver, shared);
    if (shared.kind == kExportedAsFd) mapping.base = open_descriptor(driver, peer, shared);
  }
  if (mapping.base == 0) return 0;
  latest = {&peer, gpu, life, context, mapping.base, mapping.peer_base};
  return mapping.base + (address - mapping.peer_base);
}

bool GpuImports::drop_stale() {
  const cuda::Use use;
  if (!use) return false;
  std::lock_guard lock(mutex_);
  if (mappings_.empty()) return false;
  // Who begins now waits for the lock in find(); who began before is counted.
  is_dropping_.store(true);
  if (users_.load() == 0) drop_stale(*cuda::find_driver());
  is_dropping_.store(false);
  return !mappings_.empty();
}

void GpuImports::drop_stale(const Driver& driver) {
  for (auto entry = mappings_.begin(); entry != mappings_.end();) {
    const auto& [peer, gpu, context] = entry->first;
    const Mapping& mapping = entry->second;
    const bool is_dead = peer->dead.load(std::memory_order_acquire);
    if (!is_dead && peer->segment->gpu(gpu - 1).life.load(std::memory_order_acquire) == mapping.life) {
      ++entry;
      continue;
    }
    unmap(driver, context, mapping.is_ipc, mapping.base, mapping.bytes);
    entry = mappings_.erase(entry);
  }
}

GpuImports& get_gpu_imports() {
  static auto* imports = new GpuImports;
  return *imports;
}

}  // namespace verbena::softverbs
