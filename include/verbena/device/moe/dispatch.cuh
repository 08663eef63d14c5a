// Dispatch of a mixture of experts: sends tokens to the ranks of their experts, in one kernel and one NVLink
// hop. A row goes once to each rank that has one of its experts, as packets without flags, directly to the
// slot that its source rank and token determine. One block sends the header, which tells all blocks of the
// receiver which tokens come, while the other blocks send the rows: a row's slot and contents need no other
// token. verbena/moe.h documents the call; libverbena_ops.so has the kernels.
//
// Rows are stored by source rank: from rank r the first counts[r] rows, in the order of its tokens. If they
// are to be grouped by expert, this kernel receives their ids alone, and a second one the rows (place.cuh).
// The result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_DISPATCH_CUH
#define VERBENA_DEVICE_MOE_DISPATCH_CUH

#include "verbena/device/moe/row_source.cuh"

namespace verbena::device {

// @tparam Rows  MoeRowBytes or MoeRowCast
template <typename Rows>
class MoeDispatchKernel : MoeRows<Rows> {
 public:
  using typename MoeRows<Rows>::Data;

  VERBENA_DEVICE MoeDispatchKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                   const MoeDispatch& call)
      : MoeRows<Rows>(workspace, shape, call), masks_(find_moe_shared<MoeMasks>()), experts_(shape) {}

  // Runs the call, by all threads of the grid, after the wait for earlier kernels.
  [[nodiscard]] VERBENA_DEVICE SymmStatus run() {
    if ((call_.phases & kMoeSend) != 0) {
      if (block_index() == blocks_per_grid() - 1) send_header();
      send_rows();
      write_own();
    }
    if ((call_.phases & kMoeReceive) == 0) return area_.conclude();
    receive_headers();
    if (const SymmStatus status = area_.conclude(); status != SymmStatus::kDone) return status;
    receive_rows();
    write_received();
    const SymmStatus status = area_.conclude();
    if (!is_placed_later()) area_.finish(status);
    return status;
  }

 private:
  using Base = MoeRows<Rows>;
  using Base::area_, Base::shape_, Base::call_, Base::layout_, Base::row_packets_, Base::scale_packets_;
  using Base::kAtOnce, Base::copy_part, Base::receive_part, Base::load_row, Base::load_scales,
      Base::store_scales;
  static constexpr uint32_t kIdsAtOnce = 8;  // of a token, that a thread loads at a time

  VERBENA_DEVICE bool is_placed_later() const { return call_.grouping != MoeGrouping::kRank; }

  struct Pair {
    int32_t id;
    float weight;
  };

  VERBENA_DEVICE int32_t load_id(uint32_t token, uint32_t k) const {
    const uint64_t index = token * call_.id_stride + k;
    return experts_.check(call_.has_long_ids != 0 ? load_moe<int64_t>(call_.ids, index)
                                                  : int64_t{load_moe<int32_t>(call_.ids, index)});
  }
  VERBENA_DEVICE Pair load_pair(uint32_t token, uint32_t k) const {
    if (k >= shape_.top_k) return {-1, 0};
    const float weight =
        call_.weights == nullptr ? 1.0F : load_moe<float>(call_.weights, uint64_t{token} * shape_.top_k + k);
    const int32_t id = load_id(token, k);
    return {id, id < 0 ? 0 : weight};
  }
  VERBENA_DEVICE void store_pair(uint64_t row, uint32_t k, const Pair& pair) const {
    if (k >= shape_.top_k) return;
    store_moe<int32_t>(call_.handle + layout_.ids, row * shape_.top_k + k, pair.id);
    store_moe<float>(call_.handle + layout_.weights, row * shape_.top_k + k, pair.weight);
  }

  // Returns the ranks of a thread's token, a bit each, and bits from kMoeMaxRanks on. Loads ids twice
  // rather than branch.
  VERBENA_DEVICE uint32_t find_ranks(uint32_t token) const {
    uint32_t ranks = 0;
    const uint32_t last = shape_.top_k - 1;
    for (uint32_t first = 0; first <= last; first += kIdsAtOnce) {
      int32_t ids[kIdsAtOnce];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kIdsAtOnce; ++i) ids[i] = load_id(token, first + i < last ? first + i : last);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kIdsAtOnce; ++i) ranks |= 1u << experts_.find_rank(ids[i]);
    }
    return ranks;
  }
  // By all threads of a block. A warp has 32 tokens: an entry is a ballot, which one lane sends.
  VERBENA_DEVICE void send_header() const {
    char* const header = area_.find(shape_.find_header(area_.epoch(), area_.me())).data;
    for (uint32_t word = thread_index() / kWarpLanes; word < shape_.mask_words();
         word += threads_per_block() / kWarpLanes) {
      const uint32_t token = word * kMoeMaskBits + lane();
      const bool is_token = token < call_.tokens;
      const uint32_t wanted = call_.tokens == 0 ? 0 : find_ranks(is_token ? token : call_.tokens - 1);
      uint32_t bits_of_lane = 0;
      for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
        const uint32_t bits = ballot(kFullWarp, is_token && (wanted >> rank & 1) != 0);
        if (lane() == rank) bits_of_lane = bits;
      }
      if (!area_.has_trouble() && lane() < shape_.ranks)
        area_.send_entry(header + word * kMoeEntryBytes, {bits_of_lane, call_.tokens}, lane());
    }
  }
  // A warp receives the header of a rank.
  VERBENA_DEVICE void receive_headers() {
    const uint32_t warps = threads_per_block() / kWarpLanes, words = shape_.mask_words();
    for (uint32_t rank = thread_index() / kWarpLanes; rank < shape_.ranks; rank += warps) {
      const char* const header = area_.find(shape_.find_header(area_.epoch(), rank)).data;
      uint32_t before = 0;
      MoeEntry entry{};
      for (uint32_t first = 0; first < words; first += kWarpLanes) {
        const uint32_t word = first + lane();
        entry.bits = 0;
        const bool has_come =
            word >= words || area_.receive_entry(header + word * kMoeEntryBytes, rank, entry);
        if (ballot(kFullWarp, !has_come) != 0) return;
        const auto own = static_cast<uint32_t>(__builtin_popcount(entry.bits));
        const uint32_t sum = add_up_moe_lanes(own, words);
        if (word < words) {
          masks_.words[rank][word] = entry.bits;
          masks_.before[rank][word] = before + sum - own;
        }
        before += shuffle(kFullWarp, sum,
                          static_cast<int>(words - first < kWarpLanes ? words - first : kWarpLanes) - 1);
      }
      if (lane() != 0) continue;
      masks_.counts[rank] = before;
      masks_.tokens[rank] = entry.tokens;
    }
  }

  // The tail of a row: its scales, then its experts with their weights, two in a packet. A cast sends the
  // scales with the elements.
  VERBENA_DEVICE uint32_t tail_packets() const { return scale_packets_ + shape_.pair_packets(); }
  VERBENA_DEVICE uint32_t first_of_tail() const { return Rows::kHasScales ? scale_packets_ : 0; }
  VERBENA_DEVICE Data load_tail(uint32_t token, uint32_t index) const {
    if (index < scale_packets_) return load_scales(token, index);
    const uint32_t k = 2 * (index - scale_packets_);
    const Pair first = load_pair(token, k), second = load_pair(token, k + 1);
    return {static_cast<uint32_t>(first.id), __builtin_bit_cast(uint32_t, first.weight),
            static_cast<uint32_t>(second.id), __builtin_bit_cast(uint32_t, second.weight)};
  }
  VERBENA_DEVICE void store_tail(uint64_t row, uint32_t index, const Data& data) const {
    if (index < scale_packets_) return store_scales(static_cast<uint32_t>(row), index, data);
    const uint32_t k = 2 * (index - scale_packets_);
    const auto store_one = [&](uint32_t at, uint32_t id, uint32_t weight) {
      const int32_t local = experts_.make_local(static_cast<int32_t>(id), area_.me());
      store_pair(row, at, {local, local < 0 ? 0 : __builtin_bit_cast(float, weight)});
    };
    store_one(k, data.x, data.y);
    store_one(k + 1, data.z, data.w);
  }
  // The last part of a row has its tail too.
  VERBENA_DEVICE void send_rows() const {
    // The block that sends the header comes late. It has rows only if the other blocks would need another
    // round for them.
    const uint32_t others = blocks_per_grid() - 1, warps = threads_per_block() / kWarpLanes;
    const bool are_enough = (call_.tokens << call_.parts.send_bits) <= others * warps;
    const MoeItems items(1, row_packets_, call_.parts.send_bits, are_enough ? others : others + 1);
    for (uint32_t item = items.first; item < items.count(call_.tokens); item += items.step) {
      const uint32_t token = items.token(item);
      const MoePlace mine = area_.find(shape_.find_row(area_.epoch(), area_.me(), token));
      const int32_t id = lane() < shape_.top_k ? load_id(token, lane()) : -1;
      // Called after the row's loads have been issued: only then the ids and the failure word are needed.
      const auto find_peers = [&] {
        const uint32_t ranks = combine_bits(1u << experts_.find_rank(id)) & ((1u << shape_.ranks) - 1);
        return area_.has_trouble() ? 0 : ranks & ~(1u << area_.me());
      };
      const uint32_t end = items.end(item, row_packets_);
      for (uint32_t base = items.begin(item); base < end; base += kAtOnce * kWarpLanes) {
        const uint32_t first = base + lane();
        Data data[kAtOnce], scales[kAtOnce];
        load_row(token, first, end, data, scales);
        for (uint32_t left = find_peers(); left != 0; left &= left - 1) {
          const int64_t delta = area_.find_delta(find_lowest_moe_bit(left));
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kAtOnce; ++i) {
            const uint32_t index = first + i * kWarpLanes;
            if (index < end) area_.send(mine, index, data[i], delta);
            if (Rows::kHasScales && lane() == 0 && index < end)
              area_.send(mine, row_packets_ + index / kWarpLanes, scales[i], delta);
          }
        }
      }
      if (!items.is_last(item)) continue;
      const uint32_t peers = find_peers();
      for (uint32_t index = first_of_tail() + lane(); index < tail_packets(); index += kWarpLanes) {
        const Data data = load_tail(token, index);
        for (uint32_t left = peers; left != 0; left &= left - 1)
          area_.send(mine, row_packets_ + index, data, area_.find_delta(find_lowest_moe_bit(left)));
      }
    }
  }
  // The scales of rows that are placed later come with them.
  VERBENA_DEVICE uint32_t first_received(uint32_t first) const {
    return is_placed_later() ? scale_packets_ : first;
  }
  VERBENA_DEVICE void copy_tail(uint32_t token, uint64_t row) const {
    for (uint32_t index = first_received(first_of_tail()) + lane(); index < tail_packets();
         index += kWarpLanes)
      store_tail(row, index, load_tail(token, index));
  }
  VERBENA_DEVICE bool receive_tail(const MoePlace& place, uint32_t source, uint64_t row) {
    for (uint32_t index = first_received(0) + lane(); index < tail_packets(); index += kWarpLanes) {
      Data data{};
      if (!area_.receive_one(place.find(row_packets_ + index), source, data)) return false;
      store_tail(row, index, data);
    }
    return true;
  }
  VERBENA_DEVICE void receive_rows() {
    const MoeItems items(shape_.ranks, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    uint32_t tokens = 0;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
      tokens = masks_.tokens[rank] > tokens ? masks_.tokens[rank] : tokens;
    for (uint32_t item = items.first; item < items.count(tokens); item += items.step) {
      const uint32_t source = items.rank(item), token = items.token(item);
      if (source >= shape_.ranks || !masks_.has(source, token)) continue;
      const uint32_t row = source * shape_.max_tokens + masks_.find_number(source, token);
      const auto to_row = [row](const auto& store) { store(row); };
      const bool is_last = items.is_last(item);
      const uint32_t begin = items.begin(item);
      const uint32_t end = is_placed_later() ? begin : items.end(item, row_packets_);
      if (is_last && lane() == 0)
        store_moe<int32_t>(call_.handle + layout_.sources, row, static_cast<int32_t>(token));
      if (source == area_.me()) {
        copy_part(token, begin, end, to_row);
        if (is_last) copy_tail(token, row);
        continue;
      }
      const MoePlace place = area_.find(shape_.find_row(area_.epoch(), source, token));
      bool have_come = receive_part(place, source, begin, end, to_row);
      if (is_last) have_come = have_come && receive_tail(place, source, row);
      // Lanes end together: warp-wide operations need all of them.
      if (ballot(kFullWarp, !have_come) != 0) return;
    }
  }

  // Write the parts of the handle that rows do not bring, divided among the threads of the grid from the last
  // on: the first have rows.
  template <typename Write>
  VERBENA_DEVICE void for_each(uint32_t count, const Write& write) const {
    const uint32_t threads = blocks_per_grid() * threads_per_block();
    for (uint32_t i = threads - 1 - (thread_index() * blocks_per_grid() + block_index()); i < count;
         i += threads)
      write(i);
  }
  VERBENA_DEVICE void write_own() const {
    for_each(shape_.max_tokens * shape_.top_k, [&](uint32_t i) {
      const uint32_t token = i / shape_.top_k;
      const Pair pair = token < call_.tokens ? load_pair(token, i % shape_.top_k) : Pair{-1, 0};
      store_moe<int32_t>(call_.handle + layout_.own_ids, i, pair.id);
      store_moe<float>(call_.handle + layout_.own_weights, i, pair.weight);
    });
  }
  // Rows after the count, and which of this rank's tokens are its own.
  VERBENA_DEVICE void write_received() const {
    const uint32_t me = area_.me();
    for_each(shape_.ranks * shape_.max_tokens, [&](uint32_t row) {
      const uint32_t rank = row / shape_.max_tokens, number = row - rank * shape_.max_tokens;
      if (rank == me)
        store_moe<int32_t>(
            call_.handle + layout_.own_numbers, number,
            masks_.has(me, number) ? static_cast<int32_t>(masks_.find_number(me, number)) : -1);
      const uint32_t count = masks_.counts[rank];
      if (number == 0) store_moe<int32_t>(call_.handle + layout_.counts, rank, static_cast<int32_t>(count));
      if (row == 0) {
        store_moe<uint32_t>(call_.handle + layout_.stamp, 0, make_moe_stamp(shape_));
        store_moe<uint32_t>(call_.handle + layout_.stamp, 1, call_.tokens);
        store_moe<uint32_t>(call_.handle + layout_.stamp, 2, static_cast<uint32_t>(call_.grouping));
      }
      if (number < count) return;
      store_moe<int32_t>(call_.handle + layout_.sources, row, -1);
      for (uint32_t k = 0; k < shape_.top_k; ++k) store_pair(row, k, {-1, 0});
    });
  }

  MoeMasks& masks_;
  const MoeExperts experts_;
};

}  // namespace verbena::device

#endif
