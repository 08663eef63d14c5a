#include "softverbs/gpu_import.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace verbena::softverbs {
namespace {

using cuda::Driver;
using cuda::kSuccess;

uint64_t open_ipc(const Driver& driver, const SharedGpu& shared) {
  cuda::IpcHandle handle{};
  memcpy(handle.bytes, shared.ipc_handle, sizeof(handle.bytes));
  cuda::Pointer base = 0;
  return driver.ipc_open_handle(&base, handle, cuda::kIpcLazyPeerAccess) == kSuccess ? base : 0;
}

// Gives a mapped range the right to be used by the current context's device.
bool allow_access(const Driver& driver, cuda::Pointer base, size_t bytes) {
  cuda::Device device = 0;
  if (driver.context_get_device(&device) != kSuccess) return false;
  const cuda::AccessDescription access{{cuda::kLocationDevice, device}, cuda::kReadWrite};
  return driver.set_access(base, bytes, &access, 1) == kSuccess;
}

uint64_t map_handle(const Driver& driver, cuda::Handle handle, size_t bytes) {
  cuda::Pointer base = 0;
  if (driver.address_reserve(&base, bytes, 0, 0, 0) != kSuccess) return 0;
  if (driver.map(base, bytes, 0, handle, 0) == kSuccess) {
    if (allow_access(driver, base, bytes)) return base;
    driver.unmap(base, bytes);
  }
  driver.address_free(base, bytes);
  return 0;
}

uint64_t open_descriptor(const Driver& driver, const Peer& peer, const SharedGpu& shared) {
  if (driver.retain_allocation == nullptr) return 0;
  const long fd = peer.is_self ? dup(shared.fd) : syscall(SYS_pidfd_getfd, peer.pidfd, shared.fd, 0);
  if (fd < 0) return 0;
  cuda::Handle handle = 0;
  const bool is_imported =
      driver.import_handle(&handle, reinterpret_cast<void*>(fd), cuda::kPosixFd) == kSuccess;
  close(static_cast<int>(fd));
  if (!is_imported) return 0;
  const uint64_t base = map_handle(driver, handle, shared.bytes);
  driver.release(handle);  // the mapping keeps the memory
  return base;
}

void unmap(const Driver& driver, cuda::Context context, bool is_ipc, uint64_t base, uint64_t bytes) {
  if (base == 0) return;
  const cuda::Scope scope(driver, context);
  if (is_ipc) {
    driver.ipc_close_handle(base);
  } else {
    driver.unmap(base, bytes);
    driver.address_free(base, bytes);
  }
}

}  // namespace

uint64_t GpuImports::find(const Driver& driver, cuda::Context context, Peer& peer, uint32_t gpu,
                          uint64_t address) {
  const SharedGpu& shared = peer.segment->gpu(gpu - 1);
  const uint32_t life = shared.life.load(std::memory_order_acquire);
  std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_[{&peer, gpu, context}];
  if (mapping.life != life) {
    unmap(driver, context, mapping.is_ipc, mapping.base, mapping.bytes);
    mapping = {life, 0, shared.base, shared.bytes, shared.kind == kExportedAsIpc};
    if (shared.kind == kExportedAsIpc) mapping.base = open_ipc(driver, shared);
    if (shared.kind == kExportedAsFd) mapping.base = open_descriptor(driver, peer, shared);
  }
  return mapping.base == 0 ? 0 : mapping.base + (address - mapping.peer_base);
}

bool GpuImports::drop_stale() {
  const cuda::Use use;
  if (!use) return false;
  std::lock_guard lock(mutex_);
  // Who begins now waits for the lock in find(); who began before is counted.
  if (mappings_.empty() || users_.load() != 0) return !mappings_.empty();
  const Driver& driver = *cuda::find_driver();
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
  return !mappings_.empty();
}

GpuImports& get_gpu_imports() {
  static auto* imports = new GpuImports;
  return *imports;
}

}  // namespace verbena::softverbs
