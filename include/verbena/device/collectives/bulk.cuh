// Collectives for large tensors. Each rank writes chunks into its peers' slots and sets a flag after each
// chunk, so nearly all bytes on the links are data. Inputs and outputs need no alignment.
//
//   Bulk<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, length_bytes, PlainCodec<ReduceAs<float>>{});   // or exchange
//   status = calls.finish();
//
// Do not use the same workspace for Bulk and for low_latency.cuh. The rules for blocks, the order of
// additions and the errors are the same as in one_shot.cuh.
//
// bulk_slots.cuh has the slots and flags, bulk_reduce.cuh has the reductions and broadcasts, and this file
// has the exchanges. In step s of an exchange, a block sends chunk s and stores the received chunk s-1. In
// the slot at rank q, chunk s overwrites chunk s-4. This is safe, because the sender has already received q's
// chunk s-2, which q sent after it had stored chunk s-4.
//
// Bulk<SymmContext, true> also exchanges messages with members that only a NIC reaches. A message to such a
// member is staged in the upper half of this rank's slot for the member. A NIC copies the message from there
// to the lower half of this rank's slot at the member, and then writes the flag. The member sends its chunk
// s+2 after it has waited for this rank's chunk s. So when the member's chunk s+2 arrives, the staged chunk s
// has been delivered, and its staging memory is free. With Payload::kShared, the message for all members is
// staged in this rank's own slot, and both halves of a slot carry data.
#ifndef VERBENA_DEVICE_COLLECTIVES_BULK_CUH
#define VERBENA_DEVICE_COLLECTIVES_BULK_CUH

#include "verbena/device/collectives/bulk_reduce.cuh"
#include "verbena/device/collectives/codec_lossless.cuh"

namespace verbena::device {

// How messages are sent to members that only a NIC reaches. With kPlain, messages are sent unchanged. With
// kLossless, messages are encoded as if they consisted of bfloat16 elements. In both cases, the receiver gets
// the bytes of the original message.
enum class Wire : uint32_t { kPlain, kLossless };

// Whether the messages of a rank to the other members may differ. If all are the same, and only a NIC reaches
// the other members, the rank stages one message for all members.
enum class Payload : uint32_t { kPerMember, kShared };

namespace detail {

// Returns the put queue of block `block`. All blocks of a cluster make their requests as one block.
template <typename Context>
VERBENA_DEVICE SymmQueue find_queue_of(const Context&, uint32_t) {
  return {};
}
VERBENA_DEVICE SymmQueue find_queue_of(const SymmContext& context, uint32_t block) {
  return {context.first_queue + block};
}

// Sends data and then a flag to a member that only a NIC reaches, through the same queue, so that the flag
// arrives after the data. One thread makes the call. The targets in the peer's memory have the same offsets
// in the heap as the local addresses `there` and `flag`.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult put_remote(const Context& context, SymmQueue queue, int32_t peer, char* there,
                                         const char* here, uint64_t length_bytes, uint64_t* flag,
                                         uint64_t number) {
  using Network = SymmNetwork<Context>;
  WaitResult result = WaitResult::kReached;
  if (length_bytes != 0) result = Network::put(context, peer, there, here, length_bytes, queue);
  return result == WaitResult::kReached ? Network::write_word(context, peer, flag, number, queue) : result;
}
// This overload enqueues the requests for the data and for the flag together, so that the proxy also posts
// both requests together.
VERBENA_DEVICE WaitResult put_remote(const SymmContext& context, SymmQueue queue, int32_t peer, char* there,
                                     const char* here, uint64_t length_bytes, uint64_t* flag,
                                     uint64_t number) {
  const PutRequest requests[] = {request_copy(context, PutOperation::kPut, here, there, length_bytes),
                                 {PutOperation::kWriteWord, number, 0, find_offset(context, flag)}};
  const uint32_t first = length_bytes == 0 ? 1 : 0;
  return enqueue(context, queue, peer, requests + first, 2 - first, true, nullptr);
}
// Writes two adjacent words in the memory of a member that only a NIC reaches. One thread makes the call.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult write_remote(const Context& context, SymmQueue queue, int32_t peer,
                                           uint64_t* words, uint64_t first, uint64_t second) {
  using Network = SymmNetwork<Context>;
  const WaitResult result = Network::write_word(context, peer, words, first, queue);
  return result == WaitResult::kReached ? Network::write_word(context, peer, words + 1, second, queue)
                                        : result;
}

}  // namespace detail

// @tparam kReachesFar  true if some members can be reached only through a NIC; then only exchanges are
//                      allowed
template <typename Context = SymmContext, bool kReachesFar = false>
class Bulk : public BulkReduce<Context, kReachesFar> {
  using Slots = BulkSlots<Context, kReachesFar>;

 public:
  using BulkReduce<Context, kReachesFar>::BulkReduce;

  // Exchanges messages, like OneShot::exchange().
  template <Wire kWire = Wire::kPlain, Payload kPayload = Payload::kPerMember, typename Plan,
            typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange(const Plan& plan, uint64_t max_bytes,
                                                   const Group& group = {}) {
    return for_chunks<kWire, kPayload>(
        plan, max_bytes, group, [&](uint64_t number, uint64_t at, uint32_t most) {
          for (int32_t turn = 0; turn < count_members(); ++turn) {
            const int32_t member = find_member(turn);
            const auto entry = plan(member);
            const uint64_t length = detail::cut_round(entry.receive, at, most);
            if constexpr (kWire == Wire::kLossless) {
              if (detail::get_delta(context_, member) == kSymmOutOfReach) {
                decode_rows(entry.destination.from(entry.receive.begin + at), find_slot(number, member),
                            static_cast<uint32_t>(length), group);
                continue;
              }
            }
            const Rows from = member == context_.team_rank ? entry.source.from(entry.receive.begin + at)
                                                           : Rows::contiguous(find_slot(number, member));
            detail::copy_rows(group, entry.destination.from(entry.receive.begin + at), from, length);
          }
        });
  }
  template <int kRanks = 0, typename Plan, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange_reduce(const Plan& plan, uint64_t max_bytes,
                                                          const Reduce& reduce, const Group& group = {}) {
    if (kRanks != 0 && kRanks != context_.team_size) status_ = SymmStatus::kInvalid;
    return for_chunks<Wire::kPlain, Payload::kPerMember>(
        plan, max_bytes, group, [&](uint64_t number, uint64_t at, uint32_t most) {
          const auto entry = plan(context_.team_rank);
          const auto length = static_cast<uint32_t>(detail::cut_round(entry.receive, at, most));
          reduce_chunk<kRanks>(entry.source.from(entry.receive.begin + at),
                               entry.destination.from(entry.receive.begin + at), length, number, reduce,
                               group);
        });
  }

  // Reduces the messages from all members like exchange_reduce(), but does not store the sums. Instead, calls
  // `take(offset, sums)` with the unrounded sums for each vector of this rank's part.
  // @param take  `offset` is in bytes from the start of the part
  template <typename Plan, typename Reduce, typename Take, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange_sums(const Plan& plan, uint64_t max_bytes,
                                                        const Reduce& reduce, const Take& take,
                                                        const Group& group = {}) {
    return for_chunks<Wire::kPlain, Payload::kPerMember>(
        plan, max_bytes, group, [&](uint64_t number, uint64_t at, uint32_t most) {
          const auto entry = plan(context_.team_rank);
          const auto length = static_cast<uint32_t>(detail::cut_round(entry.receive, at, most));
          add_chunk<0>(entry.source.from(entry.receive.begin + at), length, number, reduce, group,
                       [&](uint32_t offset, auto& sums) { take(at + offset, sums); });
        });
  }

 private:
  using Slots::begin, Slots::end, Slots::find_slot, Slots::half_bytes, Slots::signal, Slots::wait;
  using Slots::block_, Slots::chunk_bytes_, Slots::context_, Slots::number_, Slots::status_;
  using Slots::count_members, Slots::find_flag, Slots::find_member, Slots::kLengthWord;
  static constexpr uint32_t kCodedElementBytes = sizeof(Bfloat16);
  using CodedRows = LosslessTiles<kCodedElementBytes>;

  // Runs an exchange. Chunks use both halves of a slot, unless one half is used for staging.
  template <Wire kWire, Payload kPayload, typename Plan, typename Group, typename Take>
  VERBENA_DEVICE SymmStatus for_chunks(const Plan& plan, uint64_t max_bytes, const Group& group,
                                       const Take& take) {
    if (!begin(group) || max_bytes == 0) return status_;
    uint64_t room = (kReachesFar && kPayload == Payload::kPerMember ? 1 : 2) * half_bytes();
    if constexpr (kWire == Wire::kLossless) {
      room = CodedRows::fit_chunk(room) * uint64_t{kCodedElementBytes};
      if (room == 0) return status_ = SymmStatus::kInvalid;
    }
    auto most = static_cast<uint32_t>(chunk_bytes_ >= kVectorBytes && chunk_bytes_ < room
                                          // FAULT(chunks_split_elements)
                                          ? chunk_bytes_ / kVectorBytes * kVectorBytes
                                          : room);
    const bool is_known = max_bytes != kUnknownLength;
    // Between hosts, a short last chunk takes almost as long as a full chunk.
    if (kReachesFar && is_known)
      most = static_cast<uint32_t>(
          detail::even_rounds(max_bytes, most, kWire == Wire::kLossless ? kTileBytes : kVectorBytes));
    uint64_t chunks = ((is_known ? max_bytes : find_longest(plan)) + most - 1) / most;
    if (!is_known) {
      send_chunk<kWire, kPayload>(plan, number_, 0, most, group);
      publish_lengths(plan, chunks, group);
      if (!send_remote<kWire, kPayload>(plan, number_, 0, most, chunks, group)) return status_;
      signal(number_, BulkPhase::kAddends, group);
      if (!wait(number_, BulkPhase::kAddends, group) || !read_lengths(plan, chunks, group)) return status_;
    }
    for (uint64_t step = is_known ? 0 : 1; step < chunks + 1; ++step) {
      if (step < chunks) {
        send_chunk<kWire, kPayload>(plan, number_ + step, step * most, most, group);
        if (!send_remote<kWire, kPayload>(plan, number_ + step, step * most, most, 0, group)) return status_;
        signal(number_ + step, BulkPhase::kAddends, group);
      }
      if (step == 0) continue;
      if (!wait(number_ + step - 1, BulkPhase::kAddends, group)) return status_;
      take(number_ + step - 1, (step - 1) * most, most);
    }
    return end(chunks, group);
  }

  template <typename Plan>
  VERBENA_DEVICE uint64_t find_longest(const Plan& plan) const {
    uint64_t longest = 1;  // at least one chunk is needed, to send the lengths
    for (int32_t member = 0; member < context_.team_size; ++member) {
      const auto entry = plan(member);
      if (entry.send.length_bytes > longest) longest = entry.send.length_bytes;
      if (entry.receive.length_bytes > longest) longest = entry.receive.length_bytes;
    }
    return longest;
  }
  // Publishes the lengths of messages. Exchanges need this if a rank does not know the lengths of the
  // messages between other ranks. The sender writes two numbers after the flags in the slot of the first
  // chunk: the length of the message, and the number of chunks that the sender needs. All ranks then exchange
  // the largest number of chunks that any rank needs.
  template <typename Plan, typename Group>
  VERBENA_DEVICE void publish_lengths(const Plan& plan, uint64_t chunks, const Group& group) const {
    const auto peers = static_cast<uint32_t>(count_members()) - 1;
    for (uint32_t i = group.rank(); i < peers; i += group.size()) {
      const int32_t peer = find_member(static_cast<int32_t>(i) + 1);
      const int64_t delta = detail::get_delta(context_, peer);
      if (kReachesFar && delta == kSymmOutOfReach) continue;
      uint64_t* const told =
          detail::shift(find_flag(number_, context_.team_rank, BulkPhase::kAddends) + kLengthWord, delta);
      store<Order::kWeak, Scope::kThreads>(told, plan(peer).send.length_bytes);
      store<Order::kWeak, Scope::kThreads>(told + 1, chunks);
    }
  }
  template <typename Plan, typename Group>
  VERBENA_DEVICE bool read_lengths(const Plan& plan, uint64_t& chunks, const Group& group) {
    bool is_wrong = false;
    for (int32_t turn = 1; turn < context_.team_size; ++turn) {
      const int32_t peer = find_member(turn);
      const uint64_t* const told = find_flag(number_, peer, BulkPhase::kAddends) + kLengthWord;
      is_wrong = is_wrong || load<Order::kWeak, Scope::kThreads>(told) != plan(peer).receive.length_bytes;
      const auto theirs = load<Order::kWeak, Scope::kThreads>(told + 1);
      if (theirs > chunks) chunks = theirs;
    }
    if (group.any(is_wrong)) status_ = SymmStatus::kInvalid;
    return status_ == SymmStatus::kDone;
  }
  template <Wire kWire, Payload kPayload, typename Plan, typename Group>
  VERBENA_DEVICE void send_chunk(const Plan& plan, uint64_t number, uint64_t at, uint32_t most,
                                 const Group& group) const {
    char* const there = find_slot(number, context_.team_rank);
    const auto mine = plan(context_.team_rank);
    // FAULT(exchange_in_place_reads_beside)
    const bool is_in_place = mine.source.find(0) == mine.destination.find(0);
    if constexpr (kWire == Wire::kLossless) encode_remote<kPayload>(plan, number, at, most, group);
    for (int32_t turn = 1; turn < count_staged<kPayload>(); ++turn) {
      const int32_t peer = find_member(turn);
      const auto entry = plan(peer);
      const int64_t delta = detail::get_delta(context_, peer);
      if (kWire == Wire::kLossless && delta == kSymmOutOfReach) continue;
      char* const to = kReachesFar && delta == kSymmOutOfReach ? find_staging<kPayload>(number, peer)
                                                               : detail::shift(there, delta);
      detail::copy_rows(group, Rows::contiguous(to), entry.source.from(entry.send.begin + at),
                        detail::cut_round(entry.send, at, most), is_in_place);
    }
  }
  template <Payload kPayload>
  VERBENA_DEVICE char* find_staging(uint64_t number, int32_t peer) const {
    if (kPayload == Payload::kShared) return find_slot(number, context_.team_rank);
    return find_slot(number, peer) + half_bytes();
  }
  // Returns the number of members whose messages are staged, plus 1.
  template <Payload kPayload>
  VERBENA_DEVICE int32_t count_staged() const {
    const int32_t members = count_members();
    return kPayload == Payload::kShared && members > 2 ? 2 : members;
  }
  VERBENA_DEVICE static uint32_t count_coded(uint64_t length_bytes) {
    return static_cast<uint32_t>((length_bytes + kCodedElementBytes - 1) / kCodedElementBytes);
  }
  // Encodes the messages to members that only a NIC reaches, and stages the encoded messages. Each warp
  // encodes one tile at a time.
  template <Payload kPayload, typename Plan, typename Group>
  VERBENA_DEVICE void encode_remote(const Plan& plan, uint64_t number, uint64_t at, uint32_t most,
                                    const Group& group) const {
    const auto for_remote = [&](const auto& visit) {
      for (int32_t turn = 1; turn < count_staged<kPayload>(); ++turn) {
        const int32_t peer = find_member(turn);
        if (detail::get_delta(context_, peer) != kSymmOutOfReach) continue;
        const auto entry = plan(peer);
        const auto length = static_cast<uint32_t>(detail::cut_round(entry.send, at, most));
        visit(CodedRows(find_staging<kPayload>(number, peer), count_coded(length)),
              entry.source.from(entry.send.begin + at), length);
      }
    };
    for_remote([&](const CodedRows& message, const Rows&, uint32_t) { message.begin(group); });
    group.sync();
    for_remote([&](const CodedRows& message, const Rows& from, uint32_t length) {
      for (uint32_t tile = group.rank() / kWarpLanes; tile < message.tiles();
           tile += group.size() / kWarpLanes) {
        TileWords words;
        if (from.is_contiguous()) {
          load_tile_words<kCodedElementBytes>(static_cast<const char*>(from.find(0)), tile, length, words);
        } else {
          load_tile_words<kCodedElementBytes>(from, tile, length, words);
        }
        message.store(tile, words);
      }
    });
  }
  template <typename Group>
  VERBENA_DEVICE void decode_rows(const Rows& to, const char* from, uint32_t length,
                                  const Group& group) const {
    const LosslessTiles<kCodedElementBytes, const char> message(from, count_coded(length));
    for (uint32_t tile = group.rank() / kWarpLanes; tile < message.tiles();
         tile += group.size() / kWarpLanes) {
      TileWords words;
      message.load(tile, words);
      if (to.is_contiguous()) {
        store_tile_words<kCodedElementBytes>(to.find(0), tile, length, words);
      } else {
        store_tile_words<kCodedElementBytes>(to, tile, length, words);
      }
    }
  }
  // Sends the data that send_chunk() has staged, and then the flag, to the members that only a NIC reaches.
  // Uses one thread per member. If `chunks` is not 0, also sends the lengths, like publish_lengths().
  template <Wire kWire, Payload kPayload, typename Plan, typename Group>
  VERBENA_DEVICE bool send_remote(const Plan& plan, uint64_t number, uint64_t at, uint32_t most,
                                  uint64_t chunks, const Group& group) {
    if constexpr (kReachesFar) {
      group.sync();
      const auto peers = static_cast<uint32_t>(count_members()) - 1;
      const SymmQueue queue = detail::find_queue_of(context_, block_);
      WaitResult mine = WaitResult::kReached;
      int32_t peer = 0;
      for (uint32_t i = group.rank(); i < peers && mine == WaitResult::kReached; i += group.size()) {
        peer = find_member(static_cast<int32_t>(i) + 1);
        if (detail::get_delta(context_, peer) != kSymmOutOfReach) continue;
        const auto entry = plan(peer);
        uint64_t* const flag = find_flag(number, context_.team_rank, BulkPhase::kAddends);
        if (chunks != 0)
          mine = detail::write_remote(context_, queue, peer, flag + kLengthWord, entry.send.length_bytes,
                                      chunks);
        uint64_t length = detail::cut_round(entry.send, at, most);
        if (kWire == Wire::kLossless && length != 0)
          length = CodedRows(find_staging<kPayload>(number, peer), count_coded(length)).length_bytes();
        if (mine == WaitResult::kReached)
          mine = detail::put_remote(context_, queue, peer, find_slot(number, context_.team_rank),
                                    find_staging<kPayload>(number, peer), length, flag, number);
      }
      status_ =
          detail::conclude(context_, group, mine, {SymmWait::kRequest, block_, static_cast<uint32_t>(peer)});
    }
    return status_ == SymmStatus::kDone;
  }
  template <int kRanks, typename Reduce, typename Group>
  VERBENA_DEVICE void reduce_chunk(const Rows& source, const Rows& destination, uint32_t length,
                                   uint64_t number, const Reduce& reduce, const Group& group) const {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    const bool is_flat = destination.is_contiguous();
    char* const to = destination.find(0);
    add_chunk<kRanks>(source, length, number, reduce, group, [&](uint32_t offset, auto& sums) {
      const Vector16 sum = reduce.template finish<Vector16>(sums, size);
      if (is_flat) {
        detail::store_vector(to, offset, length, sum);
      } else {
        detail::store_vector(destination, offset, length, sum);
      }
    });
  }
  // Reduces a chunk, and calls `take(offset, sums)` for each vector.
  template <int kRanks, typename Reduce, typename Group, typename Take>
  VERBENA_DEVICE void add_chunk(const Rows& source, uint32_t length, uint64_t number, const Reduce& reduce,
                                const Group& group, const Take& take) const {
    constexpr int32_t kAtOnce = kRanks == 0 ? 4 : kRanks;
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks, me = context_.team_rank;
    const bool is_flat = source.is_contiguous();
    const char* const from = source.find(0);
    for (uint32_t offset = group.rank() * kVectorBytes; offset < length;
         offset += group.size() * kVectorBytes) {
      typename Reduce::template Sums<Vector16> sums;
      VERBENA_UNROLL_BY(1)
      for (int32_t first = 0; first < size; first += kAtOnce) {
        Vector16 addends[kAtOnce];
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if (first + i >= size) continue;
          if (first + i != me) {
            addends[i] = detail::load_data(find_slot(number, first + i) + offset);
          } else if (is_flat) {
            addends[i] = detail::load_vector(from, offset, length);
          } else {
            addends[i] = __builtin_bit_cast(
                Vector16, detail::Halves{detail::load_part<uint64_t>(source, offset, length),
                                         detail::load_part<uint64_t>(source, offset + 8, length)});
          }
        }
        reduce.add(sums, addends, first, size - first < kAtOnce ? size - first : kAtOnce);
      }
      take(offset, sums);
    }
  }
};

}  // namespace verbena::device

#endif
