// Determines which tokens a rank sends to another rank, and how the rows of a call are divided among warps.
// The n-th row from one rank to another belongs to the n-th token that is sent, so rows have the same order
// in every run.
#ifndef VERBENA_DEVICE_MOE_ROUTING_CUH
#define VERBENA_DEVICE_MOE_ROUTING_CUH

#include "verbena/device/group.cuh"
#include "verbena/device/moe/layout.cuh"

namespace verbena::device {

VERBENA_DEVICE uint32_t find_lowest_moe_bit(uint32_t bits) {
  return static_cast<uint32_t>(__builtin_popcount((bits & (~bits + 1)) - 1));
}

// Returns the sum of the values of this lane and of all lower lanes.
// @param lanes  only the first `lanes` lanes need their sums
VERBENA_DEVICE uint32_t add_up_moe_lanes(uint32_t sum, uint32_t lanes = kWarpLanes) {
  for (uint32_t step = 1; step < lanes && step < kWarpLanes; step *= 2) {
    const uint32_t lower = shuffle(kFullWarp, sum, static_cast<int>(lane() - step) & 31);
    if (lane() >= step) sum += lower;
  }
  return sum;
}

// Each lane has a token, and a bit for each rank in `ranks_of_lane`. Returns to lane r a bit for each token
// that has the bit of rank r.
// @param ranks  number of ranks
VERBENA_DEVICE uint32_t find_moe_tokens(uint32_t ranks, uint32_t ranks_of_lane) {
  uint32_t tokens = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint32_t bits = ballot(kFullWarp, (ranks_of_lane >> rank & 1) != 0);
    if (lane() == rank) tokens = bits;
  }
  return tokens;
}

// Returns the block's object of type T in shared memory.
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

// Says which rows a dispatch sends to this rank. Each block reads this from the headers.
struct MoeMasks {
  uint32_t words[kMoeMaxMaskWords];   // [ranks][words_of_rank]
  uint32_t before[kMoeMaxMaskWords];  // number of bits that are set in the rank's earlier words
  uint32_t counts[kMoeMaxRanks];      // number of bits that are set in all of the rank's words
  uint32_t tokens[kMoeMaxRanks];      // number of the rank's tokens, including tokens that it does not send
                                      // to this rank

  VERBENA_DEVICE bool has(uint32_t words_of_rank, uint32_t rank, uint32_t token) const {
    return (words[rank * words_of_rank + token / kMoeMaskBits] >> token % kMoeMaskBits & 1) != 0;
  }
  // Sets words first to first + 31 of a rank's masks: the word of the lane's number to `bits`. All lanes of a
  // warp must call it.
  // @param last    number of words of the rank
  // @param earlier number of bits that are set in the rank's words before `first`
  // @return the number of bits that are set in the rank's words up to these
  VERBENA_DEVICE uint32_t set_words(uint32_t rank, uint32_t last, uint32_t first, uint32_t bits,
                                    uint32_t earlier) {
    const auto own = static_cast<uint32_t>(__builtin_popcount(bits));
    const uint32_t sum = add_up_moe_lanes(own, last), word = first + lane();
    if (word < last) {
      words[rank * last + word] = bits;
      before[rank * last + word] = earlier + sum - own;
    }
    const uint32_t count = last - first < kWarpLanes ? last - first : kWarpLanes;
    return earlier + shuffle(kFullWarp, sum, static_cast<int>(count) - 1);
  }
  // Returns the number of a token among the tokens that `rank` sends to this rank.
  VERBENA_DEVICE uint32_t find_number(uint32_t words_of_rank, uint32_t rank, uint32_t token) const {
    const uint32_t below = (1u << token % kMoeMaskBits) - 1;
    const uint32_t word = rank * words_of_rank + token / kMoeMaskBits;
    return before[word] + static_cast<uint32_t>(__builtin_popcount(words[word] & below));
  }
};

// Finds the rank of an expert. The class multiplies instead of dividing, and its result is exact for all ids.
class MoeExperts {
 public:
  VERBENA_DEVICE explicit MoeExperts(const MoeShape& shape)
      : experts_(shape.experts), local_(shape.local_experts), factor_(shape.rank_factor) {}

  // Returns the rank of an expert, or kMoeMaxRanks if the id names no expert.
  VERBENA_DEVICE uint32_t find_rank(int32_t id) const {
    return id < 0 ? kMoeMaxRanks : static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(id)} * factor_ >> 24);
  }
  // Returns the bit of an expert's rank, or 0 if the id names no expert.
  VERBENA_DEVICE uint32_t find_rank_bit(int32_t id) const {
    const uint32_t rank = find_rank(id);
    return rank < kMoeMaxRanks ? 1U << rank : 0;
  }
  // Converts an expert's id to the expert's index on `rank`. Returns -1 if the expert is on another rank.
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

// The order in which a kernel moves rows. In exchanges with MoeShape::in_windows, all kernels are kInWindows.
enum class MoeFlow : uint32_t {
  kSendFirst,  // all rows are sent before rows are received
  kInTurn,     // sending and receiving alternate (MoeItems); the call is on one host and has all phases
  kInWindows,  // rows are stored in and loaded from windows (windows.cuh); likewise
};

// Divides the rows of a call among the warps. An item is a part of a row, and one warp handles it. Adjacent
// items belong to different blocks, so that even a few rows use all multiprocessors. The class avoids
// divisions, because even a few divisions take a warp about a hundred cycles. Items are numbered token by
// token, then rank by rank, then part by part. The number of ranks is rounded up to a power of two. So the
// items of the tokens that exist have the lowest numbers.
//
// For a long batch, a kernel alternates between sending and receiving items, so that NVLink is not idle while
// the kernel receives. Warps of different ranks do not wait for each other in a circle: before a warp waits
// for a token, it has sent all its items of this token and of earlier tokens.
struct MoeItems {
  uint32_t first, step;  // first item of this warp, and distance between its items
  uint32_t part_bits, rank_bits;
  uint32_t part_packets;  // a multiple of the warp's lanes

  // @param packets  number of packets of a row
  // @param blocks   number of blocks that take part; they are the first blocks of the grid
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
  // Returns the end of the items that a warp sends before it receives an item of `token`: its items of this
  // token and of earlier tokens, and one more item.
  // @param end  end of all items to send
  VERBENA_DEVICE uint32_t end_ahead(uint32_t token, uint32_t end) const {
    const uint32_t ahead = count(token + 1) + step;
    return ahead < end ? ahead : end;
  }
  VERBENA_DEVICE uint32_t rank(uint32_t item) const { return (item >> part_bits) & ((1U << rank_bits) - 1); }
  VERBENA_DEVICE uint32_t token(uint32_t item) const { return item >> (part_bits + rank_bits); }
  // Returns true if the item is the last part of its row. The last part has the fewest packets, or none.
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
