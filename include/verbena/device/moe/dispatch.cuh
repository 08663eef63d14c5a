// Dispatch of a mixture of experts: sends tokens to the ranks of their experts, in one kernel and one NVLink
// hop. A row goes once to each rank that has one of its experts, as packets without flags, directly to the
// slot that its source rank and token determine. The header of each block tells the receiver which tokens
// come. verbena/moe.h documents the call; libverbena_ops.so has the kernels.
//
// Rows are stored by source rank: from rank r the first counts[r] rows, in the order of its tokens. The
// result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_DISPATCH_CUH
#define VERBENA_DEVICE_MOE_DISPATCH_CUH

#include "verbena/device/moe/row_source.cuh"

namespace verbena::device {

namespace detail {

// Loads an expert's id; -1 if it names no expert.
VERBENA_DEVICE int32_t load_moe_id(const MoeDispatch& call, uint32_t experts, uint32_t token, uint32_t k) {
  const uint64_t index = token * call.id_stride + k;
  const int64_t id = call.has_long_ids != 0 ? load_moe<int64_t>(call.ids, index)
                                            : int64_t{load_moe<int32_t>(call.ids, index)};
  return id >= 0 && id < int64_t{experts} ? static_cast<int32_t>(id) : -1;
}

}  // namespace detail

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
        routing_(find_moe_routing()),
        row_packets_(call.row_bytes / Packet::kBytes),
        scale_packets_(static_cast<uint32_t>(moe_divide_up(call.scale_bytes, Packet::kBytes))) {}

  // Runs the call, by all threads of the grid, after the wait for earlier kernels.
  [[nodiscard]] VERBENA_DEVICE SymmStatus run() {
    const bool sends = (call_.phases & kMoeSend) != 0, receives = (call_.phases & kMoeReceive) != 0;
    if (sends) {
      find_sent();
    } else {
      load_sent();
    }
    if (const SymmStatus status = area_.conclude(); status != SymmStatus::kDone) return status;
    routing_.sent.count(shape_.ranks, shape_.mask_words());
    if (sends) send_headers();
    sync_block();
    if (sends) {
      send_rows();
      write_sent();
    }
    if (!receives) return area_.conclude();
    receive_headers();
    if (const SymmStatus status = area_.conclude(); status != SymmStatus::kDone) return status;
    routing_.received.count(shape_.ranks, shape_.mask_words());
    sync_block();
    write_received();
    receive_rows();
    const SymmStatus status = area_.conclude();
    area_.finish(status);
    return status;
  }

 private:
  // Packets of a received row that a thread reads at a time.
  static constexpr uint32_t kAtOnce = 4;

  // A warp has 32 tokens: a word of the mask is a ballot.
  VERBENA_DEVICE void find_sent() {
    const uint32_t warps = threads_per_block() / kWarpLanes, local = shape_.local_experts();
    for (uint32_t word = thread_index() / kWarpLanes; word < shape_.mask_words(); word += warps) {
      const uint32_t token = word * kMoeMaskBits + lane();
      uint32_t ranks = 0;
      if (token < call_.tokens) {
        for (uint32_t k = 0; k < shape_.top_k; ++k) {
          const int32_t id = detail::load_moe_id(call_, shape_.experts, token, k);
          if (id >= 0) ranks |= 1u << static_cast<uint32_t>(id) / local;
        }
      }
      for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
        const uint32_t bits = ballot(kFullWarp, (ranks >> rank & 1) != 0);
        if (lane() == 0) routing_.sent.words[rank][word] = bits;
      }
    }
  }

  // Loads the masks that the sending kernel has left.
  VERBENA_DEVICE void load_sent() const {
    const uint32_t words = shape_.mask_words();
    for (uint32_t i = thread_index(); i < shape_.ranks * words; i += threads_per_block())
      routing_.sent.words[i / words][i % words] = load_moe<uint32_t>(call_.handle + layout_.sent, i);
  }

  VERBENA_DEVICE Data load_header(uint32_t rank, uint32_t index) const {
    uint32_t words[4];
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t word = 4 * index + i;
      words[i] = word < shape_.mask_words() ? routing_.sent.words[rank][word] : 0;
    }
    return {words[0], words[1], words[2], words[3]};
  }
  VERBENA_DEVICE void store_header(uint32_t rank, uint32_t index, const Data& data) const {
    const uint32_t words[4] = {data.x, data.y, data.z, data.w};
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t word = 4 * index + i;
      if (word < shape_.mask_words()) routing_.received.words[rank][word] = words[i];
    }
  }
  VERBENA_DEVICE void send_headers() const {
    const uint32_t packets = shape_.header_packets();
    const MoePlace mine = area_.find(shape_.find_header(area_.epoch(), block_index(), area_.me()));
    for (uint32_t i = thread_index(); i < shape_.ranks * packets; i += threads_per_block()) {
      const uint32_t rank = i / packets, index = i % packets;
      if (rank != area_.me()) area_.send(mine, index, load_header(rank, index), rank);
    }
  }
  VERBENA_DEVICE void receive_headers() {
    const uint32_t packets = shape_.header_packets();
    for (uint32_t i = thread_index(); i < shape_.ranks * packets; i += threads_per_block()) {
      const uint32_t rank = i / packets, index = i % packets;
      Data data{};
      if (rank == area_.me()) {
        data = load_header(rank, index);
      } else if (!area_.receive_one(
                     area_.find(shape_.find_header(area_.epoch(), block_index(), rank) + index), rank,
                     data)) {
        return;
      }
      store_header(rank, index, data);
    }
  }

  VERBENA_DEVICE const char* find_input(uint32_t token) const {
    return static_cast<const char*>(call_.rows) + token * call_.row_stride;
  }
  VERBENA_DEVICE char* find_output(uint32_t source, uint32_t number) const {
    return static_cast<char*>(call_.output) +
           (uint64_t{source} * shape_.max_tokens + number) * call_.row_bytes;
  }
  VERBENA_DEVICE MessageBytes<char*> find_scales(const void* base, uint64_t row, uint64_t stride) const {
    return {static_cast<char*>(const_cast<void*>(base)) + row * stride, call_.scale_bytes};
  }

  VERBENA_DEVICE void send_rows() const {
    const MoeItems items(call_.tokens, row_packets_, blocks_per_grid());
    for (uint32_t item = items.first; item < items.count(); item += items.step) {
      const uint32_t token = items.row(item);
      const uint32_t ranks = routing_.sent.find_ranks(shape_.ranks, token);
      if (ranks == 0) continue;
      const uint32_t peers = ranks & ~(1u << area_.me());
      const bool is_own = peers != ranks;
      const MoePlace mine = area_.find(shape_.find_row(area_.epoch(), area_.me(), token));
      const char* const input = find_input(token);
      const uint32_t number = is_own ? routing_.sent.find_number(area_.me(), token) : 0;
      char* const own = find_output(area_.me(), number);
      const uint32_t end = items.end(item, row_packets_);
      for (uint32_t base = items.begin(item); base < end; base += kAtOnce * kWarpLanes) {
        const uint32_t first = base + lane();
        Data data[kAtOnce], scales[kAtOnce];
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t index = first + i * kWarpLanes;
          data[i] = Rows::load(input, index, index < end, call_.has_power_scales, scales[i]);
        }
        for (uint32_t left = peers; left != 0; left &= left - 1) {
          const uint32_t peer = find_lowest_moe_bit(left);
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kAtOnce; ++i) {
            const uint32_t index = first + i * kWarpLanes;
            if (index < end) area_.send(mine, index, data[i], peer);
            if (Rows::kHasScales && lane() == 0 && index < end)
              area_.send(mine, row_packets_ + index / kWarpLanes, scales[i], peer);
          }
        }
        if (!is_own) continue;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t index = first + i * kWarpLanes;
          if (index < end) store_moe<Data>(own, index, data[i]);
          if (Rows::kHasScales && lane() == 0 && index < end)
            find_scales(call_.output_scales, uint64_t{area_.me()} * shape_.max_tokens + number,
                        call_.scale_bytes)
                .store(index / kWarpLanes, scales[i]);
        }
      }
      if (items.part(item) == 0) send_tail(token, mine, peers, is_own);
    }
  }
  // Sends the caller's scales, ids and weights.
  VERBENA_DEVICE void send_tail(uint32_t token, const MoePlace& mine, uint32_t peers, bool is_own) const {
    const uint32_t number = is_own ? routing_.sent.find_number(area_.me(), token) : 0;
    const uint64_t own = uint64_t{area_.me()} * shape_.max_tokens + number;
    if (!Rows::kHasScales && scale_packets_ != 0) {
      const MessageBytes<char*> from = find_scales(call_.scales, token, call_.scale_stride);
      const MessageBytes<char*> to = find_scales(call_.output_scales, own, call_.scale_bytes);
      for (uint32_t i = lane(); i < scale_packets_; i += kWarpLanes) {
        const Data data = from.load(i);
        for (uint32_t left = peers; left != 0; left &= left - 1)
          area_.send(mine, row_packets_ + i, data, find_lowest_moe_bit(left));
        if (is_own) to.store(i, data);
      }
    }
    const uint32_t pairs = shape_.pair_packets();
    if (lane() >= pairs) return;
    const Pair pairs_of_lane[2] = {load_pair(token, 2 * lane()), load_pair(token, 2 * lane() + 1)};
    for (uint32_t left = peers; left != 0; left &= left - 1) {
      const uint32_t peer = find_lowest_moe_bit(left);
      const Pair first = make_local(pairs_of_lane[0], peer), second = make_local(pairs_of_lane[1], peer);
      area_.send(mine, row_packets_ + scale_packets_ + lane(),
                 {static_cast<uint32_t>(first.id), to_bits(first.weight), static_cast<uint32_t>(second.id),
                  to_bits(second.weight)},
                 peer);
    }
    if (!is_own) return;
    store_pair(own, 2 * lane(), make_local(pairs_of_lane[0], area_.me()));
    store_pair(own, 2 * lane() + 1, make_local(pairs_of_lane[1], area_.me()));
  }

  struct Pair {
    int32_t id;
    float weight;
  };
  VERBENA_DEVICE static uint32_t to_bits(float value) { return __builtin_bit_cast(uint32_t, value); }
  VERBENA_DEVICE Pair load_pair(uint32_t token, uint32_t k) const {
    if (k >= shape_.top_k) return {-1, 0};
    const int32_t id = detail::load_moe_id(call_, shape_.experts, token, k);
    if (id < 0) return {-1, 0};
    return {id, call_.weights == nullptr
                    ? 1.0F
                    : load_moe<float>(call_.weights, uint64_t{token} * shape_.top_k + k)};
  }
  // Converts an expert's id to its index on its own rank; -1 if it is of another rank.
  VERBENA_DEVICE Pair make_local(const Pair& pair, uint32_t rank) const {
    const auto local = static_cast<int32_t>(shape_.local_experts());
    const int32_t id = pair.id - static_cast<int32_t>(rank) * local;
    return pair.id < 0 || id < 0 || id >= local ? Pair{-1, 0} : Pair{id, pair.weight};
  }
  VERBENA_DEVICE void store_pair(uint64_t row, uint32_t k, const Pair& pair) const {
    if (k >= shape_.top_k) return;
    store_moe<int32_t>(call_.handle + layout_.ids, row * shape_.top_k + k, pair.id);
    store_moe<float>(call_.handle + layout_.weights, row * shape_.top_k + k, pair.weight);
  }

  // Writes the parts of the handle, divided among the blocks of the grid: which tokens this rank has sent,
  // and which rows came, without their ids and weights, which arrive with the rows.
  VERBENA_DEVICE void write_sent() const {
    const uint32_t first = block_index() * threads_per_block() + thread_index();
    const uint32_t step = blocks_per_grid() * threads_per_block();
    const uint32_t words = shape_.mask_words(), top_k = shape_.top_k;
    for (uint32_t i = first; i < shape_.ranks * words; i += step)
      store_moe<uint32_t>(call_.handle + layout_.sent, i, routing_.sent.words[i / words][i % words]);
    for (uint32_t i = first; i < shape_.max_tokens * top_k; i += step) {
      const uint32_t token = i / top_k;
      const Pair pair = token < call_.tokens ? load_pair(token, i % top_k) : Pair{-1, 0};
      store_moe<int32_t>(call_.handle + layout_.own_ids, i, pair.id);
      store_moe<float>(call_.handle + layout_.own_weights, i, pair.weight);
    }
  }
  VERBENA_DEVICE void write_received() const {
    const uint32_t first = block_index() * threads_per_block() + thread_index();
    const uint32_t step = blocks_per_grid() * threads_per_block();
    const uint32_t words = shape_.mask_words(), max_tokens = shape_.max_tokens;
    for (uint32_t i = first; i < shape_.ranks * words; i += step)
      store_moe<uint32_t>(call_.handle + layout_.received, i, routing_.received.words[i / words][i % words]);
    for (uint32_t i = first; i < shape_.ranks; i += step)
      store_moe<int32_t>(call_.handle + layout_.counts, i, static_cast<int32_t>(routing_.received.counts[i]));
    // Tokens of the rows that came, and -1 after them.
    for (uint32_t i = first; i < shape_.ranks * max_tokens; i += step) {
      const uint32_t source = i / max_tokens, number = i % max_tokens;
      const uint64_t rows = uint64_t{source} * max_tokens;
      if (routing_.received.has(source, number)) {
        const uint32_t at = routing_.received.find_number(source, number);
        store_moe<int32_t>(call_.handle + layout_.sources, rows + at, static_cast<int32_t>(number));
      }
      if (number < routing_.received.counts[source]) continue;
      store_moe<int32_t>(call_.handle + layout_.sources, i, -1);
      for (uint32_t k = 0; k < shape_.top_k; ++k) store_pair(i, k, {-1, 0});
    }
  }

  VERBENA_DEVICE void receive_rows() {
    const MoeMasks& masks = routing_.received;
    const MoeItems items(masks.count_rows(shape_.ranks, area_.me()), row_packets_, blocks_per_grid());
    for (uint32_t item = items.first; item < items.count(); item += items.step) {
      uint32_t number = items.row(item);
      const uint32_t source = masks.find_rank(area_.me(), number);
      const uint32_t token = masks.find_token(source, number, shape_.mask_words());
      const MoePlace place = area_.find(shape_.find_row(area_.epoch(), source, token));
      char* const output = find_output(source, number);
      const uint32_t end = items.end(item, row_packets_);
      bool have_come = true;
      for (uint32_t first = items.begin(item) + lane(); first < end && have_come;
           first += kAtOnce * kWarpLanes) {
        Data data[1][kAtOnce] = {};
        have_come = area_.receive({place}, {source}, 1, first, end, data);
        if (!have_come) break;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t index = first + i * kWarpLanes;
          if (index < end) store_moe<Data>(output, index, data[0][i]);
        }
      }
      if (items.part(item) == 0) have_come = receive_tail(source, number, place) && have_come;
      // Lanes end together: warp-wide operations need all of them.
      if (ballot(kFullWarp, !have_come) != 0) return;
    }
  }
  VERBENA_DEVICE bool receive_tail(uint32_t source, uint32_t number, const MoePlace& place) {
    const uint64_t row = uint64_t{source} * shape_.max_tokens + number;
    const auto after = [&](uint32_t packets) {
      return MoePlace{place.data + uint64_t{packets} * Packet::kBytes,
                      place.notes + uint64_t{packets} * Packet::kNoteBytes};
    };
    Data data{};
    if (scale_packets_ != 0) {
      const MessageBytes<char*> to = find_scales(call_.output_scales, row, call_.scale_bytes);
      for (uint32_t i = lane(); i < scale_packets_; i += kWarpLanes) {
        if (!area_.receive_one(after(row_packets_ + i), source, data)) return false;
        to.store(i, data);
      }
    }
    if (lane() >= shape_.pair_packets()) return true;
    if (!area_.receive_one(after(row_packets_ + scale_packets_ + lane()), source, data)) return false;
    store_pair(row, 2 * lane(), {static_cast<int32_t>(data.x), __builtin_bit_cast(float, data.y)});
    store_pair(row, 2 * lane() + 1, {static_cast<int32_t>(data.z), __builtin_bit_cast(float, data.w)});
    return true;
  }

  MoeArea area_;
  const MoeShape& shape_;
  const MoeDispatch& call_;
  const MoeHandleLayout layout_;
  MoeRouting& routing_;
  const uint32_t row_packets_, scale_packets_;
};

}  // namespace verbena::device

#endif
