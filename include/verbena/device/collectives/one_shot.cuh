// One-shot collectives in packets (low_latency.cuh), for small tensors. Each rank sends its data to all other
// ranks; in an all-reduce, a rank sends its whole tensor. The first packet is sent without a barrier and
// without a fence.
//
//   OneShot<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, count);   // or all_gather(), exchange(); any number of times
//   status = calls.finish();
//
// Blocks: each tensor is split over `blocks` blocks of each rank. Block b waits only for blocks b of the
// other ranks, so the blocks of a rank need not run at the same time. All ranks must make the same calls in
// the same order, with the same counts, types and `blocks`; the number of threads may differ. Kernels that
// use the same workspace must run one after the other, in the same stream.
//
// Results: every rank adds the elements in float (packed.cuh), in rank order, and rounds once. So all ranks
// get the same bits, and the bits do not depend on `count` or `blocks`.
//
// Errors: each wait ends within the context's timeout. After an error, all later calls return the same error,
// until the hosts reset the workspace (verbena_workspace_reset). The failure word (SymmContext::failure) has
// the details.
//
// Programmatic dependent launch: in the first call, the kernel waits for the earlier kernels of the stream
// (GridStart). The kernel's work before this call overlaps with the earlier kernels. A block that has no part
// of the tensor does not wait for earlier kernels.
#ifndef VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CUH
#define VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CUH

#include "verbena/device/collectives/packet_calls.cuh"

namespace verbena::device {

template <typename Context = SymmContext>
class OneShot : public PacketCalls<Context, OneShot<Context>> {
  using Calls = PacketCalls<Context, OneShot>;

 public:
  using Calls::Calls;
  using typename Calls::Exchange;

  // Does an all-reduce with any reduction of reduction.cuh. `length_bytes` is a multiple of the element size.
  template <int kRanks = 0, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_bytes(const char* input, char* output,
                                                           uint64_t length_bytes, const Reduce& reduce,
                                                           const Group& group = {}) {
    Data first{};
    return for_messages<kRanks>(
        length_bytes, kVectorBytes, exchange_.capacity_bytes(), group,
        [&](uint64_t offset, uint32_t length) {
          if (group.rank() < Packet::count(length))
            first = MessageBytes(input + offset, length).load(group.rank());
        },
        [&](const Exchange&, uint64_t offset, uint32_t length) {
          return reduce_message<kRanks>(input + offset, output + offset, length, first, reduce, group);
        });
  }

  // Does an all-reduce in one message, for tensors that are aligned to 16 bytes. This is the fastest variant.
  // Each thread first sends all its vectors, and then receives and reduces them one after the other.
  template <int kRanks, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_vectors(const char* input, char* output,
                                                             uint64_t length_bytes, const Reduce& reduce,
                                                             const Group& threads = {}) {
    const KeptGroup<Group> group(threads);
    const Part part = find_part(length_bytes, block_, blocks_, kVectorBytes);
    if (detail::offset_in_vector(input) != 0 || detail::offset_in_vector(output) != 0 ||
        length_bytes % kVectorBytes != 0)
      status_ = SymmStatus::kInvalid;
    const auto count = static_cast<uint32_t>(part.length_bytes / kVectorBytes);
    if (status_ != SymmStatus::kDone || count == 0) return status_;
    const char* const from = keep(input + part.begin);
    char* const to = keep(output + part.begin);
    if (begin_vectors<kRanks>(count) != SymmStatus::kDone) return status_;
    Vector16 first{};
    if (group.rank() < count) first = detail::load_data(from + Packet::offset(group.rank()));
    if (!begin_message(group)) return status_;
    typename Exchange::Trouble trouble = exchange_.trouble();
    const uint32_t end = trouble == 0 ? count : 0;
    if (group.rank() < end) exchange_.template send_to_members<kRanks>({group.rank()}, 1, {first});
    for (uint32_t i = group.rank() + group.size(); i < end; i += group.size())
      exchange_.template send_to_members<kRanks>({i}, 1, {detail::load_data(from + Packet::offset(i))});
    for (uint32_t i = group.rank(); i < end && trouble == 0; i += group.size()) {
      Vector16 vector[1];
      trouble = exchange_.template reduce_from_members<kRanks>({i}, 1, vector, reduce);
      if (trouble == 0) detail::store_data(to + Packet::offset(i), vector[0]);
    }
    return status_ = exchange_.conclude(group, trouble);
  }

  // Splits the block's part of a tensor into messages, and calls `body` for each message. Parts consist of
  // whole units of `unit_bytes` bytes.
  // @param max_bytes  max length of a message
  // @param load  load(offset, length_bytes) starts to load the first data of a message. load() is called
  //              before `body`, so that these loads overlap with the load of the epoch (the number of the
  //              call)
  // @param body  body(exchange, offset, length_bytes) sends a message to all other ranks and receives their
  //              messages, packet by packet. If kCalls is 2, it processes up to two messages that are in
  //              flight at the same time
  template <int kRanks = 0, uint32_t kCalls = 1, typename Group, typename Load, typename Body>
  [[nodiscard]] VERBENA_DEVICE SymmStatus for_messages(uint64_t length_bytes, uint64_t unit_bytes,
                                                       uint64_t max_bytes, const Group& group,
                                                       const Load& load, const Body& body) {
    if (status_ == SymmStatus::kDone && (!exchange_.is_size(kRanks) || max_bytes == 0))
      status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const Part part = find_part(length_bytes, block_, blocks_, unit_bytes);
    // If this block has no part, the blocks with the same index have no part on any rank, so no peer waits
    // for this block.
    for (uint64_t at = 0; at < part.length_bytes; at += kCalls * max_bytes) {
      const auto length = static_cast<uint32_t>(detail::cut_round(part, at, kCalls * max_bytes));
      if (!start()) return status_;
      load(part.begin + at, length);
      if (!begin_in_step(group, length > max_bytes ? kCalls : 1)) return status_;
      status_ = body(exchange_, part.begin + at, length);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }
  // Concatenates all ranks' inputs in `output`, in rank order.
  // @param input  `count` elements of any type; either this rank's part of the output, or memory that does
  //               not overlap the output
  // @param output  team_size * count elements
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_gather(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    const uint64_t length_bytes = count * sizeof(T);
    const Part part = find_part(length_bytes, block_, blocks_);
    const auto plan = [&](int32_t member) {
      const char* const to = reinterpret_cast<char*>(output) + static_cast<uint64_t>(member) * length_bytes;
      return ExchangeEntry{Rows::contiguous(input), Rows::contiguous(to), part, part};
    };
    return exchange<kRanks>(plan, part.length_bytes, group);
  }

  // Sends each member its message, and stores the messages from all members. Sender and receiver of a message
  // must pass the same length. A rank's message to itself may have the same source and destination. All other
  // sources must not overlap any destination.
  // @param plan  plan(member) returns the ExchangeEntry of a member, including this rank
  // @param max_bytes  ExchangePlan::max_bytes
  template <int kRanks = 0, typename Plan, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange(const Plan& plan, uint64_t max_bytes,
                                                   const Group& group = {}) {
    return for_rounds<kRanks>(plan, max_bytes, group, [&](const Round& round) {
      detail::copy_rows(group, plan(context_.team_rank).destination.from(round.offset(own_part(plan))),
                        plan(context_.team_rank).source.from(round.offset(own_part(plan))),
                        round.length(own_part(plan)));
      return place_messages<kRanks>(plan, round, group);
    });
  }
  // Sends each member its message, and reduces the messages from all members into the destination of this
  // rank's entry. The messages from all members have the length of this rank's entry.
  template <int kRanks = 0, typename Plan, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange_reduce(const Plan& plan, uint64_t max_bytes,
                                                          const Reduce& reduce, const Group& group = {}) {
    return for_rounds<kRanks>(plan, max_bytes, group, [&](const Round& round) {
      return reduce_messages<kRanks>(plan, round, reduce, group);
    });
  }

  // The following functions do a sequence of all-reduces of vectors in registers. send_vectors() and
  // reduce_vectors() are the two halves of an all-reduce. Between the two halves, the group may load other
  // data, and may call send_vectors() for the next all-reduce. First call begin_vectors() once, for
  // all-reduces of `count` vectors. One call of exchange_ (LowLatency) consists of as many all-reduces as fit
  // into a slot.
  // @param count  number of vectors of the group. A thread's vectors[k] is vector k * group.size() +
  //               group.rank() of the group, and has no effect if this index is `count` or more
  template <int kRanks>
  [[nodiscard]] VERBENA_DEVICE SymmStatus begin_vectors(uint32_t count) {
    const uint64_t length_bytes = uint64_t{count} * kVectorBytes;
    if (!exchange_.is_size(kRanks) || length_bytes > exchange_.capacity_bytes())
      status_ = SymmStatus::kInvalid;
    if (count != 0) in_slot_ = static_cast<uint32_t>(exchange_.capacity_bytes() / length_bytes);
    sent_ = reduced_ = in_slot_;
    exchange_.template prepare<kRanks>();
    (void)start();
    return status_;
  }
  template <int kRanks, uint32_t kVectors, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus send_vectors(const Vector16 (&vectors)[kVectors], uint32_t count,
                                                       const Group& group = {}) {
    if (status_ != SymmStatus::kDone || !enter_call(group)) return status_;
    const uint32_t ahead = sent_ < in_slot_ ? 0 : 1;
    uint32_t index[kVectors];
    const uint32_t which =
        find_vectors((sent_ - ahead * in_slot_) * count, exchange_.trouble() == 0 ? count : 0, group, index);
    exchange_.template send_to_members<kRanks>(index, which, vectors, ahead);
    ++sent_;
    return status_;
  }
  // Receives the other members' vectors and reduces all vectors. `vectors` receives the result.
  template <int kRanks, uint32_t kVectors, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus reduce_vectors(Vector16 (&vectors)[kVectors], uint32_t count,
                                                         const Reduce& reduce, const Group& group = {}) {
    if (status_ != SymmStatus::kDone || !enter_call(group)) return status_;
    const uint32_t first = reduced_++ * count;
    return status_ = exchange_.conclude(group, reduce_kept<kRanks>(vectors, first, count, reduce, group));
  }

 private:
  using Calls::begin_in_step, Calls::begin_message, Calls::start;
  using Calls::block_, Calls::blocks_, Calls::context_, Calls::exchange_, Calls::status_;
  using Data = Packet::Data;
  static constexpr uint32_t kAtOnce = 4;  // number of packets that a thread processes at a time in an
                                          // exchange

  // A round of an exchange. In each round, each rank sends one message to each other rank: up to `most` bytes
  // of the block's part, starting at byte `at`.
  struct Round {
    uint64_t at, most;
    uint32_t first_packet;  // index of the first packet of data; published lengths precede it
    uint32_t packets;       // number of packets of the longest message

    VERBENA_DEVICE uint64_t offset(const Part& part) const { return part.begin + at; }
    VERBENA_DEVICE uint32_t length(const Part& part) const {
      return static_cast<uint32_t>(detail::cut_round(part, at, most));
    }
  };

  // Begins the next call of exchange_ if all vectors of the current call have been reduced.
  template <typename Group>
  VERBENA_DEVICE bool enter_call(const Group& group) {
    if (reduced_ < in_slot_) return true;
    sent_ -= in_slot_;
    reduced_ = 0;
    return begin_message(group, 1, 1);
  }
  // Writes the packet indices of this thread's vectors to `index`, for an all-reduce of `count` vectors whose
  // first packet in the slot is `first`. Returns a bit for each index that is used.
  template <uint32_t kVectors, typename Group>
  VERBENA_DEVICE static uint32_t find_vectors(uint32_t first, uint32_t count, const Group& group,
                                              uint32_t (&index)[kVectors]) {
    uint32_t which = 0;
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kVectors; ++k) {
      const uint32_t vector = k * group.size() + group.rank();
      index[k] = first + vector;
      if (vector < count) which |= 1u << k;
    }
    return which;
  }
  template <int kRanks, uint32_t kVectors, typename Reduce, typename Group>
  VERBENA_DEVICE auto reduce_kept(Vector16 (&vectors)[kVectors], uint32_t first, uint32_t count,
                                  const Reduce& reduce, const Group& group) const {
    if (exchange_.trouble() != 0) return exchange_.trouble();
    uint32_t index[kVectors];
    const uint32_t which = find_vectors(first, count, group, index);
    return exchange_.template reduce_from_members<kRanks>(index, which, vectors, reduce);
  }
  template <typename Plan>
  VERBENA_DEVICE Part own_part(const Plan& plan) const {
    return plan(context_.team_rank).receive;
  }

  // Each thread sends one or two packets, and then waits for the packets with the same indices from the other
  // ranks, so its own elements stay in registers. If there are enough threads, each thread has a single
  // packet. Unlike reduce_packets(), this function loads the next packet to send before the wait.
  template <int kRanks, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_message(const char* input, char* output, uint32_t length_bytes,
                                           const Data& first, const Reduce& reduce, const Group& group) {
    const MessageBytes from(input, length_bytes);
    const MessageBytes to(output, length_bytes);
    const uint32_t packets = Packet::count(length_bytes);
    Data data = first;
    typename Exchange::Trouble trouble = 0;
    uint32_t index = group.rank();
    while (index < packets && packets - index > group.size() && trouble == 0) {
      const uint32_t both[2] = {index, index + group.size()};
      Data pair[2] = {data, from.load(both[1])};
      exchange_.template send_to_members<kRanks>(both, 3, pair);
      index += 2 * group.size();
      if (index < packets) data = from.load(index);
      trouble = exchange_.template reduce_from_members<kRanks>(both, 3, pair, reduce);
      if (trouble != 0) break;
      to.store(both[0], pair[0]);
      to.store(both[1], pair[1]);
    }
    if (index < packets && trouble == 0) {
      Data one[1] = {data};
      exchange_.template send_to_members<kRanks>({index}, 1, one);
      trouble = exchange_.template reduce_from_members<kRanks>({index}, 1, one, reduce);
      if (trouble == 0) to.store(index, one[0]);
    }
    return exchange_.conclude(group, trouble);
  }

  template <int kRanks, typename Plan, typename Group, typename Receive>
  VERBENA_DEVICE SymmStatus for_rounds(const Plan& plan, uint64_t max_bytes, const Group& group,
                                       const Receive& receive) {
    if (status_ == SymmStatus::kDone && !exchange_.is_size(kRanks)) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const bool is_known = max_bytes != kUnknownLength;
    const uint32_t told = is_known ? 0 : 1;
    const uint64_t most = exchange_.capacity_bytes() - Packet::offset(told);
    const uint64_t longest = is_known ? max_bytes : find_longest(plan);
    uint64_t rounds = (longest + most - 1) / most;
    for (uint64_t i = 0; i < rounds || (i == 0 && !is_known); ++i) {
      const auto length = static_cast<uint32_t>(detail::cut_round({0, longest}, i * most, most));
      Round round{i * most, most, i == 0 ? told : 0u, Packet::count(length)};
      if (!start()) return status_;
      const Data first = load_packet<kRanks>(plan, round, group.rank());
      if (!begin_message(group)) return status_;
      // If the team has failed, the thread sends and receives nothing. conclude() reports the failure to the
      // group.
      if (exchange_.trouble() != 0) round.packets = 0;
      if (round.first_packet != 0) publish_lengths(plan, rounds, group);
      send_messages<kRanks>(plan, round, first, group);
      if (round.first_packet != 0) status_ = read_lengths(plan, rounds, group);
      if (status_ == SymmStatus::kDone) status_ = receive(round);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

  template <typename Plan>
  VERBENA_DEVICE uint64_t find_longest(const Plan& plan) const {
    uint64_t longest = 0;
    for (int32_t member = 0; member < context_.team_size; ++member) {
      const auto entry = plan(member);
      if (entry.send.length_bytes > longest) longest = entry.send.length_bytes;
      if (entry.receive.length_bytes > longest) longest = entry.receive.length_bytes;
    }
    return longest;
  }

  // Publishes the lengths of messages. Exchanges need this if a rank does not know the lengths of the
  // messages between other ranks. The first message to each peer starts with a packet that contains the
  // length of the message and the number of rounds that the sender needs. All ranks then run the largest
  // number of rounds that any rank needs, so that each rank receives a message from every other rank in every
  // round.
  static constexpr uint32_t kRoundsShift = 40;
  template <typename Plan, typename Group>
  VERBENA_DEVICE void publish_lengths(const Plan& plan, uint64_t rounds, const Group& group) const {
    if (group.rank() != 0 || exchange_.trouble() != 0) return;
    for (int32_t peer = 0; peer < context_.team_size; ++peer) {
      if (peer == context_.team_rank) continue;
      const uint64_t told = plan(peer).send.length_bytes | rounds << kRoundsShift;
      Data data{};
      __builtin_memcpy(&data, &told, sizeof(told));
      exchange_.send_packet(peer, 0, data);
    }
  }
  template <typename Plan, typename Group>
  VERBENA_DEVICE SymmStatus read_lengths(const Plan& plan, uint64_t& rounds, const Group& group) const {
    Patience patience(context_);
    bool have_come = true, are_wrong = false;
    uint64_t max_rounds = rounds;
    if (group.rank() == 0 && exchange_.trouble() == 0) {
      for (int32_t peer = 0; peer < context_.team_size && have_come; ++peer) {
        if (peer == context_.team_rank) continue;
        Data data{};
        have_come = exchange_.receive_packet(peer, 0, patience, data);
        uint64_t told = 0;
        __builtin_memcpy(&told, &data, sizeof(told));
        if (!have_come) continue;
        if (told >> kRoundsShift > max_rounds) max_rounds = told >> kRoundsShift;
        if ((told & ((uint64_t{1} << kRoundsShift) - 1)) != plan(peer).receive.length_bytes) are_wrong = true;
      }
    }
    const SymmStatus status = exchange_.conclude(group, have_come, patience);
    if (status != SymmStatus::kDone) return status;
    if (group.any(are_wrong)) return SymmStatus::kInvalid;
    rounds = group.share(max_rounds, group.rank() == 0);
    return SymmStatus::kDone;
  }

  // A packet for or from one peer. The packets of all peers are numbered consecutively and distributed over
  // the threads. If there are enough threads, each thread has a single packet, so no thread processes several
  // peers one after the other.
  struct PeerPacket {
    int32_t peer;
    uint32_t index;
  };
  template <int kRanks>
  VERBENA_DEVICE uint32_t count_packets(const Round& round) const {
    return static_cast<uint32_t>((kRanks == 0 ? context_.team_size : kRanks) - 1) * round.packets;
  }
  template <int kRanks>
  VERBENA_DEVICE PeerPacket find_packet(const Round& round, uint32_t i) const {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    const uint32_t turn = size == 2 ? 0 : i / round.packets;
    const int32_t peer = context_.team_rank + 1 + static_cast<int32_t>(turn);
    return {peer < size ? peer : peer - size, i - turn * round.packets};
  }
  template <int kRanks, typename Plan>
  VERBENA_DEVICE Data load_packet(const Plan& plan, const Round& round, uint32_t i) const {
    if (i >= count_packets<kRanks>(round)) return {};
    const auto [peer, index] = find_packet<kRanks>(round, i);
    const auto entry = plan(peer);
    const uint32_t length_bytes = round.length(entry.send);
    if (Packet::offset(index) >= length_bytes) return {};  // no packet, or the packet of an empty message
    return MessageBytes(entry.source.from(round.offset(entry.send)), length_bytes).load(index);
  }
  template <int kRanks, typename Plan, typename Group>
  VERBENA_DEVICE void send_messages(const Plan& plan, const Round& round, Data data,
                                    const Group& group) const {
    Exchange::template for_several<kAtOnce>(count_packets<kRanks>(round), group, [&](const auto& numbers) {
      constexpr uint32_t kCount = sizeof(numbers) / sizeof(numbers[0]);
      Data some[kCount];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i)
        some[i] = numbers[i] == group.rank() ? data : load_packet<kRanks>(plan, round, numbers[i]);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        const auto [peer, index] = find_packet<kRanks>(round, numbers[i]);
        if (index < Packet::count(round.length(plan(peer).send)))
          exchange_.send_packet(peer, round.first_packet + index, some[i]);
      }
      return true;
    });
  }

  template <int kRanks, typename Plan, typename Group>
  VERBENA_DEVICE SymmStatus place_messages(const Plan& plan, const Round& round, const Group& group) const {
    Patience patience(context_);
    const bool have_come = Exchange::template for_several<kAtOnce>(
        count_packets<kRanks>(round), group, [&](const auto& numbers) {
          constexpr uint32_t kCount = sizeof(numbers) / sizeof(numbers[0]);
          int32_t peers[kCount];
          uint32_t indices[kCount], which = 0;
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kCount; ++i) {
            const auto [peer, index] = find_packet<kRanks>(round, numbers[i]);
            peers[i] = peer;
            indices[i] = round.first_packet + index;
            if (index < Packet::count(round.length(plan(peer).receive))) which |= 1u << i;
          }
          Data some[kCount];
          if (!exchange_.receive_packets(peers, indices, which, patience, some)) return false;
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kCount; ++i) {
            const auto entry = plan(peers[i]);
            const uint32_t index = indices[i] - round.first_packet,
                           length_bytes = round.length(entry.receive);
            if ((which >> i & 1) != 0 && Packet::offset(index) < length_bytes)
              MessageBytes(entry.destination.from(round.offset(entry.receive)), length_bytes)
                  .store(index, some[i]);
          }
          return true;
        });
    return exchange_.conclude(group, have_come, patience);
  }
  template <int kRanks, typename Plan, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_messages(const Plan& plan, const Round& round, const Reduce& reduce,
                                            const Group& group) const {
    const auto entry = plan(context_.team_rank);
    const uint32_t length_bytes = round.length(entry.receive);
    const uint32_t packets = round.packets == 0 ? 0 : Packet::count(length_bytes);
    const MessageBytes from(entry.source.from(round.offset(entry.receive)), length_bytes);
    const MessageBytes to(entry.destination.from(round.offset(entry.receive)), length_bytes);
    Patience patience(context_);
    const bool have_come = exchange_.template reduce_packets<kRanks>(
        packets, group, patience, reduce, [&](uint32_t index) { return from.load(index); },
        [&](uint32_t index, const Data& result) { to.store(index, result); });
    return exchange_.conclude(group, have_come, patience);
  }

  // Numbers of all-reduces of vectors: in_slot_ is the number that fit into a slot; sent_ is the number that
  // have been sent in the current call or, ahead of time, in the next call; reduced_ is the number that have
  // been reduced in the current call.
  uint32_t in_slot_ = 0, sent_ = 0, reduced_ = 0;
};

}  // namespace verbena::device

#endif
