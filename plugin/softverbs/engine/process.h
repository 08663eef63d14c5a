// This process, and the peers whose segments it has mapped. Process is the library's only global object.
// Process owns the indices of the tables, each rail's worker and lanes, the connections to other hosts, and
// the faults.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "softverbs/engine/rail_worker.h"
#include "softverbs/faults/rails.h"
#include "softverbs/faults/schedule.h"
#include "softverbs/gpu/copier.h"
#include "softverbs/gpu/gpu_import.h"
#include "softverbs/gpu/gpu_lane.h"
#include "softverbs/gpu/gpu_memory.h"
#include "softverbs/gpu/gpu_staging.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/directory.h"
#include "softverbs/shared/segment.h"

namespace verbena::softverbs {

namespace wire {
class Wire;
}
namespace faults {
class Injector;
}

inline constexpr uint64_t kNearBlockBytes = 64 << 10;  // granularity of allocations in a segment

// A process whose segment is mapped here: a peer, or this process itself. The object exists as long as this
// process.
struct PeerProcess {
  std::unique_ptr<Segment> mapped;  // null for this process itself
  Segment* segment = nullptr;
  uint64_t owner = 0;
  int pid = 0;
  int pidfd = -1;  // -1 if pidfd_open() failed; the monitor then looks the process up instead
  bool is_self = false;
  std::atomic<bool> dead{false};

  // A bit for each block of the peer's segment whose pages are mapped here; see near_memory.h.
  std::atomic<uint64_t> near_blocks[kSegmentBytes / kNearBlockBytes / 64] = {};

  std::mutex pipes_mutex;
  std::map<uint64_t, int> pipes;  // write ends of its event pipes, by inode
  // Guards pidfd and the segment's descriptor, which are closed when the process ends.
  std::mutex handles_mutex;

  // Frees the descriptors and the memory of a peer that has ended. The mapping of the peer's segment stays,
  // because threads of this process may still read the segment: they find zeros, and the state "dead".
  void mark_dead();
};

// This process among the processes of the job: its segment, the indices of its tables, its peers.
class Process {
 public:
  ~Process();
  static Process* get();  // opened at the first call; nullptr and errno on failure

  Segment& segment() { return *segment_; }
  Arena& arena() { return *arena_; }
  uint32_t slot() const { return slot_; }
  uint32_t claimer() const { return claimer_; }

  // Returns the process that owns a queue pair number; nullptr if it cannot be reached. errno is ENOENT if
  // this process sees no such process; any other errno is an error of this process.
  PeerProcess* find_peer(uint32_t qp_number);
  uint32_t count_peers() const { return peer_count_.load(std::memory_order_relaxed); }
  PeerProcess& self() { return self_; }
  // Counts this process's queue pairs. While this process has a queue pair, peers may copy from and to this
  // process.
  void count_queue_pair(int change);
  // Returns whether the process with this claimer number has ended.
  bool is_claimer_dead(uint32_t claimer) const;

  IndexPool mrs{1, kMrCount}, qps{kFirstQpIndex, kQpCount}, cqs{0, kCqCount}, srqs{0, kSrqCount},
      contexts{0, kContextCount};
  std::atomic<uint32_t> next_pd{1};
  Copier copier;
  GpuMemory gpu_memory;
  GpuImports imports;
  std::mutex gpu_service_mutex;
  bool has_gpu_service = false;
  GpuLanes service_lanes;
  // The index of these arrays is the rail.
  RailWorker workers[kMaxDevices];
  GpuLanes lanes[kMaxDevices];
  StagingBlock staging[kMaxDevices];
  DatagramStages datagram_stages[kMaxDevices];
  wire::Wire* wire = nullptr;  // null when this process is not on the network
  faults::Rails rails;
  faults::Schedule schedule;
  std::once_flag faults_once;
  std::unique_ptr<faults::Injector> injector;          // null without a plan
  std::atomic<PeerProcess*> connected[kQpCount] = {};  // by index: the peer that may work on this queue pair

 private:
  Process();
  static Process* open();
  PeerProcess* map_peer(uint32_t slot, uint64_t owner);
  int start_monitor();  // 0 or an errno
  void watch_peers();   // the monitor's thread
  void leave();

  Directory* directory_ = nullptr;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Arena> arena_;
  uint32_t slot_ = 0;
  uint32_t claimer_ = 0;
  uint64_t owner_ = 0;
  PeerProcess self_;
  std::mutex queue_pairs_mutex_;
  int queue_pairs_ = 0;
  std::mutex peers_mutex_;
  std::map<uint64_t, std::unique_ptr<PeerProcess>> peers_;  // by owner
  std::atomic<uint32_t> peer_count_{0};
  std::atomic<uint32_t> unwatched_{0};  // peers without a pidfd
  int monitor_epoll_ = -1, monitor_wake_ = -1;
};

inline uint32_t make_claimer(uint32_t slot, uint32_t generation) {
  return slot << 12 | (generation & 0xfff);
}

}  // namespace verbena::softverbs
