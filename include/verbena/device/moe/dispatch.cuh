// Dispatch of a mixture of experts: sends tokens to the ranks of their experts, in one kernel and one NVLink
// hop. A row goes once to each rank that has one of its experts, as packets without flags, directly to the
// slot that its source rank and token determine. One block sends the header, which tells all blocks of the
// receiver which tokens come, while the other blocks send the rows: a row's slot and contents need no other
// token. verbena/moe.h documents the call; libverbena_ops.so has the kernels.
//
// Rows are stored by source rank: from rank r the first counts[r] rows, in the order of its tokens; or
// grouped by expert (place.cuh). The result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_DISPATCH_CUH
#define VERBENA_DEVICE_MOE_DISPATCH_CUH

#include "verbena/device/moe/place.cuh"

namespace verbena::device {

// @tparam Rows  MoeRowBytes or MoeRowCast
// @tparam kIsGrouped  rows are grouped by expert
template <typename Rows, bool kIsGrouped>
class MoeDispatchKernel : MoeRows<Rows> {
 public:
  using typename MoeRows<Rows>::Data;

  VERBENA_DEVICE MoeDispatchKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                   const MoeDispatch& call)
      : MoeRows<Rows>(workspace, shape, call),
        masks_(find_moe_shared<MoeMasks>()),
        ids_(shape, call),
        placement_(shape, call) {}

  // Runs the call, by all threads of the grid, after the wait for earlier kernels.
  // @return kInvalid if the output has fewer rows than are needed
  [[nodiscard]] VERBENA_DEVICE SymmStatus run() {
    if (is_in(kMoeSend)) {
      const uint32_t last = blocks_per_grid() - 1;
      const bool is_last_but_one = block_index() + 1 == last || last == 0;
      if (block_index() == last) send_header();
      if constexpr (kIsGrouped) {
        if (is_last_but_one) placement_.send_counts(area_);
      }
      send_rows();
      if constexpr (kIsGrouped) placement_.send_places(area_);
      if (is_last_but_one) renew_entries();  // FAULT(old_entries_are_not_renewed)
      write_own();
    }
    if (!is_in(kMoeReceive | kMoePlace)) return area_.conclude();
    receive_headers();
    if constexpr (kIsGrouped) {
      sync_block();  // what was counted to send is read
      if (has_rows()) placement_.receive_counts(area_);
    }
    if (const SymmStatus status = area_.conclude(); status != SymmStatus::kDone) return status;
    if constexpr (kIsGrouped) {
      if (has_rows() && !placement_.choose_begins()) return area_.refuse();
    }
    receive_rows();
    if (has_ids()) write_received();
    if constexpr (kIsGrouped) {
      if (has_rows()) placement_.write_groups(masks_);
    }
    const SymmStatus status = area_.conclude();
    if (has_rows()) area_.finish(status);
    return status;
  }

 private:
  using Base = MoeRows<Rows>;
  using Base::area_, Base::shape_, Base::call_, Base::layout_, Base::row_packets_, Base::scale_packets_;
  using Base::kAtOnce, Base::copy_part, Base::load_row, Base::load_scales, Base::store_scales;
  static constexpr uint32_t kIdsAtOnce = 8;  // of a token, that a thread loads at a time

  VERBENA_DEVICE bool is_in(uint32_t phases) const { return (call_.phases & phases) != 0; }
  // Whether this kernel receives ids and weights, and whether rows and scales.
  VERBENA_DEVICE bool has_ids() const { return !kIsGrouped || is_in(kMoeReceive); }
  VERBENA_DEVICE bool has_rows() const { return !kIsGrouped || is_in(kMoePlace); }

  struct Pair {
    int32_t id;
    float weight;
  };

  VERBENA_DEVICE Pair load_pair(uint32_t token, uint32_t k) const {
    if (k >= shape_.top_k) return {-1, 0};
    const float weight =
        call_.weights == nullptr ? 1.0F : load_moe<float>(call_.weights, uint64_t{token} * shape_.top_k + k);
    const int32_t id = ids_.load(token, k);
    return {id, id < 0 ? 0 : weight};
  }
  VERBENA_DEVICE void store_pair(uint64_t row, uint32_t k, const Pair& pair) const {
    if (k >= shape_.top_k) return;
    store_moe<int32_t>(call_.handle + layout_.ids, row * shape_.top_k + k, pair.id);
    store_moe<float>(call_.handle + layout_.weights, row * shape_.top_k + k, pair.weight);
  }

  // Returns the ranks of a thread's token, a bit each. Loads ids twice rather than branch.
  VERBENA_DEVICE uint32_t find_ranks(uint32_t token) const {
    uint32_t ranks = 0;
    const uint32_t last = shape_.top_k - 1;
    for (uint32_t first = 0; first <= last; first += kIdsAtOnce) {
      int32_t ids[kIdsAtOnce];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kIdsAtOnce; ++i)
        ids[i] = ids_.load(token, first + i < last ? first + i : last);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kIdsAtOnce; ++i) ranks |= ids_.experts().find_rank_bit(ids[i]);
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
      if (!area_.has_trouble() && shape_.is_living(lane()))
        area_.send_entry(header + word * kMoeEntryBytes, {bits_of_lane, call_.tokens}, lane());
    }
  }
  // Sends entries that this call does not need, empty, by all threads of a block: those of a token, or the
  // counts. Every dispatch does so with other ones in turn: no entry gets so old that its tag is a later
  // call's.
  VERBENA_DEVICE void renew_entries() const {
    const uint32_t token = static_cast<uint32_t>(area_.epoch() / kMoeCopies) % (shape_.max_tokens + 1);
    const bool are_counts = token == shape_.max_tokens;
    const bool are_sent = kIsGrouped && (are_counts || token < call_.tokens);
    if (are_sent || shape_.count_entries() == 0 || area_.has_trouble()) return;
    const uint64_t packet = are_counts ? shape_.find_counts(area_.epoch(), area_.me())
                                       : shape_.find_places(area_.epoch(), area_.me(), token);
    const uint32_t entries = are_counts ? shape_.count_entries() : shape_.top_k;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
      for (uint32_t i = thread_index(); i < entries && shape_.is_living(rank); i += threads_per_block())
        area_.send_entry(area_.find(packet).data + i * kMoeEntryBytes, {}, rank);
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
        const bool has_come = word >= words || !shape_.is_living(rank) ||
                              area_.receive_entry(header + word * kMoeEntryBytes, rank, entry);
        if (ballot(kFullWarp, !has_come) != 0) return;
        const auto own = static_cast<uint32_t>(__builtin_popcount(entry.bits));
        const uint32_t sum = add_up_moe_lanes(own, words);
        if (word < words) {
          masks_.words[rank * words + word] = entry.bits;
          masks_.before[rank * words + word] = before + sum - own;
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
      const int32_t local = ids_.experts().make_local(static_cast<int32_t>(id), area_.me());
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
      const int32_t id = lane() < shape_.top_k ? ids_.load(token, lane()) : -1;
      // Called after the row's loads have been issued: only then the ids and the failure word are needed.
      const auto find_peers = [&] {
        // FAULT(dead_ranks_get_rows)
        const uint32_t ranks = combine_bits(ids_.experts().find_rank_bit(id)) & shape_.living;
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
  // The scales of grouped rows come with the rows.
  VERBENA_DEVICE uint32_t first_received(uint32_t first) const { return kIsGrouped ? scale_packets_ : first; }
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
    const uint32_t words = shape_.mask_words();
    uint32_t tokens = 0;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
      tokens = masks_.tokens[rank] > tokens ? masks_.tokens[rank] : tokens;
    for (uint32_t item = items.first; item < items.count(tokens); item += items.step) {
      const uint32_t source = items.rank(item), token = items.token(item);
      if (source >= shape_.ranks || !masks_.has(words, source, token)) continue;
      const uint32_t row = source * shape_.max_tokens + masks_.find_number(words, source, token);
      const bool has_tail = items.is_last(item) && has_ids();
      if (has_tail && lane() == 0)
        store_moe<int32_t>(call_.handle + layout_.sources, row, static_cast<int32_t>(token));
      const MoePlace from = area_.find(shape_.find_row(area_.epoch(), source, token));
      bool have_come = true;
      if constexpr (kIsGrouped) {
        if (has_rows()) have_come = receive_grouped(items, item, from, source, token, row);
      } else {
        const auto to_row = [row](const auto& store) { store(row); };
        const uint32_t begin = items.begin(item), end = items.end(item, row_packets_);
        if (source == area_.me()) {
          copy_part(token, begin, end, to_row);
        } else {
          have_come = this->template receive_part<false>(from, source, begin, end, to_row);
        }
      }
      if (has_tail && source == area_.me()) copy_tail(token, row);
      if (has_tail && source != area_.me()) have_come = have_come && receive_tail(from, source, row);
      // Lanes end together: warp-wide operations need all of them.
      if (ballot(kFullWarp, !have_come) != 0) return;
    }
  }
  // Receives an item's part of a row, with the last part its scales, and stores it to the row's places.
  VERBENA_DEVICE bool receive_grouped(const MoeItems& items, uint32_t item, const MoePlace& from,
                                      uint32_t source, uint32_t token, uint32_t row) {
    MoePlacement::OfRow places(placement_, area_, source, token);
    const auto to_places = [&](const auto& store) { places.for_each(store); };
    const uint32_t begin = items.begin(item), end = items.end(item, row_packets_);
    bool have_come = true;
    if (source == area_.me()) {
      copy_part(token, begin, end, to_places);
    } else {
      have_come = this->template receive_part<true>(from, source, begin, end, to_places);
    }
    if (items.is_last(item) && (source != area_.me() || !Rows::kHasScales))
      have_come = have_come && receive_scales(from, source, token, to_places);
    if (begin == 0 && have_come) places.write(row);
    return have_come && !area_.has_trouble();
  }
  // A cast has stored the scales of this rank's rows with the elements.
  template <typename ForEachRow>
  VERBENA_DEVICE bool receive_scales(const MoePlace& from, uint32_t source, uint32_t token,
                                     const ForEachRow& for_each_row) {
    for (uint32_t base = 0; base < scale_packets_; base += kWarpLanes) {
      const uint32_t index = base + lane();
      const bool is_there = index < scale_packets_;
      Data data{};
      bool has_come = true;
      if (is_there && source == area_.me()) data = load_scales(token, index);
      if (is_there && source != area_.me())
        has_come = area_.receive_one(from.find(row_packets_ + index), source, data);
      if (ballot(kFullWarp, !has_come) != 0) return false;
      for_each_row([&](uint32_t place) {
        if (is_there) store_scales(place, index, data);
      });
    }
    return true;
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
      Pair pair = token < call_.tokens ? load_pair(token, i % shape_.top_k) : Pair{-1, 0};
      // FAULT(combine_waits_for_dead_ranks)
      if (!shape_.is_living(ids_.experts().find_rank(pair.id))) pair = {-1, 0};
      store_moe<int32_t>(call_.handle + layout_.own_ids, i, pair.id);
      store_moe<float>(call_.handle + layout_.own_weights, i, pair.weight);
    });
  }
  // Rows after the count, and which of this rank's tokens are its own.
  VERBENA_DEVICE void write_received() const {
    const uint32_t me = area_.me(), words = shape_.mask_words();
    for_each(shape_.ranks * shape_.max_tokens, [&](uint32_t row) {
      const uint32_t rank = row / shape_.max_tokens, number = row - rank * shape_.max_tokens;
      if (rank == me)
        store_moe<int32_t>(
            call_.handle + layout_.own_numbers, number,
            masks_.has(words, me, number) ? static_cast<int32_t>(masks_.find_number(words, me, number)) : -1);
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
  const MoeIds ids_;
  typename MoePlacementOf<kIsGrouped>::Type placement_;
};

}  // namespace verbena::device

#endif
