// The dispatch of a mixture of experts. A dispatch sends tokens to the ranks of their experts, in one kernel
// and one NVLink hop. A row is sent only once to each rank that has any of the row's experts, as packets
// without flags. The source rank and the token determine the slot into which the row is written. One block
// sends the header, from which all blocks of the receiver learn which tokens are sent. The other blocks send
// the rows at the same time, because the slot and the content of a row do not depend on other tokens.
// verbena/moe.h documents the call; libverbena_ops.so contains the kernels.
//
// The receiver stores rows either by source rank, in the order of the source rank's tokens, or grouped by
// expert (place.cuh). The result has the same bits in every run.
#ifndef VERBENA_DEVICE_MOE_DISPATCH_CUH
#define VERBENA_DEVICE_MOE_DISPATCH_CUH

#include "verbena/device/moe/hosts.cuh"
#include "verbena/device/moe/place.cuh"
#include "verbena/device/moe/windows.cuh"

namespace verbena::device {

// @tparam Rows  MoeRowBytes or MoeRowCast
// @tparam kIsGrouped  true if rows are grouped by expert
// @tparam Far         MoeOneHost, or MoeFarHosts if the ranks are on several hosts
// @tparam kFlow       see MoeFlow (routing.cuh)
template <typename Rows, bool kIsGrouped, typename Far = MoeOneHost, MoeFlow kFlow = MoeFlow::kSendFirst>
class MoeDispatchKernel : MoeRows<Rows> {
 public:
  using typename MoeRows<Rows>::Data;

  VERBENA_DEVICE MoeDispatchKernel(const SymmWorkspace<>& workspace, const MoeShape& shape,
                                   const MoeDispatch& call, const Far& far = {})
      : MoeRows<Rows>(workspace, shape, call),
        masks_(find_moe_shared<MoeMasks>()),
        ids_(shape, call),
        placement_(shape, call),
        far_(far) {}

  // Runs the call. All threads of the grid must call it, after they have waited for earlier kernels.
  // @return kInvalid if the output has fewer rows than are needed or, with kInWindows, is not in a window
  [[nodiscard]] VERBENA_DEVICE SymmStatus run() {
    if constexpr (kInWindows) return run_in_windows();
    const MoeItems sent = find_sent_items();
    const uint32_t end = sent.count(call_.tokens);
    uint32_t next = sent.first;  // the warp's next item to send
    if (is_in(kMoeSend)) {
      const uint32_t last = blocks_per_grid() - 1;
      const bool is_last_but_one = block_index() + 1 == last || last == 0;
      if (block_index() == last) send_header();
      if constexpr (kSpansHosts) send_chunks();
      if constexpr (kIsGrouped) {
        if (is_last_but_one) placement_.send_counts(area_, ids_, area_.me(), call_.tokens);
      }
      send_rows(sent, next, kInTurn ? sent.end_ahead(0, end) : end);
      if constexpr (kIsGrouped) placement_.send_places(area_, ids_, area_.me(), call_.tokens);
      // FAULT(old_entries_are_not_renewed)
      if (is_last_but_one) renew_entries(area_.me(), call_.tokens);
      write_own(0);
    }
    if (!is_in(kMoeReceive | kMoePlace)) return area_.conclude();
    if constexpr (kSpansHosts) {
      if (is_in(kMoeReceive) && !relay()) return area_.conclude();
    }
    receive_headers();
    if constexpr (kIsGrouped) {
      sync_block();  // the counts for send_counts() have been read
      if (has_rows()) placement_.receive_counts(area_);
    }
    if (const SymmStatus status = area_.conclude(); status != SymmStatus::kDone) return status;
    if constexpr (kIsGrouped) {
      if (has_rows() && !placement_.choose_begins()) return area_.refuse();
    }
    receive_rows(sent, next, end);
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
  static constexpr bool kSpansHosts = Far::kSpansHosts;
  static constexpr bool kInTurn = kFlow == MoeFlow::kInTurn, kInWindows = kFlow == MoeFlow::kInWindows;
  static_assert(!kInWindows || (!kIsGrouped && !kSpansHosts));
  static constexpr uint32_t kIdsAtOnce = 8;      // ids of a token that a thread loads at a time
  static constexpr uint32_t kEntriesAtOnce = 4;  // entries of a header that a thread loads at a time
  static constexpr uint32_t kWordsOfVector = sizeof(Vector16) / 4;

  VERBENA_DEVICE bool is_in(uint32_t phases) const { return (call_.phases & phases) != 0; }
  // has_ids() returns true if this kernel receives ids and weights. has_rows() returns true if this kernel
  // receives rows and scales.
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
  VERBENA_DEVICE void store_pair(char* handle, uint64_t row, uint32_t k, const Pair& pair) const {
    if (k >= shape_.top_k) return;
    store_moe<int32_t>(handle + layout_.ids, row * shape_.top_k + k, pair.id);
    store_moe<float>(handle + layout_.weights, row * shape_.top_k + k, pair.weight);
  }

  // Returns a bit for each rank that has experts of the thread's token. The function loads some ids twice in
  // order to avoid a branch.
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
  VERBENA_DEVICE char* find_header(uint32_t source) const {
    return area_.find(shape_.find_header(area_.epoch(), source)).data;
  }
  // Sends the header to all ranks of this host. One block sends the header or, with kInWindows, each block
  // sends a part of it. All threads of a block must call it. A warp handles 32 tokens at a time. Each entry
  // is the result of a ballot, and one lane sends the entry.
  VERBENA_DEVICE void send_header() const {
    char* const header = find_header(area_.me());
    const uint32_t blocks = kInWindows ? blocks_per_grid() : 1, words = shape_.mask_words();
    const uint32_t first = thread_index() / kWarpLanes * blocks + (kInWindows ? block_index() : 0);
    const uint32_t end = kInWindows ? words : moe_divide_up(call_.tokens, kMoeMaskBits);
    for (uint32_t word = first; word < end; word += threads_per_block() / kWarpLanes * blocks) {
      const uint32_t token = word * kMoeMaskBits + lane();
      const bool is_token = token < call_.tokens;
      const uint32_t wanted = call_.tokens == 0 ? 0 : find_ranks(is_token ? token : call_.tokens - 1);
      const MoeEntry entry{find_moe_tokens(shape_.ranks, is_token ? wanted : 0), call_.tokens};
      if (kInWindows && lane() < shape_.ranks)
        store_moe<uint32_t>(call_.handle + layout_.sent_words, lane() * words + word, entry.bits);
      if (area_.has_trouble() || !shape_.is_near(lane())) continue;
      area_.send_entry(header + word * kMoeEntryBytes, entry, lane());
      if constexpr (kInWindows)
        area_.send_entry(find_sent_header(lane()) + word * kMoeEntryBytes, entry, area_.me());
    }
    // The entries after the last token are the same for all ranks.
    if (area_.has_thread_trouble()) return;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
      for (uint32_t word = end + thread_index(); word < words && shape_.is_near(rank);
           word += threads_per_block())
        area_.send_entry(header + word * kMoeEntryBytes, {0, call_.tokens}, rank);
  }
  // Overwrites old entries of a source rank with empty entries: in each call either the entries of one token,
  // or the entries with counts. Does nothing if this call sends these entries anyway. Successive dispatches
  // rotate through all entries, so that no entry keeps its tag until a later call has the same tag. All
  // threads of a block must call it.
  VERBENA_DEVICE void renew_entries(uint32_t source, uint32_t tokens) const {
    const uint32_t token = static_cast<uint32_t>(area_.epoch() / kMoeCopies) % (shape_.max_tokens + 1);
    const bool are_counts = token == shape_.max_tokens;
    const bool are_sent = kIsGrouped && (are_counts || token < tokens);
    if (are_sent || shape_.count_entries() == 0 || area_.has_trouble()) return;
    const uint64_t packet = are_counts ? shape_.find_counts(area_.epoch(), source)
                                       : shape_.find_places(area_.epoch(), source, token);
    const uint32_t entries = are_counts ? shape_.count_entries() : shape_.top_k;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
      for (uint32_t i = thread_index(); i < entries && shape_.is_near(rank); i += threads_per_block())
        area_.send_entry(area_.find(packet).data + i * kMoeEntryBytes, {}, rank);
  }
  // Decides which rank the error names after a wait for a header has failed. If the source rank is on another
  // host, a relay on this host forwards the header. The error names this relay if the relay's own header has
  // not arrived either.
  VERBENA_DEVICE void blame_for_header(uint32_t source) {
    if constexpr (kSpansHosts) {
      const uint32_t relay = far_.find_relay(source);
      // FAULT(source_is_blamed_for_its_relay)
      if (!MoeEntry::is_of_call(MoeArea::poll_entry(find_header(relay)), area_.epoch())) area_.blame(relay);
    }
  }
  // Returns the rank from which this rank receives the rows of a source rank.
  VERBENA_DEVICE uint32_t find_sender(uint32_t source) const {
    if constexpr (kSpansHosts) return far_.find_relay(source);
    return source;
  }
  // Receives the headers of all ranks. Each warp receives the header of one rank at a time.
  VERBENA_DEVICE void receive_headers() {
    const uint32_t warps = threads_per_block() / kWarpLanes, words = shape_.mask_words();
    for (uint32_t rank = thread_index() / kWarpLanes; rank < shape_.ranks; rank += warps) {
      const char* const header = find_header(rank);
      uint32_t before = 0;
      MoeEntry entry{};
      for (uint32_t base = 0; base < words; base += kEntriesAtOnce * kWarpLanes) {
        uint64_t loaded[kEntriesAtOnce] = {};
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
          const uint32_t word = base + i * kWarpLanes + lane();
          if (word < words) loaded[i] = MoeArea::poll_entry(header + word * kMoeEntryBytes);
        }
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kEntriesAtOnce; ++i) {
          const uint32_t first = base + i * kWarpLanes, word = first + lane();
          if (first >= words) break;
          entry.bits = 0;
          const bool has_come = word >= words || !shape_.is_living(rank) ||
                                area_.receive_entry(header + word * kMoeEntryBytes, rank, entry, loaded[i]);
          if (ballot(kFullWarp, !has_come) != 0) return blame_for_header(rank);
          before = masks_.set_words(rank, words, first, entry.bits, before);
        }
      }
      if (lane() != 0) continue;
      masks_.counts[rank] = before;
      masks_.tokens[rank] = entry.tokens;
    }
  }

  // The tail of a row contains its scales, followed by its experts and their weights, with two experts per
  // packet. In a cast, the scales are sent together with the elements and not in the tail.
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
      store_pair(call_.handle, row, at, {local, local < 0 ? 0 : __builtin_bit_cast(float, weight)});
    };
    store_one(k, data.x, data.y);
    store_one(k + 1, data.z, data.w);
  }
  VERBENA_DEVICE MoeItems find_sent_items() const {
    // The block that sends the header starts to send rows later than the other blocks. Therefore it sends
    // rows only if the warps of the other blocks cannot send all rows in one round.
    const uint32_t others = blocks_per_grid() - 1, warps = threads_per_block() / kWarpLanes;
    const bool are_enough = (call_.tokens << call_.parts.send_bits) <= others * warps;
    return {1, row_packets_, call_.parts.send_bits, are_enough ? others : others + 1};
  }
  // Sends this rank's rows to the ranks of this host: the warp's items from `item` to `end_item` - 1. The
  // warp that sends the last part of a row also sends the row's tail.
  VERBENA_DEVICE void send_rows(const MoeItems& items, uint32_t& item, uint32_t end_item) const {
    for (; item < end_item; item += items.step) {
      const uint32_t token = items.token(item);
      const MoePlace mine = area_.find(shape_.find_row(area_.epoch(), area_.me(), token));
      const int32_t id = lane() < shape_.top_k ? ids_.load(token, lane()) : -1;
      // This function is called only after the loads of the row have been issued, because the ids and the
      // failure word are not needed earlier.
      const auto find_peers = [&] {
        // FAULT(dead_ranks_get_rows)
        const uint32_t ranks = combine_bits(ids_.experts().find_rank_bit(id)) & shape_.near;
        return area_.has_trouble() ? 0 : ranks & ~(1u << area_.me());
      };
      const uint32_t end = items.end(item, row_packets_), first_of_lane = first_of_tail() + lane();
      // The first packets of the tail are loaded together with the ids.
      const bool has_tail = items.is_last(item);
      Data tail{};
      if (has_tail && first_of_lane < tail_packets()) tail = load_tail(token, first_of_lane);
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
      if (!has_tail) continue;
      const uint32_t peers = find_peers();
      for (uint32_t index = first_of_lane; index < tail_packets(); index += kWarpLanes) {
        if (index != first_of_lane) tail = load_tail(token, index);
        for (uint32_t left = peers; left != 0; left &= left - 1)
          area_.send(mine, row_packets_ + index, tail, area_.find_delta(find_lowest_moe_bit(left)));
      }
    }
  }
  // Sends this rank's rows to its counterparts. Each block sends one chunk of tokens at a time.
  VERBENA_DEVICE void send_chunks() {
    const uint32_t warps = threads_per_block() / kWarpLanes, warp = thread_index() / kWarpLanes;
    const uint32_t row_bytes = far_row_bytes(), size = 1U << shape_.chunk_bits;
    const uint32_t chunks = call_.tokens == 0 ? 1 : ((call_.tokens - 1) >> shape_.chunk_bits) + 1;
    for (uint32_t chunk = block_index(); chunk < chunks; chunk += blocks_per_grid()) {
      const uint32_t first = chunk << shape_.chunk_bits, token = first + lane();
      const bool is_token = lane() < size && token < call_.tokens;
      const uint32_t ranks =
          call_.tokens == 0 ? 0 : find_ranks(is_token ? token : call_.tokens - 1) & shape_.living;
      // Lane h keeps the bits of the tokens that are sent to host h.
      uint32_t bits_of_lane = 0, all = 0;
      for (uint32_t host = 0; host < far_.count(); ++host) {
        const uint32_t bits = ballot(kFullWarp, is_token && (ranks & far_.find_ranks(host)) != 0);
        if (!far_.is_far(host)) continue;
        if (lane() == host) bits_of_lane = bits;
        all |= bits;
      }
      const bool is_host = lane() < far_.count() && far_.is_far(lane());
      if (warp == 0 && is_host)
        store_moe<Data>(far_.find_sent(area_.epoch(), lane(), chunk), 0, {bits_of_lane, call_.tokens, 0, 0});
      uint32_t number = 0;
      for (uint32_t left = all; left != 0; left &= left - 1, ++number) {
        if (number % warps != warp) continue;
        const uint32_t bit = find_lowest_moe_bit(left);
        const uint32_t hosts = ballot(kFullWarp, (bits_of_lane >> bit & 1) != 0);
        const MoeChunkHeader header{bits_of_lane, 0};
        const uint32_t place = header.find_row(bit);
        copy_to_hosts(first + bit, hosts, [&](uint32_t host) {
          return far_.find_sent(area_.epoch(), host, chunk) + MoeFarHosts::kHeaderBytes +
                 uint64_t{shuffle(kFullWarp, place, static_cast<int>(host))} * row_bytes;
        });
      }
      sync_block();  // FAULT(chunk_leaves_before_its_rows)
      if (warp == 0 && is_host)
        far_.send(area_, lane(), chunk,
                  uint64_t{row_bytes} * static_cast<uint32_t>(__builtin_popcount(bits_of_lane)));
    }
  }
  VERBENA_DEVICE uint32_t far_row_bytes() const { return (row_packets_ + tail_packets()) * Packet::kBytes; }
  // Writes a row and its tail into the chunks for the hosts whose bits are set in `hosts`. All lanes of a
  // warp must call it.
  // @param find  find(host) returns the address of the row
  template <typename Find>
  VERBENA_DEVICE void copy_to_hosts(uint32_t token, uint32_t hosts, const Find& find) const {
    for (uint32_t base = 0; base < row_packets_; base += kAtOnce * kWarpLanes) {
      const uint32_t first = base + lane();
      Data data[kAtOnce], scales[kAtOnce];
      load_row(token, first, row_packets_, data, scales);
      for (uint32_t left = hosts; left != 0; left &= left - 1) {
        char* const row = find(find_lowest_moe_bit(left));
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t index = first + i * kWarpLanes;
          if (index < row_packets_) store_moe<Data>(row, index, data[i]);
          if (Rows::kHasScales && lane() == 0 && index < row_packets_)
            store_moe<Data>(row, row_packets_ + index / kWarpLanes, scales[i]);
        }
      }
    }
    for (uint32_t base = first_of_tail(); base < tail_packets(); base += kWarpLanes) {
      const uint32_t index = base + lane();
      const bool is_there = index < tail_packets();
      const Data data = is_there ? load_tail(token, index) : Data{};
      for (uint32_t left = hosts; left != 0; left &= left - 1) {
        char* const row = find(find_lowest_moe_bit(left));
        if (is_there) store_moe<Data>(row, row_packets_ + index, data);
      }
    }
  }

  // Relays tokens: sends the tokens of this rank's counterparts to the ranks of this host.
  // @return false in all threads of the block if a wait has failed
  VERBENA_DEVICE bool relay() {
    const BlockGroup block;
    MoeChunkHeader first{};
    for (uint32_t host = 0; host < far_.count(); ++host) {
      if (!far_.is_far(host)) continue;
      const bool has_come = far_.receive(area_, host, 0, first);
      if (ballot(kFullWarp, !has_come) != 0) break;
      const MoeFarIds ids = find_ids(host);
      if (block_index() + 1 == blocks_per_grid() && !relay_header(host, first.tokens, ids)) break;
      if (!relay_rows(host, first.tokens, ids) || !write_far_ids(host, first.tokens, ids)) break;
    }
    if (block.any(area_.has_trouble())) return false;
    if constexpr (kIsGrouped) {
      for (uint32_t host = 0; host < far_.count(); ++host) {
        if (!far_.is_far(host)) continue;
        bool have_come = far_.receive(area_, host, 0, first);
        for (uint32_t token = 0; have_come && token < first.tokens; token += 1U << shape_.chunk_bits) {
          MoeChunkHeader header{};
          have_come = receive_chunk_of(host, token, header);
        }
        if (block.any(!have_come)) return false;
        relay_places(host, first.tokens, find_ids(host));
      }
    }
    const uint32_t last = blocks_per_grid() - 1;
    for (uint32_t host = 0; host < far_.count() && (block_index() + 1 == last || last == 0); ++host) {
      if (!far_.is_far(host)) continue;
      static_cast<void>(far_.receive(area_, host, 0, first));  // it has already arrived
      const uint32_t source = far_.find_counterpart(host);
      renew_entries(source, first.tokens);  // FAULT(entries_of_other_hosts_are_not_renewed)
    }
    return true;
  }
  VERBENA_DEVICE MoeFarIds find_ids(uint32_t host) const {
    return {far_, shape_,          area_.epoch(),
            host, far_row_bytes(), (row_packets_ + scale_packets_) * Packet::kBytes};
  }
  // Waits for the chunk that contains a token.
  VERBENA_DEVICE bool receive_chunk_of(uint32_t host, uint32_t token, MoeChunkHeader& header) {
    return far_.receive(area_, host, token >> shape_.chunk_bits, header);
  }
  VERBENA_DEVICE uint32_t find_in_chunk(uint32_t token) const {
    return token & ((1U << shape_.chunk_bits) - 1);
  }
  // The following functions relay the parts of a counterpart's message. The functions return false in all
  // lanes if a wait has failed.
  VERBENA_DEVICE bool relay_header(uint32_t host, uint32_t tokens, const MoeFarIds& ids) {
    const uint32_t source = far_.find_counterpart(host);
    char* const entries = find_header(source);
    for (uint32_t word = thread_index() / kWarpLanes; word < shape_.mask_words();
         word += threads_per_block() / kWarpLanes) {
      const uint32_t token = word * kMoeMaskBits + lane();
      MoeChunkHeader header{};
      const bool has_come = token >= tokens || receive_chunk_of(host, token, header);
      if (ballot(kFullWarp, !has_come) != 0) return false;
      uint32_t wanted = 0;
      for (uint32_t k = 0; k < shape_.top_k && token < tokens; ++k)
        wanted |= ids_.experts().find_rank_bit(ids.load(token, k));
      const uint32_t bits = find_moe_tokens(shape_.ranks, wanted);
      if (shape_.is_near(lane())) area_.send_entry(entries + word * kMoeEntryBytes, {bits, tokens}, lane());
    }
    return true;
  }
  // Relays the rows. The warp that sends the last part of a row also sends the row's tail.
  VERBENA_DEVICE bool relay_rows(uint32_t host, uint32_t tokens, const MoeFarIds& ids) {
    const uint32_t source = far_.find_counterpart(host);
    const MoeItems items(1, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    for (uint32_t item = items.first; item < items.count(tokens); item += items.step) {
      const uint32_t token = items.token(item), number = find_in_chunk(token);
      MoeChunkHeader header{};
      const bool has_come = receive_chunk_of(host, token, header);
      if (ballot(kFullWarp, !has_come) != 0) return false;
      if (!header.has(number)) continue;
      const char* const row = ids.find_row(
          far_.find_received(area_.epoch(), host, token >> shape_.chunk_bits), header.find_row(number));
      const int32_t id = lane() < shape_.top_k ? ids.load_of_row(row, lane()) : -1;
      const uint32_t ranks = combine_bits(ids_.experts().find_rank_bit(id)) & shape_.near;
      const MoePlace mine = area_.find(shape_.find_row(area_.epoch(), source, token));
      const uint32_t tail = items.is_last(item) ? tail_packets() : 0;
      const uint32_t begin = items.begin(item), end = items.end(item, row_packets_);
      relay_packets(row, mine, begin, end, ranks);
      relay_packets(row, mine, row_packets_, row_packets_ + tail, ranks);
    }
    return true;
  }
  VERBENA_DEVICE void relay_packets(const char* row, const MoePlace& mine, uint32_t begin, uint32_t end,
                                    uint32_t ranks) const {
    for (uint32_t first = begin + lane(); first < end; first += kAtOnce * kWarpLanes) {
      Data data[kAtOnce] = {};
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i)
        if (first + i * kWarpLanes < end) data[i] = load_moe<Data>(row, first + i * kWarpLanes);
      for (uint32_t left = ranks; left != 0; left &= left - 1) {
        const int64_t delta = area_.find_delta(find_lowest_moe_bit(left));
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          if (first + i * kWarpLanes < end) area_.send(mine, first + i * kWarpLanes, data[i], delta);
      }
    }
  }
  // Writes the ids of a counterpart's tokens to the handle, because this rank adds the rows of these tokens
  // in a combine.
  VERBENA_DEVICE bool write_far_ids(uint32_t host, uint32_t tokens, const MoeFarIds& ids) {
    const uint64_t begin = uint64_t{far_.find_place(host)} * shape_.max_tokens;
    for_each(shape_.max_tokens, [&](uint32_t token) {
      MoeChunkHeader header{};
      if (token < tokens && !receive_chunk_of(host, token, header)) return;
      for (uint32_t k = 0; k < shape_.top_k; ++k)
        store_moe<int32_t>(call_.handle + layout_.own_ids, (begin + token) * shape_.top_k + k,
                           token < tokens ? ids.load(token, k) : -1);
    });
    return !area_.has_trouble();
  }
  // Relays the entries of a dispatch that groups rows by expert. All threads of all blocks must call it.
  VERBENA_DEVICE void relay_places(uint32_t host, uint32_t tokens, const MoeFarIds& ids) {
    const uint32_t source = far_.find_counterpart(host), last = blocks_per_grid() - 1;
    const bool is_last_but_one = block_index() + 1 == last || last == 0;
    if (is_last_but_one) placement_.send_counts(area_, ids, source, tokens);
    placement_.send_places(area_, ids, source, tokens);
  }

  // The scales of grouped rows are received together with the rows, so the tail that remains to be received
  // starts after the scales.
  VERBENA_DEVICE uint32_t first_received(uint32_t first) const { return kIsGrouped ? scale_packets_ : first; }
  VERBENA_DEVICE void copy_tail(uint32_t token, uint64_t row) const {
    for (uint32_t index = first_received(first_of_tail()) + lane(); index < tail_packets();
         index += kWarpLanes)
      store_tail(row, index, load_tail(token, index));
  }
  VERBENA_DEVICE bool receive_tail(const MoePlace& place, uint32_t sender, uint64_t row) {
    for (uint32_t index = first_received(0) + lane(); index < tail_packets(); index += kWarpLanes) {
      Data data{};
      if (!area_.receive_one(place.find(row_packets_ + index), sender, data)) return false;
      store_tail(row, index, data);
    }
    return true;
  }
  // Receives the rows. If kInTurn is true, alternates between receiving and sending the items `next` to
  // `end_sent` - 1.
  VERBENA_DEVICE void receive_rows(const MoeItems& sent, uint32_t next, uint32_t end_sent) {
    const MoeItems items(shape_.ranks, row_packets_, call_.parts.receive_bits, blocks_per_grid());
    const uint32_t words = shape_.mask_words();
    uint32_t tokens = 0;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank)
      tokens = masks_.tokens[rank] > tokens ? masks_.tokens[rank] : tokens;
    for (uint32_t item = items.first;; item += items.step) {
      const bool is_end = item >= items.count(tokens);
      const uint32_t source = items.rank(item), token = items.token(item);
      if constexpr (kInTurn) send_rows(sent, next, is_end ? end_sent : sent.end_ahead(token, end_sent));
      if (is_end) return;
      if (source >= shape_.ranks || !masks_.has(words, source, token)) continue;
      const uint32_t row = source * shape_.max_tokens + masks_.find_number(words, source, token);
      const bool has_tail = items.is_last(item) && has_ids();
      if (has_tail && lane() == 0)
        store_moe<int32_t>(call_.handle + layout_.sources, row, static_cast<int32_t>(token));
      const MoePlace from = area_.find(shape_.find_row(area_.epoch(), source, token));
      const uint32_t sender = find_sender(source);
      bool have_come = true;
      if constexpr (kIsGrouped) {
        if (has_rows()) have_come = receive_grouped(items, item, from, source, token, row);
      } else {
        const auto to_row = [row](const auto& store) { store(row); };
        const uint32_t begin = items.begin(item), end = items.end(item, row_packets_);
        if (source == area_.me()) {
          copy_part(token, begin, end, to_row);
        } else {
          have_come = this->template receive_part<false>(from, sender, begin, end, to_row);
        }
      }
      if (has_tail && source == area_.me()) copy_tail(token, row);
      if (has_tail && source != area_.me()) have_come = have_come && receive_tail(from, sender, row);
      // All lanes return at the same time, because warp-wide operations need all of them.
      if (ballot(kFullWarp, !have_come) != 0) return;
    }
  }
  // Receives the part of a row that belongs to an item, and stores this part at all places of the row in the
  // output. With the last part, the function also receives the row's scales.
  VERBENA_DEVICE bool receive_grouped(const MoeItems& items, uint32_t item, const MoePlace& from,
                                      uint32_t source, uint32_t token, uint32_t row) {
    MoePlacement::OfRow places(placement_, area_, source, token);
    const auto to_places = [&](const auto& store) { places.for_each(store); };
    const uint32_t begin = items.begin(item), end = items.end(item, row_packets_);
    bool have_come = true;
    if (source == area_.me()) {
      copy_part(token, begin, end, to_places);
    } else {
      have_come = this->template receive_part<true>(from, find_sender(source), begin, end, to_places);
    }
    if (items.is_last(item) && (source != area_.me() || !Rows::kHasScales))
      have_come = have_come && receive_scales(from, source, token, to_places);
    if (begin == 0 && have_come) places.write(row);
    return have_come && !area_.has_trouble();
  }
  // Receives the scales of a grouped row. In a cast, this function is not called for this rank's own rows,
  // because their scales have been stored with the elements.
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
        has_come = area_.receive_one(from.find(row_packets_ + index), find_sender(source), data);
      if (ballot(kFullWarp, !has_come) != 0) return false;
      for_each_row([&](uint32_t place) {
        if (is_there) store_scales(place, index, data);
      });
    }
    return true;
  }

  // Stores the rows at their places in the outputs of all ranks (windows.cuh).
  VERBENA_DEVICE SymmStatus run_in_windows() {
    MoeWindows windows(shape_, MoeKind::kDispatch);
    const uint32_t offers = shape_.mask_words() * kMoeEntryBytes;  // offset of the offers in a header
    const uint32_t format = find_moe_format(call_);
    if (block_index() == blocks_per_grid() - 1) {
      windows.reset_next_counter(area_);
      const uint64_t rows = call_.output_rows, scales = rows * call_.output_scale_bytes;
      if (!windows.send_offers(area_, find_header(area_.me()) + offers,
                               {{call_.output, rows * call_.row_bytes},
                                {scales == 0 ? call_.output : call_.output_scales, scales},
                                {call_.handle, layout_.bytes}},
                               format))
        return area_.refuse();
    }
    send_header();
    const SymmStatus are_offered = windows.receive_offers<kMoeOffers>(
        area_, format, [&](uint32_t rank) { return find_header(rank) + offers; });
    const auto load_words = [&](MoeMasks& masks, uint32_t first, const auto& find) {
      return windows.load_words(masks, first, [&](uint32_t rank, uint32_t word, uint32_t& bits) {
        MoeEntry entry{};
        const bool has_come = area_.receive_entry(find(rank) + word * kMoeEntryBytes, rank, entry);
        bits = entry.bits;
        return has_come;
      });
    };
    const bool have_come =
        are_offered == SymmStatus::kDone &&
        load_words(windows.masks(), 0, [&](uint32_t rank) { return find_sent_header(rank); }) &&
        load_words(masks_, threads_per_block() / 2, [&](uint32_t rank) { return find_header(rank); });
    const BlockGroup block;
    if (block.any(are_offered == SymmStatus::kInvalid)) return area_.refuse();
    if (block.any(!have_come)) return area_.conclude();
    windows.count_words(windows.masks(), 0);
    windows.count_words(masks_, shape_.ranks);
    block.sync();
    store_rows(windows);
    write_own(call_.tokens);
    write_received();
    return windows.finish(area_);
  }
  VERBENA_DEVICE char* find_sent_header(uint32_t rank) const {
    return area_.find(shape_.find_sent_header(area_.epoch(), rank)).data;
  }
  // A part of one of this rank's rows, in registers: the packets first + i * 32 that are below `end`. The
  // last part of a row also has the row's experts and weights and, unless rows are cast, the row's scales.
  struct Part {
    uint32_t token, first, end;
    bool is_last;
    Data data[kAtOnce], scales[kAtOnce], tail;
    Pair pair;
  };
  // The parts of a warp.
  struct PartsOfWarp {
    const MoeItems items;
    const uint32_t row_packets;
    MoeItemQueue queue;
    uint32_t base;

    VERBENA_DEVICE bool is_end() const { return queue.is_end(); }
    VERBENA_DEVICE uint32_t end() const { return items.end(queue.item(), row_packets); }
    VERBENA_DEVICE void advance() {
      base += kAtOnce * kWarpLanes;
      if (base < end()) return;
      queue.advance();
      base = items.begin(queue.item());
    }
  };
  VERBENA_DEVICE void load_part(const PartsOfWarp& parts, Part& part) const {
    const uint32_t item = parts.queue.item();
    part.token = parts.items.token(item);
    part.first = parts.base + lane();
    part.end = parts.end();
    part.is_last = parts.items.is_last(item) && parts.base + kAtOnce * kWarpLanes >= part.end;
    if (part.is_last) {
      part.pair = load_pair(part.token, lane());
      if (first_of_tail() + lane() < scale_packets_) part.tail = load_scales(part.token, lane());
    }
    load_row(part.token, part.first, part.end, part.data, part.scales);
  }
  VERBENA_DEVICE void store_part(const MoeWindows& windows, const Part& part) const {
    const bool goes = windows.goes_to_lane(part.token);
    const uint32_t row_of_lane = goes ? windows.find_row(area_, lane(), part.token) : 0;
    if (part.is_last) write_own(part.token, lane(), part.pair);
    for (uint32_t left = ballot(kFullWarp, goes); left != 0; left &= left - 1) {
      const uint32_t rank = find_lowest_moe_bit(left);
      const uint32_t row = shuffle(kFullWarp, row_of_lane, static_cast<int>(rank));
      char* const place = windows.find(rank, 0) + uint64_t{row} * call_.row_bytes;
      char* const scales = windows.find(rank, 1);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t index = part.first + i * kWarpLanes;
        if (index >= part.end) continue;
        store_moe<Data>(place, index, part.data[i]);
        if (Rows::kHasScales && lane() == 0) store_scales(scales, row, index / kWarpLanes, part.scales[i]);
      }
      if (!part.is_last) continue;
      const int32_t local = ids_.experts().make_local(part.pair.id, rank);
      store_pair(windows.find(rank, 2), row, lane(), {local, local < 0 ? 0 : part.pair.weight});
      for (uint32_t i = first_of_tail() + lane(); i < scale_packets_; i += kWarpLanes)
        store_scales(scales, row, i, i < kWarpLanes ? part.tail : load_scales(part.token, i));
    }
  }
  // While a part is stored, the next part is loaded, so that NVLink is not idle.
  VERBENA_DEVICE void store_rows(const MoeWindows& windows) const {
    const MoeItems items(1, row_packets_, call_.parts.send_bits, blocks_per_grid());
    PartsOfWarp parts{
        items, row_packets_, {items, call_.tokens, windows.find_counter(area_)}, items.begin(items.first)};
    if (parts.is_end()) return;
    Part one, other;
    load_part(parts, one);
    for (;;) {
      parts.advance();
      if (parts.is_end()) return store_part(windows, one);
      load_part(parts, other);
      store_part(windows, one);
      parts.advance();
      if (parts.is_end()) return store_part(windows, other);
      load_part(parts, one);
      store_part(windows, other);
    }
  }

  // The following functions write those parts of the handle that do not come from received rows. The work is
  // divided among the threads of the grid, beginning with the last thread, because the first threads also
  // handle rows. A few indices are spread over all blocks. Otherwise adjacent lanes have adjacent indices, so
  // that their stores go to the same lines.
  template <typename Write>
  VERBENA_DEVICE void for_each(uint32_t count, const Write& write) const {
    const uint32_t blocks = blocks_per_grid(), threads = blocks * threads_per_block();
    const uint32_t block = block_index(), thread = thread_index();
    const uint32_t number = count <= blocks ? thread * blocks + block
                                            : (thread / kWarpLanes * blocks + block) * kWarpLanes + lane();
    for (uint32_t i = threads - 1 - number; i < count; i += threads) write(i);
  }
  // @param first  the first token whose ids and weights are written
  VERBENA_DEVICE void write_own(uint32_t first) const {
    for_each((shape_.max_tokens - first) * shape_.top_k, [&](uint32_t i) {
      const uint32_t token = first + i / shape_.top_k, k = i % shape_.top_k;
      write_own(token, k, token < call_.tokens ? load_pair(token, k) : Pair{-1, 0});
    });
  }
  VERBENA_DEVICE void write_own(uint32_t token, uint32_t k, Pair pair) const {
    if (k >= shape_.top_k) return;
    // FAULT(combine_waits_for_dead_ranks)
    if (!shape_.is_living(ids_.experts().find_rank(pair.id))) pair = {-1, 0};
    store_moe<int32_t>(call_.handle + layout_.own_ids, token * shape_.top_k + k, pair.id);
    store_moe<float>(call_.handle + layout_.own_weights, token * shape_.top_k + k, pair.weight);
  }
  // is_relayed() returns true if `rank` is this rank or one of its counterparts. In a combine, this rank adds
  // the rows for the tokens of these ranks. find_place() returns the rank's index h in the handle's tensors
  // (MoeHandleLayout).
  VERBENA_DEVICE bool is_relayed(uint32_t rank) const {
    if constexpr (kSpansHosts) return far_.find_index(rank) == far_.index();
    return rank == area_.me();
  }
  VERBENA_DEVICE uint32_t find_place(uint32_t rank) const {
    if constexpr (kSpansHosts) return far_.find_place(far_.find_host(rank));
    return 0;
  }
  // Writes `counts`, `stamp` and `own_numbers` to the handle, and marks the rows after the last received row.
  VERBENA_DEVICE void write_received() const {
    const uint32_t words = shape_.mask_words();
    for_each(shape_.ranks * shape_.max_tokens, [&](uint32_t row) {
      const uint32_t rank = row / shape_.max_tokens, number = row - rank * shape_.max_tokens;
      if (is_relayed(rank))
        store_moe<int32_t>(call_.handle + layout_.own_numbers, find_place(rank) * shape_.max_tokens + number,
                           masks_.has(words, rank, number)
                               ? static_cast<int32_t>(masks_.find_number(words, rank, number))
                               : -1);
      const uint32_t count = masks_.counts[rank];
      if (number == 0) store_moe<int32_t>(call_.handle + layout_.counts, rank, static_cast<int32_t>(count));
      if (row == 0) {
        store_moe<uint32_t>(call_.handle + layout_.stamp, 0, make_moe_stamp(shape_));
        store_moe<uint32_t>(call_.handle + layout_.stamp, 1, call_.tokens);
        store_moe<uint32_t>(call_.handle + layout_.stamp, 2, static_cast<uint32_t>(call_.grouping));
      }
      if constexpr (kInWindows) {
        if (masks_.has(words, rank, number))
          store_moe<int32_t>(call_.handle + layout_.sources,
                             rank * shape_.max_tokens + masks_.find_number(words, rank, number),
                             static_cast<int32_t>(number));
      }
      if (number < count) return;
      store_moe<int32_t>(call_.handle + layout_.sources, row, -1);
      // The vectors make a dispatch of a few tokens faster if the exchange is for many.
      const uint64_t first = uint64_t{row} * shape_.top_k;
      const bool are_vectors = shape_.top_k % kWordsOfVector == 0;
      for (uint32_t k = 0; are_vectors && k < shape_.top_k; k += kWordsOfVector) {
        store_moe<Vector16>(call_.handle + layout_.ids, (first + k) / kWordsOfVector, {~0U, ~0U, ~0U, ~0U});
        store_moe<Vector16>(call_.handle + layout_.weights, (first + k) / kWordsOfVector, {});
      }
      for (uint32_t k = 0; !are_vectors && k < shape_.top_k; ++k) store_pair(call_.handle, row, k, {-1, 0});
    });
  }

  MoeMasks& masks_;
  const MoeIds ids_;
  typename MoePlacementOf<kIsGrouped>::Type placement_;
  const Far far_;
};

}  // namespace verbena::device

#endif
