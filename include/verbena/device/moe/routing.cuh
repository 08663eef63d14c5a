// Which tokens go from one rank to another. The n-th row of a pair of ranks is its n-th token in the order of
// tokens, so rows have the same order in every run. And how the rows of a call are divided among warps.
#ifndef VERBENA_DEVICE_MOE_ROUTING_CUH
#define VERBENA_DEVICE_MOE_ROUTING_CUH

#include "verbena/device/group.cuh"
#include "verbena/device/moe/layout.cuh"

namespace verbena::device {

VERBENA_DEVICE uint32_t find_lowest_moe_bit(uint32_t bits) {
  return static_cast<uint32_t>(__builtin_popcount((bits & (~bits + 1)) - 1));
}

// Adds up a number of each lane and of the lanes below it.
// @param lanes  the number of the first lanes, whose sums are needed
VERBENA_DEVICE uint32_t add_up_moe_lanes(uint32_t sum, uint32_t lanes = kWarpLanes) {
  for (uint32_t step = 1; step < lanes && step < kWarpLanes; step *= 2) {
    const uint32_t lower = shuffle(kFullWarp, sum, static_cast<int>(lane() - step) & 31);
    if (lane() >= step) sum += lower;
  }
  return sum;
}

// Returns the block's T in shared memory.
template <typename T>
VERBENA_DEVICE T& find_moe_shared() {
#if VERBENA_EMULATED
  static const char key = 0;
  return *static_cast<T*>(emulation::shared_memory(&key, sizeof(T), alignof(T)));
#else
  VERBENA_SHARED alignas(T) char memory[sizeof(T)];
  return *reinterpret_cast<T*>(memory);
#endif
}

// The rows of a dispatch, as its header tells them to a block.
struct MoeMasks {
  uint32_t words[kMoeMaxMaskWords];   // [ranks][words_of_rank]
  uint32_t before[kMoeMaxMaskWords];  // of the rank: bits in the words before
  uint32_t counts[kMoeMaxRanks];      // of all bits
  uint32_t tokens[kMoeMaxRanks];      // of the rank, whether they come or not

  VERBENA_DEVICE bool has(uint32_t words_of_rank, uint32_t rank, uint32_t token) const {
    return (words[rank * words_of_rank + token / kMoeMaskBits] >> token % kMoeMaskBits & 1) != 0;
  }
  // Returns a token's number among the tokens that come from that rank.
  VERBENA_DEVICE uint32_t find_number(uint32_t words_of_rank, uint32_t rank, uint32_t token) const {
    const uint32_t below = (1u << token % kMoeMaskBits) - 1;
    const uint32_t word = rank * words_of_rank + token / kMoeMaskBits;
    return before[word] + static_cast<uint32_t>(__builtin_popcount(words[word] & below));
  }
};

// Which ranks have experts. The division is a multiplication, exact for all ids.
class MoeExperts {
 public:
  VERBENA_DEVICE explicit MoeExperts(const MoeShape& shape)
      : experts_(shape.experts), local_(shape.local_experts), factor_(shape.rank_factor) {}

  // Returns the rank of an expert; kMoeMaxRanks if the id names none.
  VERBENA_DEVICE uint32_t find_rank(int32_t id) const {
    return id < 0 ? kMoeMaxRanks : static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(id)} * factor_ >> 24);
  }
  // Returns the bit of an expert's rank; 0 if the id names none.
  VERBENA_DEVICE uint32_t find_rank_bit(int32_t id) const {
    const uint32_t rank = find_rank(id);
    return rank < kMoeMaxRanks ? 1U << rank : 0;
  }
  // Converts an expert's id to its index on a rank; -1 if it is of another rank.
  VERBENA_DEVICE int32_t make_local(int32_t id, uint32_t rank) const {
    return find_rank(id) == rank ? id - static_cast<int32_t>(rank * local_) : -1;
  }
  // Returns the id, or -1 if it is out of range.
  VERBENA_DEVICE int32_t check(int64_t id) const {
    return id >= 0 && id < int64_t{experts_} ? static_cast<int32_t>(id) : -1;
  }

 private:
  uint32_t experts_, local_, factor_;
};

// How a call is divided among the warps: an item is a part of a row, and belongs to a warp. Adjacent items
// are in different blocks, so that a few rows use all multiprocessors. There are no divisions: a warp alone
// needs some hundred cycles for a few of them. A row's slots are numbered token by token, with a power of
// two of ranks for each, so that the slots of all tokens that a call has come first.
struct MoeItems {
  uint32_t first, step;  // of this warp
  uint32_t part_bits, rank_bits;
  uint32_t part_packets;  // a multiple of the warp's lanes

  // @param packets  of a row
  // @param blocks   the first blocks of the grid, which take part
  VERBENA_DEVICE MoeItems(uint32_t ranks, uint32_t packets, uint32_t bits, uint32_t blocks)
      : part_bits(bits) {
    const uint32_t warps = threads_per_block() / kWarpLanes;
    first = block_index() < blocks ? thread_index() / kWarpLanes * blocks + block_index() : ~0U;
    step = warps * blocks;
    rank_bits = ranks == 1 ? 0 : kWarpLanes - static_cast<uint32_t>(__builtin_clz(ranks - 1));
    const uint32_t vectors = moe_divide_up(packets, uint32_t{kWarpLanes});
    part_packets = ((vectors + (1U << bits) - 1) >> bits) * kWarpLanes;
  }
  VERBENA_DEVICE uint32_t count(uint32_t tokens) const { return tokens << (rank_bits + part_bits); }
  VERBENA_DEVICE uint32_t rank(uint32_t item) const { return (item >> part_bits) & ((1U << rank_bits) - 1); }
  VERBENA_DEVICE uint32_t token(uint32_t item) const { return item >> (part_bits + rank_bits); }
  // The last part has fewest packets, or none.
  VERBENA_DEVICE bool is_last(uint32_t item) const { return (~item & ((1U << part_bits) - 1)) == 0; }
  VERBENA_DEVICE uint32_t begin(uint32_t item) const {
    return (item & ((1U << part_bits) - 1)) * part_packets;
  }
  VERBENA_DEVICE uint32_t end(uint32_t item, uint32_t packets) const {
    const uint32_t last = begin(item) + part_packets;
    return last < packets ? last : packets;
  }
};

}  // namespace verbena::device

#endif
