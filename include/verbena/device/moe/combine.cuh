// Combine of a mixture of experts: returns the experts' rows to the ranks of their tokens and adds them, in
// one kernel and one NVLink hop. Uses the handle of the dispatch. verbena/moe.h documents the call;
// libverbena_ops.so has the kernels.
//
// Reduced: the rank of the experts adds its rows of a token, rounds the sum and sends one row; the token's
// rank adds these rows in the order of ranks. Exact: each expert's row goes to the token's rank, which adds
// in top-k order. All sums are float and are rounded once at each rank, so the result has the same bits in
// every run.
#ifndef VERBENA_DEVICE_MOE_COMBINE_CUH
#define VERBENA_DEVICE_MOE_COMBINE_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/moe/area.cuh"
#include "verbena/device/packed.cuh"

namespace verbena::device {

template <typename T, MoeOrder kOrder>
class MoeCombineKernel {
 public:
  using Data = Packet::Data;

  VERBENA_DEVICE MoeCombineKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                  const MoeCombine& call)
      : area_(workspace, shape, MoeKind::kCombine),
        shape_(shape),
        call_(call),
        layout_(call.layout),
        experts_(shape),
        row_packets_(call.row_bytes / Packet::kBytes) {}

  // Runs the call, by all threads of the grid, after the wait for earlier kernels. The threads of a block do
  // not meet before the end.
  // @return kInvalid if no dispatch of this rank's has written the handle, or one with another number of
  // tokens or another grouping
  [[nodiscard]] VERBENA_DEVICE SymmStatus run() {
    const bool has_headers = block_index() == blocks_per_grid() - 1;
    const auto stamp = load_moe<uint32_t>(call_.handle + layout_.stamp, 0);
    const auto tokens = load_moe<uint32_t>(call_.handle + layout_.stamp, 1);
    const auto grouping = load_moe<uint32_t>(call_.handle + layout_.stamp, 2);
    const auto count_of_lane =
        lane() < shape_.ranks ? load_moe<uint32_t>(call_.handle + layout_.counts, lane()) : 0;
    if (stamp != make_moe_stamp(shape_) || tokens != call_.tokens ||
        grouping != static_cast<uint32_t>(call_.grouping))
      return area_.refuse();
    if ((call_.phases & kMoeSend) != 0 && !area_.has_trouble()) {
      if (has_headers) send_headers();
      send_rows(count_of_lane);
    }
    if ((call_.phases & kMoeReceive) == 0) return area_.conclude();
    receive_rows();
    if (has_headers) receive_headers();
    const SymmStatus status = area_.conclude();
    area_.finish(status);
    return status;
  }

 private:
  static constexpr bool kIsExact = kOrder == MoeOrder::kExact;
  static constexpr uint32_t kAtOnce = 2;   // packets of a thread
  static constexpr uint32_t kAddends = 4;  // rows that are awaited together
  using Elements = Packed<T>;
  using Sum = PackedSum<T>;

  // Sends one header from each rank to each: no rank gets ahead of a rank that has no rows for it
  // (layout.cuh).
  VERBENA_DEVICE void send_headers() const {
    const MoePlace mine = area_.find(shape_.find_combine_header(area_.epoch(), area_.me()));
    for (uint32_t rank = thread_index(); rank < shape_.ranks; rank += threads_per_block())
      if (rank != area_.me() && shape_.is_living(rank)) area_.send(mine, 0, Data{}, area_.find_delta(rank));
  }
  VERBENA_DEVICE void receive_headers() {
    for (uint32_t rank = thread_index(); rank < shape_.ranks; rank += threads_per_block()) {
      Data data{};
      if (rank != area_.me() && shape_.is_living(rank) &&
          !area_.receive_one(area_.find(shape_.find_combine_header(area_.epoch(), rank)), rank, data))
        return;
    }
  }

  // Whether a rank's number is the slot of its row for a token; else the slot is the first of its experts in
  // top-k order, which takes fewer slots.
  VERBENA_DEVICE bool has_slots_of_ranks() const { return shape_.ranks <= shape_.top_k; }

  // This rank's experts of a row that came: which of top_k, and the weight of each lane's expert. All lanes
  // call it.
  struct Experts {
    uint32_t which;
    float weight;
  };
  VERBENA_DEVICE Experts find_experts(uint64_t row) const {
    const bool is_one = lane() < shape_.top_k;
    const uint64_t index = row * shape_.top_k + lane();
    const int32_t id = is_one ? load_moe<int32_t>(call_.handle + layout_.ids, index) : -1;
    return {ballot(kFullWarp, id >= 0),
            is_one ? load_moe<float>(call_.handle + layout_.weights, index) : 0.0F};
  }
  VERBENA_DEVICE static float share(float value, uint32_t of_lane) {
    return __builtin_bit_cast(
        float, shuffle(kFullWarp, __builtin_bit_cast(uint32_t, value), static_cast<int>(of_lane)));
  }
  VERBENA_DEVICE static void add_product(Sum& sum, float weight, const Data& data) {
    Sum addend;
    addend.begin(__builtin_bit_cast(Elements, data));
    VERBENA_UNROLL
    for (uint32_t i = 0; i < Sum::kCount; ++i)
      sum.sums[i] = detail::multiply_add(weight, addend.sums[i], sum.sums[i]);
  }
  VERBENA_DEVICE Data load_row(uint64_t row, uint32_t index) const {
    return load_moe<Data>(static_cast<const char*>(call_.rows) + row * call_.row_bytes, index);
  }
  // Returns the row of one of the experts of a row that came.
  VERBENA_DEVICE uint64_t find_row_of(uint64_t row, uint32_t k) const {
    const uint64_t index = row * shape_.top_k + k;
    return call_.grouping == MoeGrouping::kRank
               ? index
               : static_cast<uint64_t>(load_moe<int32_t>(call_.handle + layout_.places, index));
  }
  // Adds up what this rank contributes for a row that came, packets first + i * 32 below `end`.
  VERBENA_DEVICE void find_partial(uint64_t row, const Experts& experts, uint32_t first, uint32_t end,
                                   Data (&data)[kAtOnce]) const {
    if constexpr (kOrder == MoeOrder::kRows) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        if (first + i * kWarpLanes < end) data[i] = load_row(row, first + i * kWarpLanes);
      return;
    }
    Sum sums[kAtOnce] = {};
    for (uint32_t left = experts.which; left != 0;) {
      // Loads of several rows at once.
      Data addends[kAddends][kAtOnce] = {};
      float weights[kAddends];
      uint32_t some = take_some(left);
      const uint32_t count = static_cast<uint32_t>(__builtin_popcount(some));
      VERBENA_UNROLL
      for (uint32_t addend = 0; addend < kAddends; ++addend) {
        const uint32_t k = some == 0 ? 0 : find_lowest_moe_bit(some);
        some &= some - 1;
        weights[addend] = share(experts.weight, k);
        if (addend >= count) continue;
        const uint64_t from = find_row_of(row, k);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          if (first + i * kWarpLanes < end) addends[addend][i] = load_row(from, first + i * kWarpLanes);
      }
      VERBENA_UNROLL
      for (uint32_t addend = 0; addend < kAddends; ++addend) {
        if (addend >= count) continue;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) add_product(sums[i], weights[addend], addends[addend][i]);
      }
    }
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) data[i] = __builtin_bit_cast(Data, sums[i].round());
  }

  // @param count  of the rows from the rank whose number is the lane's
  VERBENA_DEVICE void send_rows(uint32_t count) const {
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      const uint32_t one = shuffle(kFullWarp, count, static_cast<int>(rank));
      most = one > most ? one : most;
    }
    const MoeItems items(shape_.ranks, row_packets_, call_.parts.send_bits, blocks_per_grid());
    for (uint32_t item = items.first; item < items.count(most); item += items.step) {
      const uint32_t source = items.rank(item), number = items.token(item);
      if (source == area_.me() || number >= shuffle(kFullWarp, count, static_cast<int>(source))) continue;
      const uint64_t row = source * shape_.max_tokens + number;
      const auto token = static_cast<uint32_t>(load_moe<int32_t>(call_.handle + layout_.sources, row));
      Experts experts{};
      if (kOrder != MoeOrder::kRows || !has_slots_of_ranks()) experts = find_experts(row);
      const uint32_t slot = has_slots_of_ranks() ? area_.me() : find_lowest_moe_bit(experts.which);
      const uint32_t end = items.end(item, row_packets_);
      const int64_t delta = area_.find_delta(source);
      // All lanes take part in warp-wide operations.
      for (uint32_t base = items.begin(item); base < end; base += kAtOnce * kWarpLanes) {
        const uint32_t first = base + lane();
        if constexpr (kOrder == MoeOrder::kExact) {
          for (uint32_t left = experts.which; left != 0; left &= left - 1) {
            const uint32_t k = find_lowest_moe_bit(left);
            send_some(token, k, delta, first, end, find_row_of(row, k));
          }
          continue;
        }
        Data data[kAtOnce] = {};
        find_partial(row, experts, first, end, data);
        const MoePlace mine = area_.find(shape_.find_combine_row(area_.epoch(), token, slot));
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          if (first + i * kWarpLanes < end) area_.send(mine, first + i * kWarpLanes, data[i], delta);
      }
    }
  }
  VERBENA_DEVICE void send_some(uint32_t token, uint32_t place, int64_t delta, uint32_t first, uint32_t end,
                                uint64_t row) const {
    const MoePlace mine = area_.find(shape_.find_combine_row(area_.epoch(), token, place));
    Data data[kAtOnce] = {};
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kWarpLanes < end) data[i] = load_row(row, first + i * kWarpLanes);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kWarpLanes < end) area_.send(mine, first + i * kWarpLanes, data[i], delta);
  }

  VERBENA_DEVICE void receive_rows() {
    const MoeItems items(1, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    for (uint32_t item = items.first; item < items.count(call_.tokens); item += items.step) {
      const uint32_t token = items.token(item), end = items.end(item, row_packets_);
      const bool is_one = lane() < shape_.top_k;
      const uint64_t index = uint64_t{token} * shape_.top_k + lane();
      const int32_t id = is_one ? load_moe<int32_t>(call_.handle + layout_.own_ids, index) : -1;
      const void* const weights = call_.weights == nullptr ? call_.handle + layout_.own_weights
                                                           : static_cast<const void*>(call_.weights);
      const float weight = is_one ? load_moe<float>(weights, index) : 0.0F;
      const auto own_number =
          static_cast<uint32_t>(load_moe<int32_t>(call_.handle + layout_.own_numbers, token));
      const uint64_t own_row = uint64_t{area_.me()} * shape_.max_tokens + own_number;
      const uint32_t rank = experts_.find_rank(id);
      const uint32_t addends =
          kIsExact ? ballot(kFullWarp, id >= 0) : combine_bits(experts_.find_rank_bit(id));
      for (uint32_t base = items.begin(item); base < end; base += kAtOnce * kWarpLanes) {
        Sum sums[kAtOnce] = {};
        bool is_first = true;
        for (uint32_t left = addends; left != 0;) {
          const uint32_t some = take_some(left);
          if (!add_values(token, own_row, some, rank, weight, base + lane(), end, is_first, sums)) return;
          is_first = false;
        }
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t at = base + lane() + i * kWarpLanes;
          if (at < end)
            store_moe<Data>(static_cast<char*>(call_.output) + uint64_t{token} * call_.row_bytes, at,
                            __builtin_bit_cast(Data, sums[i].round()));
        }
      }
    }
  }
  // Removes the lowest kAddends bits from `left` and returns them.
  VERBENA_DEVICE static uint32_t take_some(uint32_t& left) {
    const uint32_t all = left;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAddends; ++i) left &= left - 1;
    return all & ~left;
  }
  // Adds the rows of some bits, in their order: of ranks, or of top_k. All lanes call it.
  VERBENA_DEVICE bool add_values(uint32_t token, uint64_t own_row, uint32_t some, uint32_t rank_of_lane,
                                 float weight_of_lane, uint32_t first, uint32_t end, bool is_first,
                                 Sum (&sums)[kAtOnce]) {
    MoePlace places[kAddends];
    uint32_t members[kAddends], remote = 0, used = 0;
    float weights[kAddends];
    Data data[kAddends][kAtOnce] = {};
    uint32_t left = some;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAddends; ++i) {
      const bool is_used = left != 0;
      const uint32_t bit = is_used ? find_lowest_moe_bit(left) : 0;
      left &= left - 1;
      used |= static_cast<uint32_t>(is_used) << i;
      weights[i] = share(weight_of_lane, bit);
      members[i] = kIsExact ? shuffle(kFullWarp, rank_of_lane, static_cast<int>(bit)) : bit;
      uint32_t slot = bit;
      if (!kIsExact && !has_slots_of_ranks())
        slot = find_lowest_moe_bit(ballot(kFullWarp, rank_of_lane == bit) | 1U << (kWarpLanes - 1));
      places[i] = area_.find(shape_.find_combine_row(area_.epoch(), token, slot));
      if (is_used && members[i] != area_.me()) remote |= 1u << i;
    }
    const uint32_t own = used & ~remote;
    if (own != 0) {
      if constexpr (kIsExact) {
        uint32_t bits = some;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAddends; ++i) {
          const uint32_t k = bits == 0 ? 0 : find_lowest_moe_bit(bits);
          bits &= bits - 1;
          if ((own >> i & 1) == 0) continue;
          const uint64_t addend = find_row_of(own_row, k);
          VERBENA_UNROLL
          for (uint32_t p = 0; p < kAtOnce; ++p)
            if (first + p * kWarpLanes < end) data[i][p] = load_row(addend, first + p * kWarpLanes);
        }
      } else {
        Data partial[kAtOnce] = {};
        find_partial(own_row, kOrder == MoeOrder::kRows ? Experts{} : find_experts(own_row), first, end,
                     partial);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAddends; ++i) {
          VERBENA_UNROLL
          for (uint32_t p = 0; p < kAtOnce; ++p)
            if ((own >> i & 1) != 0) data[i][p] = partial[p];
        }
      }
    }
    // Lanes end together: warp-wide operations need all of them.
    const bool have_come = area_.receive(places, members, remote, first, end, data);
    if (ballot(kFullWarp, !have_come) != 0) return false;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAddends; ++i) {
      if ((used >> i & 1) == 0) continue;
      VERBENA_UNROLL
      for (uint32_t p = 0; p < kAtOnce; ++p) {
        if constexpr (kIsExact) {
          add_product(sums[p], weights[i], data[i][p]);
        } else if (is_first && i == 0) {
          sums[p].begin(__builtin_bit_cast(Elements, data[i][p]));
        } else {
          sums[p].add(__builtin_bit_cast(Elements, data[i][p]));
        }
      }
    }
    return true;
  }

  MoeArea area_;
  const MoeShape& shape_;
  const MoeCombine& call_;
  const MoeHandleLayout& layout_;
  const MoeExperts experts_;
  const uint32_t row_packets_;
};

}  // namespace verbena::device

#endif
