#include "softverbs/gpu/gpu_import.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {
namespace {

// Returns 0 if the memory cannot be mapped.
uint32_t map_shared(Copier& copier, uint32_t device, PeerProcess& peer, const SharedGpu& shared) {
  uint32_t area = 0;
  std::string why;
  cuda::CUuuid home{};
  memcpy(home.bytes, shared.device, sizeof(home.bytes));
  if (shared.kind == kExportedAsIpc) {
    cuda::CUipcMemHandle handle{};
    memcpy(handle.reserved, shared.ipc_handle, sizeof(handle.reserved));
    return copier.map_ipc(device, home, handle, shared.bytes, area, why) ? area : 0;
  }
  if (shared.kind != kExportedAsFd) return 0;
  std::unique_lock handles(peer.handles_mutex);
  const long fd = peer.is_self ? dup(shared.fd) : syscall(SYS_pidfd_getfd, peer.pidfd, shared.fd, 0);
  handles.unlock();
  if (fd < 0) return 0;
  const bool is_mapped = copier.map_parts(device, home, {{static_cast<int>(fd), shared.bytes}}, area, why);
  close(static_cast<int>(fd));
  return is_mapped ? area : 0;
}

}  // namespace

bool GpuImports::find(Copier& copier, uint32_t device, PeerProcess& peer, uint32_t gpu, uint64_t address,
                      AreaAddress& found) {
  // Read first: a mapping that the dropping thread has found stale must also be found stale here.
  const bool is_dropping = is_dropping_.load();
  const SharedGpu& shared = peer.segment->gpu(gpu - 1);
  const uint32_t life = shared.life.load(std::memory_order_acquire);
  thread_local Latest latest;
  // No lock is needed unless a thread drops mappings. Either this thread sees that, or the other thread sees
  // this use.
  const bool is_latest = latest.imports == this && latest.peer == &peer && latest.gpu == gpu &&
                         latest.device == device && latest.life == life &&
                         !peer.dead.load(std::memory_order_acquire);
  if (!is_latest || is_dropping) {
    std::lock_guard lock(mutex_);
    Mapping& mapping = mappings_[{&peer, gpu, device}];
    if (mapping.life != life) {
      if (mapping.area != 0) copier.release(mapping.area);
      mapping = {life, 0, shared.base};
      mapping.area = map_shared(copier, device, peer, shared);
    }
    if (mapping.area == 0) return false;
    latest = {this, &peer, gpu, life, device, {mapping.area, 0}, mapping.peer_base};
  }
  found = latest.base + (address - latest.peer_base);
  return true;
}

bool GpuImports::find_segment(Copier& copier, PeerProcess& peer, uint64_t offset, uint64_t bytes,
                              uint32_t& area) {
  std::lock_guard lock(mutex_);
  std::string why;
  area = copier::kOwnSegment;
  if (!peer.is_self) {
    const std::lock_guard handles(peer.handles_mutex);
    const auto known = segments_.find(&peer);
    if (known == segments_.end() && !copier.map_segment(peer.segment->fd(), kSegmentBytes, area, why))
      return false;
    area = known == segments_.end() ? area : known->second;
    segments_[&peer] = area;
  }
  // Copies from memory that is not pinned are slow, but correct, so a failure to pin is not an error.
  if (!peer.is_self && pins_.emplace(&peer, offset).second) copier.pin(area, offset, bytes, why);
  return true;
}

bool GpuImports::drop_stale(Copier& copier) {
  std::lock_guard lock(mutex_);
  if (mappings_.empty() && segments_.empty()) return false;
  // A thread that begins a use now waits for the lock in find(). A use that began before is counted.
  is_dropping_.store(true);
  if (users_.load() == 0) {
    std::erase_if(mappings_, [&](const auto& entry) {
      const auto& [peer, gpu, device] = entry.first;
      const bool is_dead = peer->dead.load(std::memory_order_acquire);
      const uint32_t life = peer->segment->gpu(gpu - 1).life.load(std::memory_order_acquire);
      if (!is_dead && life == entry.second.life) return false;
      if (entry.second.area != 0) copier.release(entry.second.area);
      return true;
    });
    std::erase_if(segments_, [&](const auto& entry) {
      const auto& [peer, area] = entry;
      if (!peer->dead.load(std::memory_order_acquire)) return false;
      if (area != copier::kOwnSegment) copier.release(area);
      std::erase_if(pins_, [peer](const auto& pin) { return pin.first == peer; });
      return true;
    });
  }
  is_dropping_.store(false);
  return !mappings_.empty() || !segments_.empty();
}

}  // namespace verbena::softverbs
