// The combine of a mixture of experts. A combine returns the experts' rows to the ranks of their tokens and
// adds the rows, in one kernel and one NVLink hop. A combine uses the handle that the dispatch has written.
// verbena/moe.h documents the call; libverbena_ops.so contains the kernels.
//
// In a reduced combine, each rank adds the rows that its experts have computed for a token, rounds the sum
// and sends one row. The token's rank adds these rows in the order of ranks. In an exact combine, each
// expert's row is sent to the token's rank, which adds the rows in top-k order. All sums are float, and each
// rank rounds a sum once, so the result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_COMBINE_CUH
#define VERBENA_DEVICE_MOE_COMBINE_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/moe/hosts.cuh"
#include "verbena/device/moe/windows.cuh"
#include "verbena/device/packed.cuh"

namespace verbena::device {

// @tparam Far  MoeOneHost, or MoeFarHosts if the ranks are on several hosts. With MoeFarHosts, the
//              counterparts of the token's rank first add rows: each counterpart adds the rows that its host
//              has for the token, in the order of ranks, and rounds the sum. The token's rank adds the rows
//              of its own host, and then the other hosts' sums in the order of hosts. kExact is not supported
//              with MoeFarHosts.
// @tparam kFlow  see MoeFlow (routing.cuh)
template <typename T, MoeOrder kOrder, typename Far = MoeOneHost, MoeFlow kFlow = MoeFlow::kSendFirst>
class MoeCombineKernel {
 public:
  using Data = Packet::Data;

  VERBENA_DEVICE MoeCombineKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                  const MoeCombine& call, const Far& far = {})
      : area_(workspace, shape, MoeKind::kCombine),
        shape_(shape),
        call_(call),
        layout_(call.layout),
        experts_(shape),
        row_packets_(call.row_bytes / Packet::kBytes),
        far_(far) {
    static_assert(!kSpansHosts || !kIsExact, "verbena: one sum of each host is sent");
  }

  // Runs the call. All threads of the grid must call it, after they have waited for earlier kernels. Except
  // with kInWindows, the threads of a block do not wait for each other before the end of the call.
  // @return kInvalid unless a dispatch of this rank, with the same number of tokens and the same grouping,
  //         has written the handle, and unless, with kInWindows, the experts' rows are in a window
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
    if constexpr (kInWindows) return run_in_windows();
    const bool sends = (call_.phases & kMoeSend) != 0 && !area_.has_trouble();
    if (sends && has_headers) send_headers();
    const MoeItems sent(count_sources(), row_packets_, call_.parts.send_bits, blocks_per_grid());
    const uint32_t end = sends ? sent.count(find_largest(count_of_lane)) : 0;  // of the items to send
    uint32_t next = sent.first;                                                // the warp's next item to send
    if constexpr (!kInTurn) {
      send_rows(sent, next, end, count_of_lane);
      if ((call_.phases & kMoeReceive) == 0) return area_.conclude();
    }
    if constexpr (kSpansHosts) {
      if (!relay()) return area_.conclude();
    }
    receive_rows(sent, next, end, count_of_lane);
    if (has_headers) receive_headers();
    const SymmStatus status = area_.conclude();
    area_.finish(status);
    return status;
  }

 private:
  static constexpr bool kIsExact = kOrder == MoeOrder::kExact, kSpansHosts = Far::kSpansHosts;
  static constexpr bool kInTurn = kFlow == MoeFlow::kInTurn, kInWindows = kFlow == MoeFlow::kInWindows;
  static_assert(!kInWindows || (kOrder == MoeOrder::kRows && !kSpansHosts));
  // A thread handles kAtOnce packets at a time, and waits for kAddends rows at a time. In long batches
  // (kInTurn), a warp has long parts of rows.
  static constexpr uint32_t kAtOnce = kInTurn ? 4 : 2, kAddends = kInTurn ? 2 : 4;
  using Elements = Packed<T>;
  using Sum = PackedSum<T>;

  // Sends a header to every other rank of this host. Each rank waits for the headers of all other ranks, even
  // of ranks that send no rows to this rank (layout.cuh).
  VERBENA_DEVICE void send_headers() const {
    const MoePlace mine = area_.find(shape_.find_combine_header(area_.epoch(), area_.me()));
    for (uint32_t rank = thread_index(); rank < shape_.ranks; rank += threads_per_block())
      if (rank != area_.me() && shape_.is_near(rank)) area_.send(mine, 0, Data{}, area_.find_delta(rank));
  }
  VERBENA_DEVICE void receive_headers() {
    for (uint32_t rank = thread_index(); rank < shape_.ranks; rank += threads_per_block()) {
      Data data{};
      if (rank != area_.me() && shape_.is_near(rank) &&
          !area_.receive_one(area_.find(shape_.find_combine_header(area_.epoch(), rank)), rank, data))
        return;
    }
  }

  // Adds the rows that lie in the windows of the experts' ranks (windows.cuh).
  VERBENA_DEVICE SymmStatus run_in_windows() {
    MoeWindows windows(shape_, MoeKind::kCombine);
    const auto find_header = [&](uint32_t rank) {
      return area_.find(shape_.find_combine_header(area_.epoch(), rank)).data;
    };
    if (block_index() == blocks_per_grid() - 1) {
      windows.reset_next_counter(area_);
      const uint64_t length = uint64_t{shape_.ranks} * shape_.max_tokens * call_.row_bytes;
      if (!windows.send_offers(area_, find_header(area_.me()), {{call_.rows, length}}, 0))
        return area_.refuse();
    }
    const bool have_come =
        windows.receive_offers<1>(area_, 0, find_header) == SymmStatus::kDone &&
        windows.load_words(windows.masks(), 0, [&](uint32_t rank, uint32_t word, uint32_t& bits) {
          bits = load_moe<uint32_t>(call_.handle + layout_.sent_words, rank * shape_.mask_words() + word);
          return true;
        });
    const BlockGroup block;
    if (block.any(!have_come)) return area_.conclude();
    windows.count_words(windows.masks(), 0);
    block.sync();
    const MoeItems items(1, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    for (MoeItemQueue queue(items, call_.tokens, windows.find_counter(area_)); !queue.is_end();
         queue.advance()) {
      const uint32_t item = queue.item(), token = items.token(item);
      const bool goes = windows.goes_to_lane(token);
      const char* const row_of_lane =
          goes ? windows.find(lane(), 0) + uint64_t{windows.find_row(area_, lane(), token)} * call_.row_bytes
               : nullptr;
      const uint32_t ranks = ballot(kFullWarp, goes);
      const uint32_t begin = items.begin(item), end = items.end(item, row_packets_);
      char* const output = static_cast<char*>(call_.output) + uint64_t{token} * call_.row_bytes;
      if (__builtin_popcount(ranks) <= 2) {
        add_two_in_windows(row_of_lane, ranks, begin, end, output);
      } else {
        add_all_in_windows(row_of_lane, ranks, begin, end, output);
      }
    }
    return windows.finish(area_);
  }
  // add_two_in_windows() and add_all_in_windows() add the rows of the ranks whose bits are set, in the order
  // of ranks. With at most two ranks, a thread keeps no sums and loads more packets at a time.
  VERBENA_DEVICE static void add_two_in_windows(const char* row_of_lane, uint32_t ranks, uint32_t begin,
                                                uint32_t end, char* output) {
    constexpr uint32_t kLoads = 8;
    const uint32_t rest = ranks & (ranks - 1);
    const char* const one = share_moe_pointer(row_of_lane, ranks == 0 ? 0 : find_lowest_moe_bit(ranks));
    const char* const other = share_moe_pointer(row_of_lane, rest == 0 ? 0 : find_lowest_moe_bit(rest));
    for (uint32_t first = begin + lane(); first < end; first += kLoads * kWarpLanes) {
      Data data[kLoads] = {}, addend[kLoads] = {};
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kLoads; ++i)
        if (ranks != 0 && first + i * kWarpLanes < end) data[i] = load_moe<Data>(one, first + i * kWarpLanes);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kLoads; ++i)
        if (rest != 0 && first + i * kWarpLanes < end)
          addend[i] = load_moe<Data>(other, first + i * kWarpLanes);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kLoads; ++i) {
        if (first + i * kWarpLanes >= end) continue;
        Sum sum;
        sum.begin(__builtin_bit_cast(Elements, data[i]));
        if (rest != 0) sum.add(__builtin_bit_cast(Elements, addend[i]));
        store_moe<Data>(output, first + i * kWarpLanes, __builtin_bit_cast(Data, sum.round()));
      }
    }
  }
  VERBENA_DEVICE static void add_all_in_windows(const char* row_of_lane, uint32_t ranks, uint32_t begin,
                                                uint32_t end, char* output) {
    constexpr uint32_t kRows = 4, kLoads = 2;
    for (uint32_t base = begin; base < end; base += kLoads * kWarpLanes) {
      const uint32_t first = base + lane();
      Sum sums[kLoads] = {};
      bool is_first = true;
      for (uint32_t left = ranks; left != 0;) {
        Data data[kRows][kLoads] = {};
        const uint32_t count = static_cast<uint32_t>(__builtin_popcount(left));
        VERBENA_UNROLL
        for (uint32_t row = 0; row < kRows; ++row) {
          if (row >= count) continue;
          const char* const from = share_moe_pointer(row_of_lane, find_lowest_moe_bit(left));
          left &= left - 1;
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kLoads; ++i)
            if (first + i * kWarpLanes < end) data[row][i] = load_moe<Data>(from, first + i * kWarpLanes);
        }
        VERBENA_UNROLL
        for (uint32_t row = 0; row < kRows; ++row) {
          if (row >= count) continue;
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kLoads; ++i) {
            if (is_first && row == 0) {
              sums[i].begin(__builtin_bit_cast(Elements, data[row][i]));
            } else {
              sums[i].add(__builtin_bit_cast(Elements, data[row][i]));
            }
          }
        }
        is_first = false;
      }
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kLoads; ++i)
        if (first + i * kWarpLanes < end)
          store_moe<Data>(output, first + i * kWarpLanes, __builtin_bit_cast(Data, sums[i].round()));
    }
  }

  // Returns true if a token has a separate slot for each rank of a host. The number of a rank's slot is then
  // the rank's index on the host. Otherwise, fewer slots are needed: the number of a rank's slot is the top-k
  // index of the rank's first expert for the token.
  VERBENA_DEVICE bool has_slots_of_ranks() const {
    return shape_.ranks <= (kSpansHosts ? shape_.hosts : 1) * shape_.top_k;
  }
  VERBENA_DEVICE uint32_t find_slot(uint32_t rank) const {
    if constexpr (kSpansHosts) return far_.find_index(rank);
    return rank;
  }
  // Returns the slot of a row for a token.
  // @param place  the value of MoeFarHosts::find_place() for the token's host, on the rank that adds the row
  VERBENA_DEVICE MoePlace find_combine_row(uint32_t place, uint32_t token, uint32_t slot) const {
    if constexpr (kSpansHosts) {
      if (place != 0) return far_.find_relay_row(area_.epoch(), place, token, slot);
    }
    return area_.find(shape_.find_combine_row(area_.epoch(), token, slot));
  }
  // The rank that adds this host's rows for the tokens of a source rank. `place` is the result of
  // find_place() on that rank for the host of the source rank.
  struct Adder {
    uint32_t rank, place;
  };
  VERBENA_DEVICE Adder find_adder(uint32_t source) const {
    if constexpr (kSpansHosts) {
      // The adder is on this host, so find_place() returns the same value on the adder and on this rank.
      return {far_.find_relay(source), far_.find_place(far_.find_host(source))};
    }
    return {source, 0};
  }

  // This rank's experts for a received row. `which` has a bit for each of the top_k ids that names an expert
  // of this rank. `weight` is the weight of the lane's id. All lanes must call find_experts().
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
    detail::add_product(sum, weight, __builtin_bit_cast(Elements, data));
  }
  VERBENA_DEVICE Data load_row(uint64_t row, uint32_t index) const {
    return load_moe<Data>(static_cast<const char*>(call_.rows) + row * call_.row_bytes, index);
  }
  // Returns the index (in call_.rows) of the row that the expert of the k-th id has computed for a received
  // row.
  VERBENA_DEVICE uint64_t find_row_of(uint64_t row, uint32_t k) const {
    const uint64_t index = row * shape_.top_k + k;
    return call_.grouping == MoeGrouping::kRank
               ? index
               : static_cast<uint64_t>(load_moe<int32_t>(call_.handle + layout_.places, index));
  }
  // Computes this rank's contribution for a received row: the packets first + i * 32 that are below `end`.
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
      // Several rows are loaded at the same time.
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

  // Returns the largest count_of_lane of lanes 0 to `ranks` - 1.
  VERBENA_DEVICE uint32_t find_largest(uint32_t count_of_lane) const {
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      const uint32_t one = shuffle(kFullWarp, count_of_lane, static_cast<int>(rank));
      most = one > most ? one : most;
    }
    return most;
  }
  // Items to send are numbered for all source ranks or, if kInTurn is true, for all other ranks, because rows
  // for this rank's own tokens are not sent. count_sources() returns the number of these source ranks.
  // find_source() returns the source rank with the given number.
  VERBENA_DEVICE uint32_t count_sources() const {
    return kInTurn && shape_.ranks > 1 ? shape_.ranks - 1 : shape_.ranks;
  }
  VERBENA_DEVICE uint32_t find_source(uint32_t number) const {
    if constexpr (!kInTurn) return number;
    if (number >= count_sources()) return area_.me();
    const uint32_t rank = area_.me() + 1 + number;
    return rank < shape_.ranks ? rank : rank - shape_.ranks;
  }
  // Sends this rank's rows: the warp's items from `item` to `end_item` - 1.
  // @param count  number of rows received from the rank whose number equals the lane's number
  VERBENA_DEVICE void send_rows(const MoeItems& items, uint32_t& item, uint32_t end_item,
                                uint32_t count) const {
    for (; item < end_item; item += items.step) {
      const uint32_t source = find_source(items.rank(item)), number = items.token(item);
      if (number >= shuffle(kFullWarp, count, static_cast<int>(source))) continue;
      const Adder adder = find_adder(source);
      if (adder.rank == area_.me()) continue;
      const uint64_t row = source * shape_.max_tokens + number;
      const auto token = static_cast<uint32_t>(load_moe<int32_t>(call_.handle + layout_.sources, row));
      Experts experts{};
      if (kOrder != MoeOrder::kRows || !has_slots_of_ranks()) experts = find_experts(row);
      const uint32_t slot = has_slots_of_ranks() ? find_slot(area_.me()) : find_lowest_moe_bit(experts.which);
      const uint32_t end = items.end(item, row_packets_);
      const int64_t delta = area_.find_delta(adder.rank);
      // All lanes run the same iterations, because the body contains warp-wide operations.
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
        const MoePlace mine = find_combine_row(adder.place, token, slot);
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

  // A token of this rank or of one of its counterparts. The ranks of this host send their rows for the token
  // to this rank.
  struct Token {
    uint32_t token, place;  // arguments of find_combine_row()
    uint64_t own_row;       // index of this rank's own row for the token
    uint32_t rank_of_lane;  // the rank of each lane's expert
    float weight_of_lane;
    uint32_t ranks, addends;  // ranks that have experts of the token; what this rank adds: see add_values()
  };
  VERBENA_DEVICE Token load_token(uint32_t token, uint32_t place, uint32_t source) const {
    const bool is_one = lane() < shape_.top_k;
    const uint64_t row = uint64_t{place} * shape_.max_tokens + token, index = row * shape_.top_k + lane();
    const int32_t id = is_one ? load_moe<int32_t>(call_.handle + layout_.own_ids, index) : -1;
    const void* const weights = call_.weights == nullptr ? call_.handle + layout_.own_weights
                                                         : static_cast<const void*>(call_.weights);
    const float weight = kIsExact && is_one ? load_moe<float>(weights, index) : 0.0F;
    const auto own_number = static_cast<uint32_t>(load_moe<int32_t>(call_.handle + layout_.own_numbers, row));
    const uint32_t ranks = combine_bits(experts_.find_rank_bit(id));
    return {token,  place, uint64_t{source} * shape_.max_tokens + own_number,          experts_.find_rank(id),
            weight, ranks, kIsExact ? ballot(kFullWarp, id >= 0) : ranks & shape_.near};
  }
  // Receives the rows for this rank's tokens. If kInTurn is true, alternates between receiving and sending
  // the items `next` to `end_sent` - 1.
  VERBENA_DEVICE void receive_rows(const MoeItems& sent, uint32_t next, uint32_t end_sent, uint32_t count) {
    const MoeItems items(1, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    for (uint32_t item = items.first;; item += items.step) {
      const bool is_end = item >= items.count(call_.tokens);
      if constexpr (kInTurn)
        send_rows(sent, next, is_end ? end_sent : sent.end_ahead(items.token(item), end_sent), count);
      if (is_end) return;
      const Token token = load_token(items.token(item), 0, area_.me());
      const uint32_t end = items.end(item, row_packets_);
      for (uint32_t base = items.begin(item); base < end; base += kAtOnce * kWarpLanes) {
        Sum sums[kAtOnce] = {};
        // This loop does the same as add_rows(). A call of add_rows() would need more registers.
        bool is_first = true;
        for (uint32_t left = token.addends; left != 0;) {
          const uint32_t some = take_some(left);
          if (!add_values(token, some, base + lane(), end, is_first, sums)) return;
          is_first = false;
        }
        if constexpr (kSpansHosts) {
          if (!add_hosts(token, base + lane(), end, sums)) return;
        }
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t at = base + lane() + i * kWarpLanes;
          if (at < end)
            store_moe<Data>(static_cast<char*>(call_.output) + uint64_t{token.token} * call_.row_bytes, at,
                            __builtin_bit_cast(Data, sums[i].round()));
        }
      }
    }
  }
  // Adds the rows of this host's ranks or, with kExact, the experts' rows.
  VERBENA_DEVICE bool add_rows(const Token& token, uint32_t first, uint32_t end, Sum (&sums)[kAtOnce]) {
    bool is_first = true;
    for (uint32_t left = token.addends; left != 0;) {
      const uint32_t some = take_some(left);
      if (!add_values(token, some, first, end, is_first, sums)) return false;
      is_first = false;
    }
    return true;
  }
  // Adds the sums of the other hosts.
  VERBENA_DEVICE bool add_hosts(const Token& token, uint32_t first, uint32_t end, Sum (&sums)[kAtOnce]) {
    bool is_first = token.addends == 0;
    const uint32_t chunk = token.token >> shape_.chunk_bits,
                   number = token.token & ((1U << shape_.chunk_bits) - 1);
    for (uint32_t host = 0; host < far_.count(); ++host) {
      if (!far_.is_far(host) || (token.ranks & far_.find_ranks(host)) == 0) continue;
      MoeChunkHeader header{};
      const bool has_come = far_.receive(area_, host, chunk, header);
      if (ballot(kFullWarp, !has_come) != 0) return false;
      const char* const row = far_.find_received(area_.epoch(), host, chunk) + MoeFarHosts::kHeaderBytes +
                              uint64_t{header.find_row(number)} * call_.row_bytes;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (first + i * kWarpLanes >= end) continue;
        const auto addend = __builtin_bit_cast(Elements, load_moe<Data>(row, first + i * kWarpLanes));
        if (is_first) {
          sums[i].begin(addend);
        } else {
          sums[i].add(addend);
        }
      }
      is_first = false;
    }
    return true;
  }
  // Adds this host's rows for the counterparts' tokens, and sends the sums to the counterparts. Each block
  // handles one chunk at a time. Finally, the function receives the first chunk from each counterpart; every
  // call sends this chunk (layout.cuh).
  // @return false in all threads of the block if a wait has failed
  VERBENA_DEVICE bool relay() {
    for (uint32_t chunk = block_index(); chunk < shape_.chunks(); chunk += blocks_per_grid())
      for (uint32_t host = 0; host < far_.count(); ++host)
        if (far_.is_far(host) && !relay_chunk(host, chunk)) return false;
    bool have_come = true;
    for (uint32_t host = 0; host < far_.count() && block_index() == blocks_per_grid() - 1; ++host) {
      MoeChunkHeader header{};
      // FAULT(counterparts_are_not_heard)
      have_come = have_come && (!far_.is_far(host) || far_.receive(area_, host, 0, header));
    }
    const BlockGroup block;
    return !block.any(!have_come);
  }
  VERBENA_DEVICE bool relay_chunk(uint32_t host, uint32_t chunk) {
    const uint32_t warps = threads_per_block() / kWarpLanes, warp = thread_index() / kWarpLanes;
    const uint32_t source = far_.find_counterpart(host), place = far_.find_place(host);
    const uint32_t first = chunk << shape_.chunk_bits, token = first + lane();
    const bool is_token = lane() < 1U << shape_.chunk_bits && token < shape_.max_tokens;
    uint32_t ranks = 0;
    for (uint32_t k = 0; k < shape_.top_k && is_token; ++k)
      ranks |= experts_.find_rank_bit(load_moe<int32_t>(
          call_.handle + layout_.own_ids, (uint64_t{place} * shape_.max_tokens + token) * shape_.top_k + k));
    const uint32_t bits = ballot(kFullWarp, (ranks & shape_.near) != 0);
    if (bits == 0 && chunk != 0) return true;
    char* const sent = far_.find_sent(area_.epoch(), host, chunk);
    if (thread_index() == 0) store_moe<Data>(sent, 0, {bits, 0, 0, 0});
    uint32_t number = 0;
    bool have_come = true;
    for (uint32_t left = bits; left != 0 && have_come; left &= left - 1, ++number) {
      if (number % warps != warp) continue;
      const Token one = load_token(first + find_lowest_moe_bit(left), place, source);
      char* const row = sent + MoeFarHosts::kHeaderBytes + uint64_t{number} * call_.row_bytes;
      for (uint32_t base = 0; base < row_packets_ && have_come; base += kAtOnce * kWarpLanes) {
        Sum sums[kAtOnce] = {};
        have_come = add_rows(one, base + lane(), row_packets_, sums);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t at = base + lane() + i * kWarpLanes;
          if (have_come && at < row_packets_)
            store_moe<Data>(row, at, __builtin_bit_cast(Data, sums[i].round()));
        }
      }
    }
    const BlockGroup block;
    if (block.any(!have_come)) return false;  // FAULT(sums_leave_before_they_are_written)
    if (thread_index() == 0)
      far_.send(area_, host, chunk,
                uint64_t{call_.row_bytes} * static_cast<uint32_t>(__builtin_popcount(bits)));
    return true;
  }
  // Removes the lowest kAddends set bits from `left` and returns them.
  VERBENA_DEVICE static uint32_t take_some(uint32_t& left) {
    const uint32_t all = left;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAddends; ++i) left &= left - 1;
    return all & ~left;
  }
  // Adds the rows for the bits that are set in `some`, in the order of the bits. A bit stands for a rank or,
  // with kExact, for a top-k index. All lanes must call it.
  VERBENA_DEVICE bool add_values(const Token& token, uint32_t some, uint32_t first, uint32_t end,
                                 bool is_first, Sum (&sums)[kAtOnce]) {
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
      weights[i] = share(token.weight_of_lane, bit);
      members[i] = kIsExact ? shuffle(kFullWarp, token.rank_of_lane, static_cast<int>(bit)) : bit;
      uint32_t slot = kIsExact ? bit : find_slot(bit);
      if (!kIsExact && !has_slots_of_ranks())
        slot = find_lowest_moe_bit(ballot(kFullWarp, token.rank_of_lane == bit) | 1U << (kWarpLanes - 1));
      places[i] = find_combine_row(token.place, token.token, slot);
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
          const uint64_t addend = find_row_of(token.own_row, k);
          VERBENA_UNROLL
          for (uint32_t p = 0; p < kAtOnce; ++p)
            if (first + p * kWarpLanes < end) data[i][p] = load_row(addend, first + p * kWarpLanes);
        }
      } else {
        Data partial[kAtOnce] = {};
        find_partial(token.own_row, kOrder == MoeOrder::kRows ? Experts{} : find_experts(token.own_row),
                     first, end, partial);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAddends; ++i) {
          VERBENA_UNROLL
          for (uint32_t p = 0; p < kAtOnce; ++p)
            if ((own >> i & 1) != 0) data[i][p] = partial[p];
        }
      }
    }
    // All lanes return at the same time, because warp-wide operations need all of them.
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
  const Far far_;
};

}  // namespace verbena::device

#endif
