// Chooses the algorithm and grid of a collective by operation, size and platform. The code makes no GPU
// calls, and ranks with the same Platform and measurements make the same choice. Communicator creates a
// Chooser and launches the kernels that the Chooser chooses. All thresholds are at the top of choice.cc, each
// with the measurement on which it is based.
#pragma once

#include <algorithm>
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

// The maximum number of blocks if the caller sets no maximum.
inline constexpr uint32_t kDefaultBlocks = 128;

inline constexpr uint64_t kVectorBytes = 16;  // bytes that a thread loads or stores at once
// Returns the number of data bytes that fit into a slot of packets, like LowLatency::data_bytes(). Each
// packet also needs space for a note (sequence number).
constexpr uint64_t find_data_bytes(uint64_t slot_bytes) {
  constexpr uint64_t kNoteBytes = 8;
  return slot_bytes / (kVectorBytes + kNoteBytes) * kVectorBytes;
}

// Returns the maximum number of blocks of a kernel that sends chunks, if kernels that send packets have at
// most `blocks` blocks. The maximum is twice `blocks`, because then two blocks share a multiprocessor, and
// one block can send while the other block waits.
constexpr uint32_t count_chunk_blocks(uint32_t blocks) {
  return 2 * blocks < kSymmMaxBlocks ? 2 * blocks : kSymmMaxBlocks;
}
// Returns the maximum number of blocks of kernels for teams across hosts. NICs send a few long parts of a
// tensor faster than many short parts. With 24 or 32 blocks, 16 MiB took up to a third longer
// (2026-11-30-h200x2-hosts-clusters).
constexpr uint32_t count_host_blocks(uint32_t blocks) {
  return blocks < 16 ? blocks : 16;
}
// Arranges a grid with at most `blocks` blocks of a kernel for a team across hosts in as few clusters as
// possible. The number of blocks may become smaller, because all clusters have the same size.
constexpr Grid arrange_in_clusters(const Grid& grid, bool has_clusters) {
  constexpr uint32_t kMaxClusterBlocks = 8;  // more are not portable
  if (!has_clusters) return {grid.blocks, grid.threads};
  const uint32_t clusters = std::max(1U, (grid.blocks + kMaxClusterBlocks - 1) / kMaxClusterBlocks);
  const uint32_t cluster = grid.blocks / clusters;
  return {clusters * cluster, grid.threads, cluster};
}

struct Choice {
  Algorithm algorithm = Algorithm::kAuto;
  Grid grid{0, 0};
  uint32_t chunk_bytes = 0;  // 0 means the size of a slot
};

// The properties on which a Chooser's choices depend. The properties are equal on all ranks of a
// communicator.
struct Platform {
  uint32_t ranks = 0;
  uint32_t blocks = 0;  // maximum for a kernel that sends packets
  uint64_t packet_slot_bytes = 0;
  bool has_clusters = false;            // every rank's GPU supports clusters of blocks
  uint32_t hosts = 1;                   // if more than 1, ranks of other hosts are reachable only by a NIC
  Algorithm forced = Algorithm::kAuto;  // from VERBENA_OPS_ALGORITHM; kAuto if it is not set

  bool is_across_hosts() const { return hosts > 1; }
};

// The properties of a call's tensors on which a choice depends. The properties are equal on all ranks.
struct Tensors {
  bool are_in_windows = false;  // on every rank, input and output of an all-reduce lie in windows
  bool are_bfloat16 = false;    // the lossless codec may encode them between hosts
};

// Returns the maximum number of blocks if the caller sets no maximum. `multiprocessors` is the GPU's number
// of multiprocessors, and `communicators` is the number of communicators that this process already has on the
// GPU.
uint32_t choose_max_blocks(uint32_t multiprocessors, uint32_t communicators);

// Always throws Failure. The text says that `what` works only within a host, but that this team spans several
// hosts.
[[noreturn]] void refuse_hosts(const char* what);

// Returns whether the caller lets the library choose the algorithm.
inline bool leaves_algorithm(const verbena_ops_choice* asked) {
  return asked == nullptr || asked->algorithm == VERBENA_OPS_AUTO ||
         asked->algorithm == VERBENA_OPS_AUTO_BFLOAT16;
}

// Any thread may call a Chooser's functions.
class Chooser {
 public:
  // `gpu` is the name of the GPU if all ranks have the same kind of GPU, and is empty otherwise. Only
  // measurements of that GPU are used.
  Chooser(const Platform& platform, const std::vector<tuner::OpsMeasurement>& measurements,
          const std::string& gpu);

  // Returns the algorithm that VERBENA_OPS_ALGORITHM names, if it is set. Otherwise returns the fastest
  // measured algorithm or, without measurements, the choice of the built-in rules. `bytes` is the size of an
  // all-reduce's tensor, or the size of one message of any other operation.
  Choice choose(verbena_ops_operation operation, uint64_t bytes, Tensors tensors) const;
  // Like choose(), for an all-reduce of float16 or bfloat16 that may be quantised by `codec`.
  Choice choose_quantised(Algorithm codec, uint64_t bytes) const;
  // Returns the choice for a single kernel that does both an all-reduce of `bytes` bytes and the norm of its
  // `rows` rows. Returns nothing if two kernels are faster, or if the rows do not fit into registers.
  // `is_asked` is true if the caller or VERBENA_OPS_ALGORITHM chose the algorithm of `choice`.
  std::optional<Choice> choose_fused(const Choice& choice, uint64_t rows, uint64_t bytes,
                                     bool is_asked) const;
  // Returns `chosen`, but with the caller's values of the fields that the caller has set in `asked`. Throws
  // Failure if no kernel supports the result.
  Choice complete(const Choice& chosen, const verbena_ops_choice* asked) const;

  // Returns the grid of a fused all-reduce and norm that keeps rows in registers. Returns nothing if
  // `algorithm` does not support fusion, or if the rows do not fit.
  std::optional<Grid> spread_rows(Algorithm algorithm, uint64_t rows, uint64_t row_bytes) const;
  // Returns the grid of a separate norm. `meets_ranks` is true if the norm's blocks wait for blocks of other
  // ranks.
  Grid spread_norm(uint64_t rows, bool meets_ranks) const;
  uint32_t max_blocks(Family family) const;
  // Returns the grid with which a kernel for a team across hosts is launched.
  Grid arrange(const Grid& grid) const { return arrange_in_clusters(grid, platform_.has_clusters); }
  bool is_forced() const { return platform_.forced != Algorithm::kAuto; }

 private:
  Choice choose_by_rules(verbena_ops_operation operation, uint64_t bytes, bool is_in_windows) const;
  Choice spread(Algorithm algorithm, verbena_ops_operation operation, uint64_t bytes) const;
  Choice spread_chunks(Algorithm algorithm, uint64_t bytes) const;
  Choice spread_codec(Algorithm algorithm, uint64_t bytes) const;
  Choice spread_packets(Algorithm algorithm, bool is_exchange, uint64_t bytes) const;
  Choice spread_across_hosts(Algorithm algorithm, uint64_t bytes) const;

  Platform platform_;
  // Measurements of this GPU with these numbers of ranks and hosts. exact_ has a table for each operation.
  // of_bfloat16_ has a table for each operation on bfloat16 tensors between hosts, including lossless
  // algorithms. in_windows_ is for all-reduces of tensors in windows. coded_ has a table for each codec.
  std::array<tuner::OpsTable, kCountOperations> exact_, of_bfloat16_;
  tuner::OpsTable in_windows_;
  std::array<tuner::OpsTable, kCountCodecs> coded_;
};

}  // namespace verbena::ops
