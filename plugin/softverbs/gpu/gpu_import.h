// GPU memory and segments of peers that this process's copier has mapped.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "softverbs/gpu/copier.h"

namespace verbena::softverbs {

struct PeerProcess;

// Memory of other processes that this process's copier has mapped. A worker maps each GPU allocation once for
// each device of the copier, at its first use. The allocation is unmapped when its owner has ended the
// registration or has died.
class GpuImports {
 public:
  // Finds the area of a device that contains an address of `peer`. Returns false if the memory cannot be
  // mapped. `gpu` is 1 + the index of its SharedGpu. Call begin_use() first.
  bool find(Copier& copier, uint32_t device, PeerProcess& peer, uint32_t gpu, uint64_t address,
            AreaAddress& found);
  // Finds the area of a peer's segment, and pins [offset, offset + bytes).
  bool find_segment(Copier& copier, PeerProcess& peer, uint64_t offset, uint64_t bytes, uint32_t& area);

  // Call these before and after all uses of addresses from find().
  void begin_use() { users_.fetch_add(1); }
  void end_use() { users_.fetch_sub(1); }

  // Unmaps memory that its owner no longer offers, unless copies use it. May block, so call it only when
  // there is no other work. Returns false if nothing is mapped.
  bool drop_stale(Copier& copier);

 private:
  // A thread's latest mapping, because consecutive packets often use the same mapping.
  struct Latest {
    const GpuImports* imports = nullptr;
    PeerProcess* peer = nullptr;
    uint32_t gpu = 0, life = 0, device = 0;
    AreaAddress base;
    uint64_t peer_base = 0;
  };
  struct Mapping {
    uint32_t life = 0;
    uint32_t area = 0;  // 0: could not be mapped
    uint64_t peer_base = 0;
  };
  using Key = std::tuple<PeerProcess*, uint32_t, uint32_t>;  // peer, gpu, device

  std::atomic<uint32_t> users_{0};
  std::atomic<bool> is_dropping_{false};
  std::mutex mutex_;
  std::map<Key, Mapping> mappings_;
  std::map<PeerProcess*, uint32_t> segments_;
  std::set<std::pair<PeerProcess*, uint64_t>> pins_;  // in segments, by offset
};

}  // namespace verbena::softverbs
