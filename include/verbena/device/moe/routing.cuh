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

// The rows of a dispatch, as its header tells them to a block.
struct MoeMasks {
  uint32_t words[kMoeMaxRanks][kMoeMaxMaskWords];
  uint32_t before[kMoeMaxRanks][kMoeMaxMaskWords];  // bits in the words before

  VERBENA_DEVICE bool has(uint32_t rank, uint32_t token) const {
    return (words[rank][token / kMoeMaskBits] >> token % kMoeMaskBits & 1) != 0;
  }
  // Returns the tokens of a rank.
  VERBENA_DEVICE uint32_t count(uint32_t rank, uint32_t mask_words) const {
    return before[rank][mask_words - 1] +
           static_cast<uint32_t>(__builtin_popcount(words[rank][mask_words - 1]));
  }
  // Returns a token's number among the tokens of that rank, which has it.
  VERBENA_DEVICE uint32_t find_number(uint32_t rank, uint32_t token) const {
    const uint32_t below = (1u << token % kMoeMaskBits) - 1;
    const uint32_t word = token / kMoeMaskBits;
    return before[rank][word] + static_cast<uint32_t>(__builtin_popcount(words[rank][word] & below));
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
};

VERBENA_DEVICE MoeMasks& find_moe_masks() {
#if VERBENA_EMULATED
  static const char key = 0;
  return *static_cast<MoeMasks*>(emulation::shared_memory(&key, sizeof(MoeMasks), alignof(MoeMasks)));
#else
  VERBENA_SHARED alignas(MoeMasks) char memory[sizeof(MoeMasks)];
  return *reinterpret_cast<MoeMasks*>(memory);
#endif
}

// Which ranks have experts. The division is a multiplication, exact for all ids.
class MoeExperts {
 public:
  VERBENA_DEVICE explicit MoeExperts(const MoeShape& shape)
      : experts_(shape.experts), local_(shape.local_experts()), factor_(shape.rank_factor()) {}

  // Returns the rank of an expert; kMoeMaxRanks if the id names none.
  VERBENA_DEVICE uint32_t find_rank(int32_t id) const {
    return id < 0 ? kMoeMaxRanks : static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(id)} * factor_ >> 24);
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

// The rows that came from all ranks, one rank's after the other's: lane r holds the count of rank r. All lanes
// of a warp call its functions.
class MoeRows {
 public:
  // @param but  the rank whose rows are left out; kMoeMaxRanks: none
  VERBENA_DEVICE MoeRows(uint32_t count_of_lane, uint32_t ranks, uint32_t but)
      : count_(lane() < ranks && lane() != but ? count_of_lane : 0), ranks_(ranks) {
    for (uint32_t rank = 0; rank < ranks; ++rank)
      total_ += shuffle(kFullWarp, count_, static_cast<int>(rank));
  }
  VERBENA_DEVICE uint32_t total() const { return total_; }
  // Returns the rank of row `number`, which becomes the row's number at its rank.
  VERBENA_DEVICE uint32_t find_rank(uint32_t& number) const {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      const uint32_t count = shuffle(kFullWarp, count_, static_cast<int>(rank));
      if (number < count) return rank;
      number -= count;
    }
    return 0;
  }

 private:
  uint32_t count_, ranks_, total_ = 0;
};

// How the rows of a call are divided: an item is a part of a row, and belongs to a warp. Adjacent items are
// in different blocks, so that a few rows use all multiprocessors. Ranks need not divide rows alike.
struct MoeItems {
  uint32_t first, step;      // of this warp
  uint32_t rows, parts;      // items are rows * parts
  uint32_t packets_of_part;  // a multiple of the warp's lanes

  // @param blocks       the first blocks of the grid, which take part
  // @param extra_parts  of each row after those of its packets: 0 or 1
  VERBENA_DEVICE MoeItems(uint32_t count_rows, uint32_t packets, uint32_t blocks, uint32_t extra_parts = 0)
      : rows(count_rows) {
    const uint32_t warps = threads_per_block() / kWarpLanes;
    step = warps * blocks;
    first = block_index() < blocks ? thread_index() / kWarpLanes * blocks + block_index() : ~0U;
    const uint32_t vectors = (packets + kWarpLanes - 1) / kWarpLanes;
    parts = rows == 0 ? 0 : step / rows;
    parts = parts > extra_parts ? parts - extra_parts : 1;
    if (parts > vectors) parts = vectors;
    packets_of_part = (vectors + parts - 1) / parts * kWarpLanes;
    parts += extra_parts;
  }
  VERBENA_DEVICE uint32_t count() const { return rows * parts; }
  VERBENA_DEVICE uint32_t row(uint32_t item) const { return item % rows; }
  VERBENA_DEVICE uint32_t part(uint32_t item) const { return item / rows; }
  // Whether an item is the one extra part of its row.
  VERBENA_DEVICE bool is_extra(uint32_t item) const { return part(item) == parts - 1; }
  VERBENA_DEVICE uint32_t begin(uint32_t item) const { return part(item) * packets_of_part; }
  VERBENA_DEVICE uint32_t end(uint32_t item, uint32_t packets) const {
    const uint32_t last = begin(item) + packets_of_part;
    return last < packets ? last : packets;
  }
};

}  // namespace verbena::device

#endif
