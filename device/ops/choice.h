// Decides how a collective runs: from an operation, a size and the platform to an algorithm and a grid. Pure:
// it launches nothing and asks no GPU, so ranks that have the same Platform and the same measurements choose
// the same. Communicator makes one Chooser and launches what it returns; every threshold stands at the top of
// choice.cc with the measurement that set it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/ops/call.h"
#include "tuner/calibration.h"
#include "tuner/ops_model.h"
#include "verbena/ops.h"

namespace verbena::ops {

// At most, where the caller names no number of blocks.
inline constexpr uint32_t kDefaultBlocks = 128;

inline constexpr uint64_t kVectorBytes = 16;  // of a thread's load or store
// What a slot of packets has room for, as LowLatency::data_bytes(): beside each there is a note.
constexpr uint64_t find_data_bytes(uint64_t slot_bytes) {
  constexpr uint64_t kNoteBytes = 8;
  return slot_bytes / (kVectorBytes + kNoteBytes) * kVectorBytes;
}

struct Choice {
  Algorithm algorithm = Algorithm::kAuto;
  Grid grid{0, 0};
  uint32_t chunk_bytes = 0;  // 0: as many as a slot has room for
};

// The same on all ranks of a communicator.
struct Platform {
  uint32_t ranks = 0;
  uint32_t blocks = 0;  // at most, of a kernel that sends packets
  uint64_t packet_slot_bytes = 0;
  bool has_clusters = false;            // every rank's GPU can launch clusters of blocks
  bool is_across_hosts = false;         // some ranks are reached by a NIC only
  Algorithm forced = Algorithm::kAuto;  // VERBENA_OPS_ALGORITHM; kAuto: nothing is forced
};

// The blocks of a communicator's kernels where the caller names no number, on a GPU with that many
// multiprocessors on which `communicators` of this process are alive.
uint32_t choose_max_blocks(uint32_t multiprocessors, uint32_t communicators);

// Throws Failure: `what` needs ranks that loads and stores reach, and this team lies in several hosts.
[[noreturn]] void refuse_hosts(const char* what);

// Any thread.
class Chooser {
 public:
  // `gpu`: the name that all ranks' GPUs have, or empty; only measurements of that GPU count.
  Chooser(const Platform& platform, const std::vector<tuner::OpsMeasurement>& measurements,
          const std::string& gpu);

  // The setting's algorithm, else the fastest that was measured, else the rules.
  // `bytes`: of an all-reduce, the tensor's; of every other operation, one message's.
  // `is_in_windows`: every rank's input and output of an all-reduce lie in windows.
  Choice choose(verbena_ops_operation operation, uint64_t bytes, bool is_in_windows = false) const;
  // The same for an all-reduce that may be quantised by `codec`.
  Choice choose_quantised(Algorithm codec, uint64_t bytes) const;
  // An all-reduce of `bytes` and the norm of its `rows` by one kernel; none: two kernels are faster, or rows
  // have no room in registers. `is_asked`: the caller or the setting chose `choice`'s algorithm.
  std::optional<Choice> choose_fused(const Choice& choice, uint64_t rows, uint64_t bytes,
                                     bool is_asked) const;
  // `chosen` with what the caller asked for in place of it. Throws Failure if there is no such kernel.
  Choice complete(const Choice& chosen, const verbena_ops_choice* asked) const;

  // The grid of an all-reduce with a norm whose rows stay in registers; none: `algorithm` cannot do that, or
  // rows have no room there.
  std::optional<Grid> spread_rows(Algorithm algorithm, uint64_t rows, uint64_t row_bytes) const;
  // The grid of a norm that is not fused. `meets_ranks`: its blocks wait for those of other ranks.
  Grid spread_norm(uint64_t rows, bool meets_ranks) const;
  uint32_t max_blocks(Family family) const;
  bool is_forced() const { return platform_.forced != Algorithm::kAuto; }

 private:
  Choice choose_by_rules(verbena_ops_operation operation, uint64_t bytes, bool is_in_windows) const;
  Choice spread(Algorithm algorithm, verbena_ops_operation operation, uint64_t bytes) const;
  Choice spread_chunks(Algorithm algorithm, uint64_t bytes) const;
  Choice spread_codec(Algorithm algorithm, uint64_t bytes) const;
  Choice spread_packets(Algorithm algorithm, bool is_exchange, uint64_t bytes) const;
  Choice spread_across_hosts(uint64_t bytes) const;

  Platform platform_;
  // Measurements of this GPU: by operation; of all-reduces in windows; by codec.
  std::array<tuner::OpsTable, kCountOperations> exact_;
  tuner::OpsTable in_windows_;
  std::array<tuner::OpsTable, kCountCodecs> coded_;
};

// The most blocks of a kernel of chunks beside `blocks` of one of packets: of two blocks of a multiprocessor
// one sends while the other one waits.
constexpr uint32_t count_chunk_blocks(uint32_t blocks) {
  return 2 * blocks < kSymmMaxBlocks ? 2 * blocks : kSymmMaxBlocks;
}
// The most blocks of a kernel of a team in several hosts: each asks a NIC for a part, and long parts are
// faster.
constexpr uint32_t count_host_blocks(uint32_t blocks) {
  return blocks < 32 ? blocks : 32;
}

}  // namespace verbena::ops
