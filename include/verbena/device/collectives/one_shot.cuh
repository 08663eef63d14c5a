// Collectives in one shot by packets (low_latency.cuh): each rank sends what it has to all others, and who
// polls a flag has the data. No barrier, no fence before the first packet; for small tensors, since an
// all-reduce sends each rank's tensor to every other one.
//
//   OneShot<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, count);   // or all_gather, exchange; as often as needed
//   status = calls.finish();
//
// `blocks` blocks of each rank share out every tensor: block b of a rank meets the blocks b of the others and
// no other block, so blocks need not run at the same time. All ranks make the same calls in the same order,
// with the same counts, types and `blocks`; threads may differ. A kernel goes on where the one before it on
// this workspace ended: one launch follows the other, in one stream.
//
// Every rank adds in the order of ranks, in float (packed.cuh) and rounded once: the same bits on all of
// them, and neither the count nor `blocks` changes an element's order. Every wait ends by the context's
// limits. After an error, which says more in SymmContext::failure, all further calls return it until the
// hosts have reset the workspace (verbena_workspace_reset).
//
// Before the first call a kernel that was launched early waits for those before it (GridStart): what it does
// before that overlaps with them. A block may have no part of a tensor, and then does not wait.
#ifndef VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CUH
#define VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CUH

#include "verbena/device/collectives/exchange_plan.cuh"
#include "verbena/device/warp_lines.cuh"

namespace verbena::device {

template <typename Packet = Packet16, typename Context = SymmContext>
class OneShot {
 public:
  using Exchange = LowLatency<Packet, Context>;

  // By all threads of the group that makes the calls. The workspace has at least `blocks` blocks; `block` is
  // below that. The workspace outlives this.
  VERBENA_DEVICE OneShot(const SymmWorkspace<Context>& workspace, uint32_t block, uint32_t blocks,
                         const GridStart& start = {})
      : exchange_(workspace, block),
        context_(workspace.context),
        start_(start),
        block_(block),
        blocks_(blocks) {
    if (block >= blocks || blocks > workspace.blocks.count) status_ = SymmStatus::kInvalid;
  }

  // `output` becomes the sum of all ranks' `input`, `count` numbers of float, Half, Bfloat16, E4m3 or
  // int32_t, both at any address of this GPU. `output` may be `input`; they do not overlap in another way.
  // When it returns, this block's part of the output is there for the group's threads, and of the input may
  // be changed. kRanks is the team's size if that is known when the kernel is compiled, or 0; at most 16.
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    return all_reduce_bytes<kRanks>(reinterpret_cast<const char*>(input), reinterpret_cast<char*>(output),
                                    count * sizeof(T), ReduceAs<T>{}, group);
  }
  // The same with any reduction of reduction.cuh, of numbers as that one takes them.
  template <int kRanks = 0, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_bytes(const char* input, char* output,
                                                           uint64_t length_bytes, const Reduce& reduce,
                                                           const Group& group = {}) {
    const uint64_t most = exchange_.capacity_bytes() / kVectorBytes * kVectorBytes;
    Data first{};
    return for_messages<kRanks>(
        length_bytes, kVectorBytes, most, group,
        [&](uint64_t offset, uint32_t length) { first = load_own(input + offset, length, group.rank()); },
        [&](const Exchange&, uint64_t offset, uint32_t length) {
          return reduce_message<kRanks>(input + offset, output + offset, length, first, reduce, group);
        });
  }

  // The block's part of a tensor, of whole units of so many bytes: `body(exchange, offset, length_bytes)`
  // sends to all others, and takes from them, a message of up to `most_bytes`, packet by packet; or, by
  // kCalls, up to two of them that are under way together. `load(offset, length_bytes)`, in front of that,
  // begins to load what is sent first: the epoch comes meanwhile, and nothing that follows waits for both.
  template <int kRanks = 0, uint32_t kCalls = 1, typename Group, typename Load, typename Body>
  [[nodiscard]] VERBENA_DEVICE SymmStatus for_messages(uint64_t length_bytes, uint64_t unit_bytes,
                                                       uint64_t most_bytes, const Group& group,
                                                       const Load& load, const Body& body) {
    if (status_ == SymmStatus::kDone && (!exchange_.is_size(kRanks) || most_bytes == 0))
      status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const Part part = find_part(length_bytes, block_, blocks_, unit_bytes);
    // A block without a part has nothing to say on any rank, and its peers do not wait for it.
    for (uint64_t at = 0; at < part.length_bytes; at += kCalls * most_bytes) {
      const auto length = static_cast<uint32_t>(detail::cut_round(part, at, kCalls * most_bytes));
      if (!start(group)) return status_;
      load(part.begin + at, length);
      if (!begin_message(group, length > most_bytes ? kCalls : 1)) return status_;
      status_ = body(exchange_, part.begin + at, length);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }
  VERBENA_DEVICE uint64_t capacity_bytes() const { return exchange_.capacity_bytes(); }

  // `output` becomes all ranks' `input`, `count` elements each, in the order of ranks: team_size * count
  // elements of any type. `input` may be this rank's part of the output; they do not overlap in another way.
  // Otherwise as all_reduce().
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_gather(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    const uint64_t length_bytes = count * sizeof(T);
    const Part part = find_part(length_bytes, block_, blocks_);
    const auto plan = [&](int32_t member) {
      const char* const to = reinterpret_cast<char*>(output) + static_cast<uint64_t>(member) * length_bytes;
      return ExchangeLine{Rows::side_by_side(input), Rows::side_by_side(to), part, part};
    };
    return exchange<kRanks>(plan, part.length_bytes, group);
  }

  // Sends each member its message, and places what all of them send; `plan(member)` is the ExchangeLine with
  // it, this rank's own among them; `most_bytes` as ExchangePlan has it. What goes from one rank to another
  // has the same length for both. A message to oneself may have one place for both; nothing else overlaps.
  template <int kRanks = 0, typename Plan, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange(const Plan& plan, uint64_t most_bytes,
                                                   const Group& group = {}) {
    return for_rounds<kRanks>(plan, most_bytes, group, [&](const Round& round) {
      detail::copy_rows(group, plan(context_.team_rank).destination.from(round.offset(own_part(plan))),
                        plan(context_.team_rank).source.from(round.offset(own_part(plan))),
                        round.length(own_part(plan)));
      return place_messages<kRanks>(plan, round, group);
    });
  }
  // The same, and the messages that come from all members become one, at the destination of this rank's own
  // line: all are as long as that.
  template <int kRanks = 0, typename Plan, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange_reduce(const Plan& plan, uint64_t most_bytes,
                                                          const Reduce& reduce, const Group& group = {}) {
    return for_rounds<kRanks>(plan, most_bytes, group, [&](const Round& round) {
      return reduce_messages<kRanks>(plan, round, reduce, group);
    });
  }

  // An all-reduce of `count` vectors that stay in registers, as one message, in two halves: between them the
  // group may load what it needs behind it. vectors[k] is number k * group.size() + group.rank(), and of no
  // use behind the last one. By lines the group is a block of up to 16 warps.
  template <int kRanks = 0, uint32_t kVectors, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus send_vectors(const Vector16 (&vectors)[kVectors], uint64_t count,
                                                       const Group& group = {}) {
    if (status_ == SymmStatus::kDone &&
        (!exchange_.is_size(kRanks) || count > kVectors * uint64_t{group.size()} ||
         measure_vectors<kVectors>(count, group) > exchange_.capacity_bytes()))
      status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone || !start(group) || !begin_message(group)) return status_;
    if constexpr (Packet::kNeedsWarps) {
      send_lines<kRanks>(vectors, count, group);
    } else {
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        if (find_vector(k, group) >= count) continue;
        const auto halves = __builtin_bit_cast(Halves, vectors[k]);
        VERBENA_UNROLL
        for (uint32_t half = 0; half < 2; ++half)
          exchange_.template send_packet_to_all<kRanks>(find_half(k, half, group), halves.of[half], true);
      }
    }
    return status_;
  }
  // `vectors` as they were sent: they become the result.
  template <int kRanks = 0, uint32_t kVectors, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus reduce_vectors(Vector16 (&vectors)[kVectors], uint64_t count,
                                                         const Reduce& reduce, const Group& group = {}) {
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    if constexpr (Packet::kNeedsWarps) {
      mine = reduce_lines<kRanks>(vectors, count, patience, late, reduce, group);
    } else {
      // As many as the registers of 512 threads hold for four ranks.
      constexpr uint32_t kAtOnce = kVectors % 2 == 0 ? 2 : 1;
      VERBENA_UNROLL
      for (uint32_t first = 0; first < kVectors; first += kAtOnce) {
        uint32_t index[2 * kAtOnce], which = 0;
        Data data[2 * kAtOnce];
        VERBENA_UNROLL
        for (uint32_t i = 0; i < 2 * kAtOnce; ++i) {
          const uint32_t k = first + i / 2;
          index[i] = find_half(k, i % 2, group);
          data[i] = __builtin_bit_cast(Halves, vectors[k]).of[i % 2];
          if (find_vector(k, group) < count) which |= 1u << i;
        }
        if (mine == WaitResult::kReached)
          mine = exchange_.template reduce_several<kRanks>(index, which, patience, data, late, reduce);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          vectors[first + i] = __builtin_bit_cast(Vector16, Halves{{data[2 * i], data[2 * i + 1]}});
      }
    }
    return status_ = exchange_.conclude(group, mine, late);
  }

  // Behind the last call of a kernel. The first error of the calls, if there was one.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone && has_begun_) status_ = exchange_.finish(group);
    return status_;
  }

 private:
  using Data = typename Packet::Data;

  template <typename Group>
  VERBENA_DEVICE static uint64_t find_vector(uint32_t k, const Group& group) {
    return k * uint64_t{group.size()} + group.rank();
  }
  // Bytes of a message that has them.
  template <uint32_t kVectors, typename Group>
  VERBENA_DEVICE static uint64_t measure_vectors(uint64_t count, const Group& group) {
    if (Packet::kNeedsWarps)
      return group.size() / kWarpLanes * Packet::offset(detail::WarpLines<kVectors * kLaneBytes>::kPackets);
    return (count + group.size() - 1) / group.size() * group.size() * kVectorBytes;
  }
  static constexpr uint32_t kLaneBytes = kWarpLanes * kVectorBytes;  // of one vector of each lane

  // Of a vector, packet by packet. Those of the same half lie side by side, so that a warp stores whole
  // lines.
  struct Halves {
    Data of[2];
  };
  template <typename Group>
  VERBENA_DEVICE static uint32_t find_half(uint32_t k, uint32_t half, const Group& group) {
    return (2 * k + half) * group.size() + group.rank();
  }

  // By lines: each warp's vectors lie behind those of the warp before. A warp without any sends none.
  template <int kRanks, uint32_t kVectors, typename Group>
  VERBENA_DEVICE void send_lines(const Vector16 (&vectors)[kVectors], uint64_t count,
                                 const Group& group) const {
    using Lines = detail::WarpLines<kVectors * kLaneBytes>;
    if (group.rank() - lane() >= count) return;
    char* const memory = detail::find_line_memory();
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kVectors; ++k)
      store<Order::kWeak, Scope::kThreads>(find_place(memory, k), vectors[k]);
    Lines lines;
    lines.take(memory);
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    VERBENA_UNROLL
    for (int32_t step = 1; step < size; ++step) {
      int32_t peer = context_.team_rank + step;
      if (peer >= size) peer -= size;
      lines.send(exchange_.find_slot_at(peer) + group.rank() / kWarpLanes * Lines::kSlotBytes,
                 exchange_.epoch());
    }
  }
  template <int kRanks, uint32_t kVectors, typename Reduce, typename Group>
  VERBENA_DEVICE WaitResult reduce_lines(Vector16 (&vectors)[kVectors], uint64_t count, Patience& patience,
                                         int32_t& late, const Reduce& reduce, const Group& group) const {
    using Lines = detail::WarpLines<kVectors * kLaneBytes>;
    if (group.rank() - lane() >= count) return WaitResult::kReached;
    char* const memory = detail::find_line_memory();
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    typename Reduce::template Sums<Vector16> sums[kVectors];
    VERBENA_UNROLL_BY(1)
    for (int32_t member = 0; member < size; ++member) {
      Lines lines;
      if (member != context_.team_rank) {
        const char* const here =
            exchange_.find_slot_of(member) + group.rank() / kWarpLanes * Lines::kSlotBytes;
        late = member;
        const WaitResult result = Exchange::wait(patience, [&] {
          lines.poll(here);
          return lines.are_of(exchange_.epoch());
        });
        if (result != WaitResult::kReached) return result;
        lines.put(memory);
      }
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        Vector16 term[1] = {vectors[k]};
        if (member != context_.team_rank)
          term[0] = load<Order::kWeak, Scope::kThreads>(find_place(memory, k));
        reduce.add(sums[k], term, member, 1);
      }
    }
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kVectors; ++k) vectors[k] = reduce.template finish<Vector16>(sums[k], size);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static Vector16* find_place(char* memory, uint32_t k) {
    return reinterpret_cast<Vector16*>(memory) + k * kWarpLanes + lane();
  }

  // What one message of each pair has of its part.
  struct Round {
    uint64_t at, most;
    uint32_t first_packet;  // of the data: before it lies what is told of lengths
    uint32_t end;           // of the packets of the longest message of this rank, or of any

    VERBENA_DEVICE uint64_t offset(const Part& part) const { return part.begin + at; }
    VERBENA_DEVICE uint32_t length(const Part& part) const {
      return static_cast<uint32_t>(detail::cut_round(part, at, most));
    }
  };

  template <typename Group>
  VERBENA_DEVICE bool start(const Group& group) {
    if (has_begun_) return true;
    status_ = exchange_.check(group);
    if (status_ == SymmStatus::kDone) start_();
    return status_ == SymmStatus::kDone;
  }
  // Turns are taken before a message and not behind it, as nobody knows which is a kernel's last.
  template <typename Group>
  VERBENA_DEVICE bool begin_message(const Group& group, uint32_t calls = 1) {
    if (has_begun_) {
      status_ = exchange_.turn(group, Heard::kEverybody, calls);
    } else {
      exchange_.load_epoch(calls);
    }
    has_begun_ = true;
    return status_ == SymmStatus::kDone;
  }
  template <typename Plan>
  VERBENA_DEVICE Part own_part(const Plan& plan) const {
    return plan(context_.team_rank).receive;
  }

  // A thread sends a packet, then waits for those of the others at the same place: its own numbers stay in
  // registers. Enough threads have one packet each.
  template <int kRanks, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_message(const char* input, char* output, uint32_t length_bytes,
                                           const Data& first, const Reduce& reduce, const Group& group) {
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    const uint32_t packets = Packet::count(length_bytes), end = Exchange::find_end(packets);
    const auto count_of = [&](int32_t) { return packets; };
    for (uint32_t index = group.rank(); index < end && mine == WaitResult::kReached; index += group.size()) {
      Data data = index == group.rank() ? first : load_own(input, length_bytes, index);
      exchange_.template send_packet_to_all<kRanks>(index, data, index < packets);
      mine = exchange_.template reduce_packets<kRanks>(index, count_of, patience, data, late, reduce, data);
      if (index < packets && mine == WaitResult::kReached)
        Packet::store_data(output, index, length_bytes, data);
    }
    return exchange_.conclude(group, mine, late);
  }
  VERBENA_DEVICE static Data load_own(const char* input, uint32_t length_bytes, uint32_t index) {
    return Exchange::load_data(input, index, length_bytes, index < Packet::count(length_bytes));
  }

  template <int kRanks, typename Plan, typename Group, typename Receive>
  VERBENA_DEVICE SymmStatus for_rounds(const Plan& plan, uint64_t most_bytes, const Group& group,
                                       const Receive& receive) {
    if (status_ == SymmStatus::kDone && !exchange_.is_size(kRanks)) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const bool is_known = most_bytes != kUnknownLength;
    const uint32_t told = is_known ? 0 : Packet::kFewest;
    const uint64_t room = exchange_.capacity_bytes() - Packet::offset(told);
    const uint64_t most = room / kVectorBytes * kVectorBytes;
    const uint64_t longest = is_known ? most_bytes : find_longest(plan);
    uint64_t rounds = (longest + most - 1) / most;
    for (uint64_t i = 0; i < rounds || (i == 0 && !is_known); ++i) {
      const auto length = static_cast<uint32_t>(detail::cut_round({0, longest}, i * most, most));
      const Round round{i * most, most, i == 0 ? told : 0u, Exchange::find_end(Packet::count(length))};
      if (!start(group)) return status_;
      const Data first = load_packet<kRanks>(plan, round, group.rank());
      if (!begin_message(group)) return status_;
      if (round.first_packet != 0) tell_lengths(plan, rounds, group);
      send_messages<kRanks>(plan, round, first, group);
      if (round.first_packet != 0) status_ = hear_lengths(plan, rounds, group);
      if (status_ == SymmStatus::kDone) status_ = receive(round);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

  template <typename Plan>
  VERBENA_DEVICE uint64_t find_longest(const Plan& plan) const {
    uint64_t longest = 0;
    for (int32_t member = 0; member < context_.team_size; ++member) {
      const auto line = plan(member);
      if (line.send.length_bytes > longest) longest = line.send.length_bytes;
      if (line.receive.length_bytes > longest) longest = line.receive.length_bytes;
    }
    return longest;
  }

  // Where a rank knows its own messages alone, the first one begins with how long it is and how many rounds
  // its sender needs. All take as many as who needs most, so that each hears from each in every round.
  static constexpr uint32_t kRoundsShift = 40;
  template <typename Plan, typename Group>
  VERBENA_DEVICE void tell_lengths(const Plan& plan, uint64_t rounds, const Group& group) const {
    static_assert(sizeof(Data) >= sizeof(uint64_t), "verbena: lengths take packets of 16 or 64 bytes");
    const uint32_t index = group.rank();
    if (index >= Exchange::find_end(Packet::kFewest)) return;
    for (int32_t peer = 0; peer < context_.team_size; ++peer) {
      if (peer == context_.team_rank) continue;
      const uint64_t told = plan(peer).send.length_bytes | rounds << kRoundsShift;
      Data data{};
      if (index == 0) __builtin_memcpy(&data, &told, sizeof(told));
      exchange_.send_packet(peer, index, data, index < Packet::kFewest);
    }
  }
  template <typename Plan, typename Group>
  VERBENA_DEVICE SymmStatus hear_lengths(const Plan& plan, uint64_t& rounds, const Group& group) const {
    const uint32_t index = group.rank();
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    bool are_wrong = false;
    uint64_t most_rounds = rounds;
    if (index < Exchange::find_end(Packet::kFewest)) {
      Patience patience(context_);
      for (int32_t peer = 0; peer < context_.team_size && mine == WaitResult::kReached; ++peer) {
        if (peer == context_.team_rank) continue;
        Data data{};
        late = peer;
        mine = exchange_.receive_packet(peer, index, index < Packet::kFewest, patience, data);
        uint64_t told = 0;
        __builtin_memcpy(&told, &data, sizeof(told));
        if (index != 0 || mine != WaitResult::kReached) continue;
        if (told >> kRoundsShift > most_rounds) most_rounds = told >> kRoundsShift;
        if ((told & ((uint64_t{1} << kRoundsShift) - 1)) != plan(peer).receive.length_bytes) are_wrong = true;
      }
    }
    const SymmStatus status = exchange_.conclude(group, mine, late);
    if (status != SymmStatus::kDone) return status;
    if (group.any(are_wrong)) return SymmStatus::kInvalid;
    rounds = group.share(most_rounds, index == 0);
    return SymmStatus::kDone;
  }

  // A thread has a packet of one peer: enough threads have one each, and none does for one peer after the
  // other what all can do at once. Packets of all peers, one peer's behind the other's: by whole warps, where
  // packets need them.
  struct PeerPacket {
    int32_t peer;
    uint32_t index;
  };
  template <int kRanks>
  VERBENA_DEVICE uint32_t count_packets(const Round& round) const {
    return static_cast<uint32_t>((kRanks == 0 ? context_.team_size : kRanks) - 1) * round.end;
  }
  template <int kRanks>
  VERBENA_DEVICE PeerPacket find_packet(const Round& round, uint32_t i) const {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    const uint32_t turn = size == 2 ? 0 : i / round.end;
    const int32_t peer = context_.team_rank + 1 + static_cast<int32_t>(turn);
    return {peer < size ? peer : peer - size, i - turn * round.end};
  }
  template <int kRanks, typename Plan>
  VERBENA_DEVICE Data load_packet(const Plan& plan, const Round& round, uint32_t i) const {
    if (i >= count_packets<kRanks>(round)) return {};
    const auto [peer, index] = find_packet<kRanks>(round, i);
    const auto line = plan(peer);
    const uint32_t length_bytes = round.length(line.send);
    return Exchange::load_data(line.source.from(round.offset(line.send)), index, length_bytes,
                               index < Packet::count(length_bytes));
  }
  template <int kRanks, typename Plan, typename Group>
  VERBENA_DEVICE void send_messages(const Plan& plan, const Round& round, Data data,
                                    const Group& group) const {
    const uint32_t all = count_packets<kRanks>(round);
    for (uint32_t i = group.rank(); i < all; i += group.size()) {
      if (i != group.rank()) data = load_packet<kRanks>(plan, round, i);
      const auto [peer, index] = find_packet<kRanks>(round, i);
      const uint32_t packets = Packet::count(round.length(plan(peer).send));
      if (index < Exchange::find_end(packets))
        exchange_.send_packet(peer, round.first_packet + index, data, index < packets);
    }
  }

  template <int kRanks, typename Plan, typename Group>
  VERBENA_DEVICE SymmStatus place_messages(const Plan& plan, const Round& round, const Group& group) const {
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    const uint32_t all = count_packets<kRanks>(round);
    for (uint32_t i = group.rank(); i < all && mine == WaitResult::kReached; i += group.size()) {
      const auto [peer, index] = find_packet<kRanks>(round, i);
      const auto line = plan(peer);
      const uint32_t length_bytes = round.length(line.receive), packets = Packet::count(length_bytes);
      if (index >= Exchange::find_end(packets)) continue;
      Data data{};
      mine = exchange_.receive_packet(peer, round.first_packet + index, index < packets, patience, data);
      late = peer;
      if (index < packets && mine == WaitResult::kReached)
        Packet::store_data(line.destination.from(round.offset(line.receive)), index, length_bytes, data);
    }
    return exchange_.conclude(group, mine, late);
  }
  template <int kRanks, typename Plan, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_messages(const Plan& plan, const Round& round, const Reduce& reduce,
                                            const Group& group) const {
    const auto line = plan(context_.team_rank);
    const uint32_t length_bytes = round.length(line.receive), packets = Packet::count(length_bytes);
    const Rows source = line.source.from(round.offset(line.receive));
    const Rows destination = line.destination.from(round.offset(line.receive));
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    const auto count_of = [&](int32_t) { return packets; };
    const uint32_t end = Exchange::find_end(packets);
    for (uint32_t index = group.rank(); index < end && mine == WaitResult::kReached; index += group.size()) {
      Data data = Exchange::load_data(source, index, length_bytes, index < packets);
      mine = exchange_.template reduce_packets<kRanks>(index, count_of, patience, data, late, reduce, data);
      if (index < packets && mine == WaitResult::kReached)
        Packet::store_data(destination, index, length_bytes, data);
    }
    return exchange_.conclude(group, mine, late);
  }

  Exchange exchange_;
  const Context& context_;
  GridStart start_;
  uint32_t block_, blocks_;
  bool has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
