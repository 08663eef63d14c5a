// Dispatch of a mixture of experts: sends tokens to the ranks of their experts, in one kernel and one NVLink
// hop. A row goes once to each rank that has one of its experts, as packets without flags, directly to the
// slot that its source rank and token determine. One block sends the header, which tells all blocks of the
// receiver which tokens come, while the other blocks send the rows: a row's slot and contents need no other
// token. verbena/moe.h documents the call; libverbena_ops.so has the kernels.
//
// Rows are stored by source rank: from rank r the first counts[r] rows, in the order of its tokens. The
// result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_DISPATCH_CUH
#define VERBENA_DEVICE_MOE_DISPATCH_CUH

#include "verbena/device/moe/row_source.cuh"

namespace verbena::device {

// @tparam Rows  MoeRowBytes or MoeRowCast
template <typename Rows>
class MoeDispatchKernel {
 public:
  using Data = Packet::Data;

  VERBENA_DEVICE MoeDispatchKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                   const MoeDispatch& call)
      : area_(workspace, shape, MoeKind::kDispatch),
        shape_(shape),
        call_(call),
        layout_(MoeHandleLayout::of(shape)),
        masks_(find_moe_masks()),
        experts_(shape),
        row_packets_(call.row_bytes / Packet::kBytes),
        scale_packets_(static_cast<uint32_t>(moe_divide_up(call.scale_bytes, Packet::kBytes))),
        packets_(row_packets_ + scale_packets_ + shape.pair_packets()) {}

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
    write_received();
    receive_rows();
    const SymmStatus status = area_.conclude();
    area_.finish(status);
    return status;
  }

 private:
  // Packets of a row that a thread moves at a time; ids of a token that a thread loads at a time.
  static constexpr uint32_t kAtOnce = 4, kIdsAtOnce = 8;
  // Of more blocks than these the last sends the header only.
  static constexpr uint32_t kFewBlocks = 8;

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

  // Returns the ranks of a thread's token, a bit each.
  VERBENA_DEVICE uint32_t find_ranks(uint32_t token) const {
    uint32_t ranks = 0;
    for (uint32_t first = 0; first < shape_.top_k; first += kIdsAtOnce) {
      int32_t ids[kIdsAtOnce];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kIdsAtOnce; ++i)
        ids[i] = first + i < shape_.top_k ? load_id(token, first + i) : -1;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kIdsAtOnce; ++i) ranks |= 1u << experts_.find_rank(ids[i]);
    }
    return ranks;
  }
  // By all threads of a block. A warp has 32 tokens: a word of a mask is a ballot.
  VERBENA_DEVICE void send_header() const {
    const uint32_t warp = thread_index() / kWarpLanes, warps = threads_per_block() / kWarpLanes;
    const uint32_t words = shape_.mask_words();
    for (uint32_t word = warp; word < words; word += warps) {
      const uint32_t token = word * kMoeMaskBits + lane();
      const uint32_t wanted = token < call_.tokens ? find_ranks(token) : 0;
      uint32_t bits_of_lane = 0;
      for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
        const uint32_t bits = ballot(kFullWarp, (wanted >> rank & 1) != 0);
        if (lane() == rank) bits_of_lane = bits;
      }
      if (lane() < shape_.ranks) masks_.words[lane()][word] = bits_of_lane;
    }
    sync_block();
    for (uint32_t rank = warp; rank < shape_.ranks && !area_.has_trouble(); rank += warps) send_entries(rank);
    sync_block();  // the masks are overwritten by what comes
  }
  VERBENA_DEVICE void send_entries(uint32_t rank) const {
    char* const header = area_.find(shape_.find_header(area_.epoch(), area_.me())).data;
    uint32_t before = 0;
    for (uint32_t first = 0; first < shape_.mask_words(); first += kWarpLanes) {
      const uint32_t word = first + lane();
      const uint32_t bits = word < shape_.mask_words() ? masks_.words[rank][word] : 0;
      const auto own = static_cast<uint32_t>(__builtin_popcount(bits));
      uint32_t sum = own;
      VERBENA_UNROLL
      for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
        const uint32_t lower = shuffle(kFullWarp, sum, static_cast<int>(lane() - step) & 31);
        if (lane() >= step) sum += lower;
      }
      if (word < shape_.mask_words())
        area_.send_entry(header + word * kMoeEntryBytes, {bits, before + sum - own}, rank);
      before += shuffle(kFullWarp, sum, kWarpLanes - 1);
    }
  }
  VERBENA_DEVICE void receive_headers() {
    const uint32_t words = shape_.mask_words();
    for (uint32_t i = thread_index(); i < shape_.ranks * words; i += threads_per_block()) {
      const uint32_t rank = i / words, word = i % words;
      const char* const header = area_.find(shape_.find_header(area_.epoch(), rank)).data;
      MoeEntry entry{};
      if (!area_.receive_entry(header + word * kMoeEntryBytes, rank, entry)) return;
      masks_.words[rank][word] = entry.bits;
      masks_.before[rank][word] = entry.before;
    }
  }

  VERBENA_DEVICE MessageBytes<char*> find_scales(const void* base, uint64_t row, uint64_t stride) const {
    return {static_cast<char*>(const_cast<void*>(base)) + row * stride, call_.scale_bytes};
  }
  VERBENA_DEVICE MessageBytes<char*> find_output_scales(uint64_t row) const {
    return find_scales(call_.output_scales, row, call_.scale_bytes);
  }
  // Loads a packet of this rank's row: of its elements, then of its scales, then of its experts with their
  // weights, two in a packet. All lanes of a warp call it with adjacent packets. A cast makes the scales, and has no packets
  // of them here.
  VERBENA_DEVICE Data load_packet(uint32_t token, uint32_t index, uint32_t end, Data& scales) const {
    const auto* const row = static_cast<const char*>(call_.rows) + token * call_.row_stride;
    const bool is_row = index < row_packets_ && index < end;
    const Data data = Rows::load(row, index, is_row, call_.has_power_scales, scales);
    if (is_row || index >= end) return data;
    const uint32_t number = index - row_packets_;
    if (number < scale_packets_)
      return Rows::kHasScales ? Data{} : find_scales(call_.scales, token, call_.scale_stride).load(number);
    const uint32_t k = 2 * (number - scale_packets_);
    const Pair first = load_pair(token, k), second = load_pair(token, k + 1);
    return {static_cast<uint32_t>(first.id), __builtin_bit_cast(uint32_t, first.weight),
            static_cast<uint32_t>(second.id), __builtin_bit_cast(uint32_t, second.weight)};
  }
  VERBENA_DEVICE bool is_cast_scale(uint32_t index) const {
    return Rows::kHasScales && index >= row_packets_ && index < row_packets_ + scale_packets_;
  }
  // Stores a packet of a row that came.
  VERBENA_DEVICE void store_packet(uint64_t row, uint32_t index, const Data& data) const {
    if (index < row_packets_)
      return store_moe<Data>(static_cast<char*>(call_.output) + row * call_.row_bytes, index, data);
    const uint32_t number = index - row_packets_;
    if (number < scale_packets_) return find_output_scales(row).store(number, data);
    const uint32_t k = 2 * (number - scale_packets_);
    const auto store_one = [&](uint32_t at, uint32_t id, uint32_t weight) {
      const int32_t local = experts_.make_local(static_cast<int32_t>(id), area_.me());
      store_pair(row, at, {local, local < 0 ? 0 : __builtin_bit_cast(float, weight)});
    };
    store_one(k, data.x, data.y);
    store_one(k + 1, data.z, data.w);
  }

  VERBENA_DEVICE void send_rows() const {
    if (area_.has_trouble()) return;
    const uint32_t blocks = blocks_per_grid();
    const MoeItems items(call_.tokens, packets_, blocks > kFewBlocks ? blocks - 1 : blocks);
    for (uint32_t item = items.first; item < items.count(); item += items.step) {
      const uint32_t token = items.row(item), end = items.end(item, packets_);
      const MoePlace mine = area_.find(shape_.find_row(area_.epoch(), area_.me(), token));
      const int32_t id = lane() < shape_.top_k ? load_id(token, lane()) : -1;
      for (uint32_t base = items.begin(item); base < end; base += kAtOnce * kWarpLanes) {
        const uint32_t first = base + lane();
        Data data[kAtOnce], scales[kAtOnce];
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          data[i] = load_packet(token, first + i * kWarpLanes, end, scales[i]);
        // Only now the ids are needed.
        const uint32_t ranks = combine_bits(1u << experts_.find_rank(id));
        for (uint32_t left = ranks & ((1u << shape_.ranks) - 1) & ~(1u << area_.me()); left != 0;
             left &= left - 1) {
          const uint32_t peer = find_lowest_moe_bit(left);
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kAtOnce; ++i) {
            const uint32_t index = first + i * kWarpLanes;
            if (index < end && !is_cast_scale(index)) area_.send(mine, index, data[i], peer);
            if (Rows::kHasScales && lane() == 0 && index < row_packets_ && index < end)
              area_.send(mine, row_packets_ + index / kWarpLanes, scales[i], peer);
          }
        }
      }
    }
  }
  // Copies this rank's row to its own experts.
  VERBENA_DEVICE void copy_row(uint32_t token, uint64_t row, uint32_t begin, uint32_t end) const {
    for (uint32_t base = begin; base < end; base += kAtOnce * kWarpLanes) {
      const uint32_t first = base + lane();
      Data data[kAtOnce], scales[kAtOnce];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        data[i] = load_packet(token, first + i * kWarpLanes, end, scales[i]);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t index = first + i * kWarpLanes;
        if (index < end && !is_cast_scale(index)) store_packet(row, index, data[i]);
        if (Rows::kHasScales && lane() == 0 && index < row_packets_ && index < end)
          find_output_scales(row).store(index / kWarpLanes, scales[i]);
      }
    }
  }
  VERBENA_DEVICE void receive_rows() {
    const uint32_t words = shape_.mask_words();
    const MoeRows rows(lane() < shape_.ranks ? masks_.count(lane(), words) : 0, shape_.ranks, kMoeMaxRanks);
    const MoeItems items(rows.total(), packets_, blocks_per_grid());
    for (uint32_t item = items.first; item < items.count(); item += items.step) {
      uint32_t number = items.row(item);
      const uint32_t source = rows.find_rank(number);
      const uint32_t token = masks_.find_token(source, number, words);
      const uint64_t row = uint64_t{source} * shape_.max_tokens + number;
      const uint32_t begin = items.begin(item), end = items.end(item, packets_);
      if (items.part(item) == 0 && lane() == 0)
        store_moe<int32_t>(call_.handle + layout_.sources, row, static_cast<int32_t>(token));
      if (source == area_.me()) {
        copy_row(token, row, begin, end);
        continue;
      }
      const MoePlace place = area_.find(shape_.find_row(area_.epoch(), source, token));
      bool have_come = true;
      for (uint32_t first = begin + lane(); first < end && have_come; first += kAtOnce * kWarpLanes) {
        Data data[1][kAtOnce] = {};
        have_come = area_.receive({place}, {source}, 1, first, end, data);
        if (!have_come) break;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          if (first + i * kWarpLanes < end) store_packet(row, first + i * kWarpLanes, data[0][i]);
      }
      // Lanes end together: warp-wide operations need all of them.
      if (ballot(kFullWarp, !have_come) != 0) return;
    }
  }

  // Writes the parts of the handle that rows do not bring, divided among the threads of the grid from the last
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
  VERBENA_DEVICE void write_received() const {
    const uint32_t max_tokens = shape_.max_tokens;
    for_each(shape_.ranks, [&](uint32_t rank) {
      store_moe<int32_t>(call_.handle + layout_.counts, rank,
                         static_cast<int32_t>(masks_.count(rank, shape_.mask_words())));
    });
    for_each(max_tokens, [&](uint32_t token) {
      const uint32_t me = area_.me();
      store_moe<int32_t>(call_.handle + layout_.own_numbers, token,
                         masks_.has(me, token) ? static_cast<int32_t>(masks_.find_number(me, token)) : -1);
    });
    for_each(shape_.ranks * max_tokens, [&](uint32_t row) {
      if (row % max_tokens < masks_.count(row / max_tokens, shape_.mask_words())) return;
      store_moe<int32_t>(call_.handle + layout_.sources, row, -1);
      for (uint32_t k = 0; k < shape_.top_k; ++k) store_pair(row, k, {-1, 0});
    });
  }

  MoeArea area_;
  const MoeShape& shape_;
  const MoeDispatch& call_;
  const MoeHandleLayout layout_;
  MoeMasks& masks_;
  const MoeExperts experts_;
  const uint32_t row_packets_, scale_packets_, packets_;
};

}  // namespace verbena::device

#endif
