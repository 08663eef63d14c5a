// The second kernel of a dispatch whose rows are grouped by expert: receives the rows and stores each to a
// place in the output for each of its experts on this rank. The first kernel (dispatch.cuh) has received the
// ids of all rows, so a place is known before its row is received, and a row is stored as it comes: it is
// never copied within this rank.
//
// The rows of an expert are in the order of source ranks, then of tokens. An expert that is twice in the ids
// of a token has one row for both. Places are counted, so the result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_PLACE_CUH
#define VERBENA_DEVICE_MOE_PLACE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/moe/row_source.cuh"

namespace verbena::device {

// What a block counts, in shared memory.
struct MoeGroups {
  static constexpr uint32_t kPairs = 512;  // of a tile
  static_assert(kPairs >= kMoeMaxTopK);

  uint32_t rows_before[kMoeMaxRanks + 1];  // rows from the ranks before; then all rows
  // Of each expert: all of its rows; the first one's place; and the place of its next row, in the block's
  // order.
  uint32_t totals[kMoeMaxGroups], begins[kMoeMaxGroups], next[kMoeMaxGroups];
  uint32_t end;  // the place after the last expert's rows
  // The block's rows, a tile at a time: pairs of a row and one of top_k. The expert, -1 where it is another
  // rank's or comes earlier in the row; and the pair's place, -1: none.
  int32_t experts[kPairs], places[kPairs];
};

// @tparam Rows  as MoeDispatchKernel's
template <typename Rows>
class MoePlaceKernel : MoeRows<Rows> {
 public:
  using typename MoeRows<Rows>::Data;

  VERBENA_DEVICE MoePlaceKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                const MoeDispatch& call)
      : MoeRows<Rows>(workspace, shape, call),
        groups_(find_moe_shared<MoeGroups>()),
        width_bits_(shape.top_k == 1 ? 0
                                     : kWarpLanes - static_cast<uint32_t>(__builtin_clz(shape.top_k - 1))) {}

  // Ends the call, by all threads of the grid, after the kernel that has received the ids.
  // @return kInvalid if the output has fewer rows than are needed
  [[nodiscard]] VERBENA_DEVICE SymmStatus run() {
    count_rows();
    const uint32_t bits = call_.parts.receive_bits;
    const uint32_t items = groups_.rows_before[shape_.ranks] << bits;
    const uint32_t share = moe_divide_up(items, blocks_per_grid());
    const uint32_t begin = choose_smaller(block_index() * share, items);
    const uint32_t end = choose_smaller(begin + share, items);
    count_experts(begin >> bits);
    choose_begins();
    if (groups_.end > call_.output_rows) return area_.refuse();
    write_groups();
    const uint32_t last_row = (end + (1U << bits) - 1) >> bits, tile = MoeGroups::kPairs / shape_.top_k;
    for (uint32_t row = begin >> bits; row < last_row; row += tile) {
      const uint32_t next = choose_smaller(row + tile, last_row);
      choose_places(row, next - row);
      move_rows(row, row << bits < begin ? begin : row << bits, choose_smaller(next << bits, end));
      sync_block();
    }
    const SymmStatus status = area_.conclude();
    area_.finish(status);
    return status;
  }

 private:
  using Base = MoeRows<Rows>;
  using Base::area_, Base::shape_, Base::call_, Base::layout_, Base::row_packets_, Base::scale_packets_;
  using Base::copy_part, Base::receive_part, Base::load_scales, Base::store_scales;

  VERBENA_DEVICE static uint32_t choose_smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
  // Rows are numbered through the ranks' counts; returns a row's source rank.
  VERBENA_DEVICE uint32_t find_source(uint32_t number) const {
    uint32_t source = 0;
    while (number >= groups_.rows_before[source + 1]) ++source;
    return source;
  }
  VERBENA_DEVICE uint32_t find_row(uint32_t number, uint32_t source) const {
    return source * shape_.max_tokens + number - groups_.rows_before[source];
  }
  // The ids of a few rows, a lane for each: `first` is the number of the first of the row's ids that is the
  // same.
  struct Id {
    uint32_t number, row, k, first;
    int32_t expert;  // -1: none
  };
  // Calls use(id) for each id of the rows first_row to last_row - 1, with a few adjacent rows in a warp.
  template <typename Use>
  VERBENA_DEVICE void for_each_id(uint32_t first_row, uint32_t last_row, const Use& use) const {
    const uint32_t width = 1U << width_bits_, rows = kWarpLanes >> width_bits_;
    const uint32_t warps = threads_per_block() / kWarpLanes, warp = thread_index() / kWarpLanes;
    for (uint32_t base = first_row + warp * rows; base < last_row; base += warps * rows) {
      Id id{base + (lane() >> width_bits_), 0, lane() & (width - 1), 0, -1};
      if (id.number < last_row && id.k < shape_.top_k) {
        id.row = find_row(id.number, find_source(id.number));
        id.expert = load_moe<int32_t>(call_.handle + layout_.ids, uint64_t{id.row} * shape_.top_k + id.k);
      }
      id.first = id.k;
      for (uint32_t k = width; k-- > 0;) {
        const int32_t other = shuffle_expert(id.expert, (lane() & ~(width - 1)) + k);
        if (k < id.k && other == id.expert) id.first = k;
      }
      if (id.number < last_row && id.k < shape_.top_k) use(id);
    }
  }
  VERBENA_DEVICE static int32_t shuffle_expert(int32_t expert, uint32_t from) {
    return static_cast<int32_t>(shuffle(kFullWarp, static_cast<uint32_t>(expert), static_cast<int>(from)));
  }
  VERBENA_DEVICE static void add(uint32_t* count, uint32_t amount) {
    reduce_add<Order::kRelaxed, Scope::kBlock>(count, amount);
  }

  VERBENA_DEVICE void count_rows() {
    for (uint32_t expert = thread_index(); expert < shape_.local_experts; expert += threads_per_block()) {
      store_relaxed<Scope::kBlock>(groups_.totals + expert, 0);
      store_relaxed<Scope::kBlock>(groups_.next + expert, 0);
    }
    if (thread_index() < kWarpLanes) {
      const uint32_t sum = add_up_moe_lanes(
          lane() < shape_.ranks ? load_moe<uint32_t>(call_.handle + layout_.counts, lane()) : 0);
      if (lane() == 0) groups_.rows_before[0] = 0;
      if (lane() < shape_.ranks) groups_.rows_before[lane() + 1] = sum;
    }
    sync_block();
  }
  // Counts the rows of each expert: all, and those before the block's first row.
  VERBENA_DEVICE void count_experts(uint32_t first) {
    for_each_id(0, groups_.rows_before[shape_.ranks], [&](const Id& id) {
      if (id.expert < 0 || id.first != id.k) return;
      add(groups_.totals + id.expert, 1);
      if (id.number < first) add(groups_.next + id.expert, 1);
    });
    sync_block();
  }
  // The first warp adds up the lengths of the groups, each lane those of adjacent experts.
  VERBENA_DEVICE void choose_begins() {
    const bool is_ragged = call_.grouping == MoeGrouping::kRagged;
    if (thread_index() < kWarpLanes) {
      const uint32_t share = moe_divide_up(shape_.local_experts, uint32_t{kWarpLanes});
      const uint32_t from = choose_smaller(lane() * share, shape_.local_experts);
      const uint32_t to = choose_smaller(from + share, shape_.local_experts);
      const auto find_length = [&](uint32_t expert) {
        return is_ragged ? moe_divide_up(groups_.totals[expert], call_.alignment) * call_.alignment
                         : shape_.ranks * shape_.max_tokens;
      };
      uint32_t own = 0;
      for (uint32_t expert = from; expert < to; ++expert) own += find_length(expert);
      const uint32_t sum = add_up_moe_lanes(own);
      uint32_t begin = sum - own;
      for (uint32_t expert = from; expert < to; ++expert) {
        groups_.begins[expert] = begin;
        store_relaxed<Scope::kBlock>(groups_.next + expert, groups_.next[expert] + begin);
        begin += find_length(expert);
      }
      if (lane() == kWarpLanes - 1) groups_.end = sum;
    }
    sync_block();
  }
  // Writes what the groups are, and marks the rows that have no token, an expert in a block at a time.
  VERBENA_DEVICE void write_groups() const {
    for (uint32_t expert = block_index(); expert < shape_.local_experts; expert += blocks_per_grid()) {
      const uint32_t begin = groups_.begins[expert], total = groups_.totals[expert];
      if (thread_index() == 0) {
        store_moe<uint32_t>(call_.handle + layout_.expert_counts, expert, total);
        store_moe<uint32_t>(call_.handle + layout_.expert_begins, expert, begin);
      }
      const uint32_t end = expert + 1 < shape_.local_experts ? groups_.begins[expert + 1] : groups_.end;
      for (uint32_t row = begin + total + thread_index(); row < end && has_marks();
           row += threads_per_block())
        mark_row(row, -1, -1);
    }
    for (uint32_t row = groups_.end + block_index() * threads_per_block() + thread_index();
         row < call_.output_rows && has_marks(); row += blocks_per_grid() * threads_per_block())
      mark_row(row, -1, -1);
    // Rows after the counts have no places.
    const uint32_t top_k = shape_.top_k;
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      const uint32_t count = groups_.rows_before[source + 1] - groups_.rows_before[source];
      const uint32_t first = source * shape_.max_tokens + count;
      for (uint32_t i = block_index() * threads_per_block() + thread_index();
           i < (shape_.max_tokens - count) * top_k; i += blocks_per_grid() * threads_per_block())
        store_moe<int32_t>(call_.handle + layout_.places, uint64_t{first} * top_k + i, -1);
    }
  }
  VERBENA_DEVICE bool has_marks() const {
    return call_.row_sources != nullptr || call_.row_experts != nullptr;
  }
  VERBENA_DEVICE void mark_row(uint32_t row, int32_t source, int32_t expert) const {
    if (call_.row_sources != nullptr) store_moe<int32_t>(call_.row_sources, row, source);
    if (call_.row_experts != nullptr) store_moe<int32_t>(call_.row_experts, row, expert);
  }

  // Chooses the places of a tile's pairs.
  VERBENA_DEVICE void choose_places(uint32_t first_row, uint32_t rows) {
    const uint32_t pairs = rows * shape_.top_k;
    for_each_id(first_row, first_row + rows, [&](const Id& id) {
      const uint32_t pair = (id.number - first_row) * shape_.top_k + id.k;
      groups_.experts[pair] = id.first == id.k ? id.expert : -1;
      groups_.places[pair] = id.expert < 0 ? -1 : static_cast<int32_t>(pair - id.k + id.first);
    });
    sync_block();
    for (uint32_t pair = thread_index(); pair < pairs; pair += threads_per_block()) {
      if (groups_.places[pair] < 0) continue;
      const auto first = static_cast<uint32_t>(groups_.places[pair]);
      const int32_t id = groups_.experts[first];
      uint32_t place = groups_.next[id];
      for (uint32_t earlier = 0; earlier < first; ++earlier) place += groups_.experts[earlier] == id ? 1 : 0;
      groups_.places[pair] = static_cast<int32_t>(place);
    }
    sync_block();
    for (uint32_t pair = thread_index(); pair < pairs; pair += threads_per_block())
      if (groups_.experts[pair] >= 0) add(groups_.next + groups_.experts[pair], 1);
  }

  // Moves the parts begin to end - 1 of a tile's rows.
  VERBENA_DEVICE void move_rows(uint32_t first_row, uint32_t begin, uint32_t end) {
    const MoeItems items(1, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    for (uint32_t item = begin + thread_index() / kWarpLanes; item < end;
         item += threads_per_block() / kWarpLanes) {
      const uint32_t number = items.token(item), source = find_source(number);
      const uint32_t row = find_row(number, source), pair = (number - first_row) * shape_.top_k;
      const auto token = static_cast<uint32_t>(load_moe<int32_t>(call_.handle + layout_.sources, row));
      const auto to_places = [&](const auto& store) {
        for (uint32_t k = 0; k < shape_.top_k; ++k)
          if (groups_.experts[pair + k] >= 0) store(static_cast<uint32_t>(groups_.places[pair + k]));
      };
      const uint32_t part = items.begin(item), part_end = items.end(item, row_packets_);
      if (part == 0) write_places(row, pair);
      if (source == area_.me()) {
        copy_part(token, part, part_end, to_places);
        if (items.is_last(item)) copy_scales(token, to_places);
        continue;
      }
      const MoePlace from = area_.find(shape_.find_row(area_.epoch(), source, token));
      const bool has_come = receive_part(from, source, part, part_end, to_places) &&
                            (!items.is_last(item) || receive_scales(from, source, to_places));
      // Lanes end together: warp-wide operations need all of them.
      if (ballot(kFullWarp, !has_come) != 0) return;
    }
  }
  VERBENA_DEVICE void write_places(uint32_t row, uint32_t pair) const {
    for (uint32_t k = lane(); k < shape_.top_k; k += kWarpLanes) {
      const int32_t place = groups_.places[pair + k], expert = groups_.experts[pair + k];
      store_moe<int32_t>(call_.handle + layout_.places, uint64_t{row} * shape_.top_k + k, place);
      if (expert >= 0) mark_row(static_cast<uint32_t>(place), static_cast<int32_t>(row), expert);
    }
  }
  // A cast has stored the scales with the elements.
  template <typename ForEachRow>
  VERBENA_DEVICE void copy_scales(uint32_t token, const ForEachRow& for_each_row) const {
    if constexpr (!Rows::kHasScales) {
      for (uint32_t index = lane(); index < scale_packets_; index += kWarpLanes) {
        const Data data = load_scales(token, index);
        for_each_row([&](uint32_t row) { store_scales(row, index, data); });
      }
    }
  }
  template <typename ForEachRow>
  VERBENA_DEVICE bool receive_scales(const MoePlace& from, uint32_t source, const ForEachRow& for_each_row) {
    for (uint32_t index = lane(); index < scale_packets_; index += kWarpLanes) {
      Data data{};
      if (!area_.receive_one(from.find(row_packets_ + index), source, data)) return false;
      for_each_row([&](uint32_t row) { store_scales(row, index, data); });
    }
    return true;
  }

  MoeGroups& groups_;
  const uint32_t width_bits_;  // of the lanes of a row's ids
};

}  // namespace verbena::device

#endif
