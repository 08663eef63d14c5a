// Which tokens go from one rank to another, as a block keeps them in shared memory: a bit for each token. The
// n-th row of a pair of ranks is the token of the n-th set bit, so rows are in the order of tokens, the same
// in every run.
#ifndef VERBENA_DEVICE_MOE_ROUTING_CUH
#define VERBENA_DEVICE_MOE_ROUTING_CUH

#include "verbena/device/group.cuh"
#include "verbena/device/moe/layout.cuh"

namespace verbena::device {

VERBENA_DEVICE uint32_t find_lowest_moe_bit(uint32_t bits) {
  return static_cast<uint32_t>(__builtin_popcount((bits & (~bits + 1)) - 1));
}

struct MoeMasks {
  uint32_t words[kMoeMaxRanks][kMoeMaxMaskWords];
  uint32_t before[kMoeMaxRanks][kMoeMaxMaskWords];  // bits in the words before
  uint32_t counts[kMoeMaxRanks];

  VERBENA_DEVICE bool has(uint32_t rank, uint32_t token) const {
    return (words[rank][token / kMoeMaskBits] >> token % kMoeMaskBits & 1) != 0;
  }
  // Returns a token's number among the tokens of that rank, which has it.
  VERBENA_DEVICE uint32_t find_number(uint32_t rank, uint32_t token) const {
    const uint32_t below = (1u << token % kMoeMaskBits) - 1;
    const uint32_t word = token / kMoeMaskBits;
    return before[rank][word] + static_cast<uint32_t>(__builtin_popcount(words[rank][word] & below));
  }
  // Returns the ranks that have the token, a bit each. All lanes of a warp call it.
  VERBENA_DEVICE uint32_t find_ranks(uint32_t ranks, uint32_t token) const {
    const uint32_t rank = lane();
    return ballot(kFullWarp, rank < ranks && has(rank, token));
  }
  // Returns the token with that number, which is below the rank's count. All lanes of a warp call it.
  VERBENA_DEVICE uint32_t find_token(uint32_t rank, uint32_t number, uint32_t mask_words) const {
    for (uint32_t first = 0; first < mask_words; first += kWarpLanes) {
      const uint32_t word = first + lane();
      const bool is_at_or_before = word < mask_words && before[rank][word] <= number;
      const uint32_t begun = ballot(kFullWarp, is_at_or_before);
      if (begun == kFullWarp && first + kWarpLanes < mask_words && before[rank][first + kWarpLanes] <= number)
        continue;
      const auto last = first + static_cast<uint32_t>(__builtin_popcount(begun)) - 1;
      const uint32_t bits = words[rank][last], bit = lane(), left = number - before[rank][last];
      const bool is_it = (bits >> bit & 1) != 0 &&
                         static_cast<uint32_t>(__builtin_popcount(bits & ((1u << bit) - 1))) == left;
      const uint32_t found = ballot(kFullWarp, is_it);
      return last * kMoeMaskBits + find_lowest_moe_bit(found);
    }
    return 0;
  }
  // Finds the row with number `number` among the rows of all ranks but one; `number` becomes the row's number
  // at its rank.
  VERBENA_DEVICE uint32_t count_rows(uint32_t ranks, uint32_t but) const {
    uint32_t rows = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) rows += rank == but ? 0 : counts[rank];
    return rows;
  }
  VERBENA_DEVICE uint32_t find_rank(uint32_t but, uint32_t& number) const {
    uint32_t rank = 0;
    for (; rank == but || number >= counts[rank]; ++rank) number -= rank == but ? 0 : counts[rank];
    return rank;
  }
  // Counts the bits of the words, by all warps of a block. The block's threads synchronise before and after
  // it.
  VERBENA_DEVICE void count(uint32_t ranks, uint32_t mask_words) {
    const uint32_t warps = threads_per_block() / kWarpLanes;
    for (uint32_t rank = thread_index() / kWarpLanes; rank < ranks; rank += warps) {
      uint32_t total = 0;
      for (uint32_t first = 0; first < mask_words; first += kWarpLanes) {
        const uint32_t word = first + lane();
        const auto own = word < mask_words ? static_cast<uint32_t>(__builtin_popcount(words[rank][word])) : 0;
        uint32_t sum = own;
        VERBENA_UNROLL
        for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
          const uint32_t lower = shuffle(kFullWarp, sum, static_cast<int>(lane() - step) & 31);
          if (lane() >= step) sum += lower;
        }
        if (word < mask_words) before[rank][word] = total + sum - own;
        total += shuffle(kFullWarp, sum, kWarpLanes - 1);
      }
      if (lane() == 0) counts[rank] = total;
    }
  }
};

// What a block keeps of a call.
struct MoeRouting {
  MoeMasks sent, received;
};
VERBENA_DEVICE MoeRouting& find_moe_routing() {
#if VERBENA_EMULATED
  static const char key = 0;
  return *static_cast<MoeRouting*>(emulation::shared_memory(&key, sizeof(MoeRouting), alignof(MoeRouting)));
#else
  VERBENA_SHARED alignas(MoeRouting) char memory[sizeof(MoeRouting)];
  return *reinterpret_cast<MoeRouting*>(memory);
#endif
}

// How the rows of a call are divided: an item is a part of a row, and belongs to a warp. Adjacent items are
// in different blocks, so that a few rows use all multiprocessors. Ranks need not divide rows alike.
struct MoeItems {
  uint32_t first, step;      // of this warp
  uint32_t rows, parts;      // items are rows * parts
  uint32_t packets_of_part;  // a multiple of the warp's lanes

  VERBENA_DEVICE MoeItems(uint32_t count_rows, uint32_t packets, uint32_t blocks) : rows(count_rows) {
    const uint32_t warps = threads_per_block() / kWarpLanes;
    first = thread_index() / kWarpLanes * blocks + block_index();
    step = warps * blocks;
    const uint32_t vectors = (packets + kWarpLanes - 1) / kWarpLanes;
    parts = rows == 0 ? 1 : step / rows;
    if (parts > vectors) parts = vectors;
    if (parts == 0) parts = 1;
    packets_of_part = (vectors + parts - 1) / parts * kWarpLanes;
  }
  VERBENA_DEVICE uint32_t count() const { return rows * parts; }
  VERBENA_DEVICE uint32_t row(uint32_t item) const { return item % rows; }
  VERBENA_DEVICE uint32_t part(uint32_t item) const { return item / rows; }
  VERBENA_DEVICE uint32_t begin(uint32_t item) const { return part(item) * packets_of_part; }
  VERBENA_DEVICE uint32_t end(uint32_t item, uint32_t packets) const {
    const uint32_t last = begin(item) + packets_of_part;
    return last < packets ? last : packets;
  }
};

}  // namespace verbena::device

#endif
