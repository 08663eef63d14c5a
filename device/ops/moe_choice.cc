#include "device/ops/moe_choice.h"

#include <algorithm>
#include <bit>

namespace verbena::ops {
namespace {

using device::kMoePacketBytes, device::kWarpLanes;

// Measurements: 2026-11-30-h200x2-moe-warps, except for kItemsInWindows (2026-11-30-h200x2-moe-windows).
//
// The grid of a short batch has kWarpsOfParts warps for each kPartsOfWarps parts of rows that the rank sends
// or receives if all ranks have equally many tokens. A grid that stores grouped rows has more warps, because
// a row is stored once for each of its experts.
constexpr uint32_t kWarpsOfParts = 3, kPartsOfWarps = 8, kMinWarps = 2, kMinGroupedWarps = 8;
constexpr uint32_t kMaxWarps = kMaxThreads / kWarpLanes;  // of a block
// A rank with few tokens has as many warps as if it had this part of the most tokens, because the other ranks
// may have more tokens (not measured).
constexpr uint32_t kTokensOfMost = 32;
// A batch is long if the largest grid has at most kLongBatch warps per token. Then each warp has up to
// kItemsInTurn parts of tokens, so that it sends and receives in turn several times. In windows, each warp
// has up to kItemsInWindows parts, so that all warps finish at about the same time (docs/moe.md).
constexpr uint32_t kLongBatch = 4, kItemsInTurn = 8, kItemsInWindows = 32;
// The min number of steps (count_vectors) of a part. In windows, the threads of a combine load up to 8
// packets of a row at a time.
constexpr uint32_t kMinVectors = 2, kMinVectorsOfLoad = 7;

// Returns the number of steps in which a warp moves a row, if each lane moves one packet per step.
uint32_t count_vectors(uint32_t row_bytes) {
  return device::moe_divide_up(row_bytes / kMoePacketBytes, uint32_t{kWarpLanes});
}
uint32_t count_warps(const Grid& grid) {
  return grid.blocks * grid.threads / kWarpLanes;
}

// The warps of a block delay each other, because a multiprocessor issues for only four warps at a time. So
// the blocks of a short batch have few warps. A warp receives the header of one rank at a time.
Grid choose_grid(const device::MoeShape& shape, const MoeCallSize& call) {
  uint32_t least =
      std::max({kMinWarps, std::min(shape.ranks, kMaxWarps), call.is_grouped ? kMinGroupedWarps : 0});
  if (shape.hosts > 1) least = kMaxWarps;  // fewer warps have not been measured
  const uint32_t tokens = std::max(call.tokens, shape.max_tokens / kTokensOfMost);
  const uint32_t parts = tokens * shape.ranks * std::bit_ceil(count_vectors(call.row_bytes) + 1);
  const uint32_t warps = std::clamp(kWarpsOfParts * parts / (kPartsOfWarps * call.blocks), least, kMaxWarps);
  return {call.blocks, warps * kWarpLanes};
}

// Only a kernel with all phases can send and receive in turn.
MoeFamily choose_family(const device::MoeShape& shape, const MoeCallSize& call) {
  if (shape.hosts > 1) return MoeFamily::kFar;
  if (shape.in_windows != 0) return MoeFamily::kInWindows;
  const bool is_long = kLongBatch * call.tokens >= call.blocks * kMaxWarps;
  return is_long && call.is_whole ? MoeFamily::kInTurn : MoeFamily::kOneHost;
}

// Returns the number of bits for a field of MoeParts. The number of parts of a row is limited by the number
// of warps per row, and by the number of steps that a warp needs for a row. The limit by steps is rounded up
// to the next power of two, because the last part also has the row's tail.
uint32_t choose_bits(const Grid& grid, uint32_t rows, uint32_t row_bytes) {
  uint32_t bits = 0;
  while ((rows << (bits + 1)) <= count_warps(grid) && (1U << bits) <= count_vectors(row_bytes)) ++bits;
  return bits;
}
device::MoeParts choose_parts(const device::MoeShape& shape, const MoeCallSize& call, MoeFamily family,
                              const Grid& grid) {
  const bool is_dispatch = call.kind == device::MoeKind::kDispatch,
             is_in_windows = family == MoeFamily::kInWindows;
  const uint32_t tokens = std::max(1U, call.tokens), most = tokens * shape.ranks;
  if (family != MoeFamily::kInTurn && !is_in_windows)
    return {choose_bits(grid, is_dispatch ? tokens : most, call.row_bytes),
            choose_bits(grid, is_dispatch ? most : tokens, call.row_bytes)};
  const uint32_t items = (is_in_windows ? kItemsInWindows : kItemsInTurn) * count_warps(grid);
  const uint32_t min_vectors = is_in_windows && !is_dispatch ? kMinVectorsOfLoad : kMinVectors;
  uint32_t bits = 0;
  while ((tokens << bits) < items && count_vectors(call.row_bytes) >> (bits + 1) >= min_vectors) ++bits;
  return {bits, bits};
}

}  // namespace

MoeChoice choose_moe(const device::MoeShape& shape, const MoeCallSize& call) {
  const Grid grid = choose_grid(shape, call);
  const MoeFamily family = choose_family(shape, call);
  return {family, grid, choose_parts(shape, call, family, grid)};
}

// There must be enough chunks to share the work between blocks, but so few that the proxy keeps up. The
// values have not been measured on GPUs.
uint32_t choose_chunk_bits(uint32_t max_tokens) {
  constexpr uint32_t kManyChunks = 16, kMinBits = 2, kMaxBits = 5;
  return std::clamp<uint32_t>(static_cast<uint32_t>(std::bit_width(max_tokens / kManyChunks)), kMinBits + 1,
                              kMaxBits + 1) -
         1;
}

}  // namespace verbena::ops
