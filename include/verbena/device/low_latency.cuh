// Messages of a few KiB between ranks that reach each other by loads and stores, with the latency of one trip
// over NVLink. Messages are sent in packets; the receiver recognises the arrival of a packet by its data
// (packet.cuh). Therefore no flag, fence, barrier or signal is needed.
//
// A call is one exchange between the blocks that have the same index on all ranks. In a call, each block
// executes send() or broadcast(), then receive() or receive_reduce(), then turn() or finish(). All ranks make
// the same calls in the same order. A message is received in the call in which it was sent. Sources and
// destinations need no alignment.
//
//   LowLatency<> exchange(workspace, block_index());
//   status = exchange.begin(group);
//   status = exchange.broadcast(input, length_bytes, group);
//   status = exchange.receive_reduce(input, output, count, group);
//   status = exchange.finish(group);
//
// All threads of the group call these functions with the same arguments. The kernels may be captured in a
// CUDA graph. A packet does not order other memory accesses; use signals or barriers to order them. Each wait
// ends within the context's timeout. After a status other than kDone, the ranks are out of step. Later
// kernels see that the workspace's failure word is set, and neither send nor receive until the hosts have
// reset the workspace (verbena_workspace_reset).
//
// No barrier is needed between calls, for the following reason. For each block, every member has four slots
// in the memory of every other member, and call k uses slot k % 4. Four slots are enough if the kernel
// follows two rules. First, in each call, every rank receives a message (which may be empty) from every other
// rank. Second, each rank executes a fence or ends its kernel at least once every two calls. The fence makes
// sure that the rank has read and emptied its slots before it sends again. Suppose rank p starts to write the
// packets of call k+4 into its slot at rank q. Let f be the last call before rank p's most recent fence:
//   1. Call k+4 is the first or the second call after that fence, so f is k+3 or k+2.
//   2. Rank p has finished call f, so it has received q's message of call f.
//   3. Rank q sent this message at least two calls after call k. By the second rule, q executed a fence
//      between emptying the slot of call k and sending this message.
//   4. So the packets of call k are no longer in the slot that p writes now, because q has emptied the slot.
//
// A rank may send its message of the next call, or a part of it, before it has received the messages of the
// current call. In this case, pass 1 as `ahead` to turn(), which then executes a fence in every call. Assume
// that p sends a part of call k+4 during call k+3. Before its fence at the start of call k+3, p has received
// q's message of call k+2. Even if q sent that message ahead, q sent it during call k+1, after a fence that
// follows the emptying of the slot of call k. So step 4 holds.
//
// In some exchanges, such as a broadcast by one rank or a ring, a rank does not receive from every other
// rank. After such a call, pass Heard::kSome to turn() or finish(). Heard::kSome adds a barrier, from which
// step 3 follows. A kernel that breaks the rules reads wrong data, or waits for overwritten data until the
// timeout.
#ifndef VERBENA_DEVICE_LOW_LATENCY_CUH
#define VERBENA_DEVICE_LOW_LATENCY_CUH

#include "verbena/device/message_bytes.cuh"
#include "verbena/device/reduction.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

// Says whether, in a call, each rank has received a message from every other rank, or only from some ranks.
enum class Heard : uint8_t { kEverybody, kSome };

// Limits the total time that a thread spends in waits. Reads the clock only after a wait has taken
// kDefaultSpinsPerCheck polls.
class Patience {
 public:
  VERBENA_DEVICE explicit Patience(const SymmContext& context) : context_(context) {}

  // Returns kReached as long as the wait for `member` may continue. The function is not inlined, which keeps
  // loops short.
  VERBENA_DEVICE_FAR WaitResult check(int32_t member = 0) {
    WaitLimits limits = detail::limit_wait(context_);
    if (deadline_ns_ != 0) limits.deadline_ns = deadline_ns_;
    deadline_ns_ = limits.deadline_ns;
    member_ = member;
    return result_ = limits.check();
  }
  // Returns the result of the last check, as a LowLatency::Trouble.
  VERBENA_DEVICE uint32_t trouble() const {
    return static_cast<uint32_t>(result_) | static_cast<uint32_t>(member_) << 8;
  }

 private:
  const SymmContext& context_;
  uint64_t deadline_ns_ = 0;  // 0 if not set yet
  WaitResult result_ = WaitResult::kReached;
  int32_t member_ = 0;
};

template <typename Context = SymmContext>
class LowLatency {
 public:
  using Data = Packet::Data;
  // Number of polls after which the fast path gives up on a packet.
  static constexpr uint32_t kPollsAtOnce = 64;
  // Max number of calls in flight at the same time, which is half of the number of slots from one member to
  // another.
  static constexpr uint32_t kCallsAtOnce = kSymmTurns / 2;

  // All threads of the calling group construct the object.
  // @param workspace  must outlive this object
  // @param block  index below the workspace's number of blocks; no other group may use this index at the same
  //               time
  VERBENA_DEVICE LowLatency(const SymmWorkspace<Context>& workspace, uint32_t block)
      : workspace_(workspace),
        context_(workspace.context),
        blocks_(workspace.blocks),
        slot_bytes_(keep(workspace.blocks.slot_bytes)),
        turn_bytes_(keep(static_cast<uint64_t>(workspace.context.team_size) * slot_bytes_)),
        slots_(keep(workspace.blocks.slots + block * uint64_t{kSymmTurns} * turn_bytes_)),
        own_slots_(keep(slots_ + static_cast<uint64_t>(workspace.context.team_rank) * slot_bytes_)),
        epoch_word_(keep(workspace.blocks.epochs + block)),
        failure_(keep(workspace.context.failure)),
        block_(block) {}

  // Returns the max length of a message in bytes.
  VERBENA_DEVICE uint64_t capacity_bytes() const {
    constexpr uint64_t kMaxCount = uint64_t{1} << 31;  // offsets have 32 bits
    const uint64_t room = data_bytes();
    return room < kMaxCount ? room : kMaxCount;
  }
  VERBENA_DEVICE uint64_t epoch() const { return epoch_; }
  VERBENA_DEVICE uint32_t block() const { return block_; }

  // Begins the first call of a kernel, or the first `calls` calls if several calls are in flight at the same
  // time. Earlier kernels that use the same block of the workspace must have finished.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus begin(const Group& group = {}, uint32_t calls = 1) {
    if (const SymmStatus status = check(); status != SymmStatus::kDone) return status;
    load_epoch(calls);
    return conclude(group, trouble());
  }
  // check() and load_epoch() are the two steps of begin(). Only load_epoch() must come after the wait for
  // earlier kernels. If trouble() is not 0 afterwards, the thread must not send or receive, and must pass
  // trouble() to conclude().
  [[nodiscard]] VERBENA_DEVICE SymmStatus check() const {
    if (block_ >= blocks_.count || blocks_.slot_bytes == 0) return SymmStatus::kInvalid;
    return context_.has_remote != 0 ? SymmStatus::kUnreachable : SymmStatus::kDone;
  }
  VERBENA_DEVICE void load_epoch(uint32_t calls = 1) {
    epoch_ = load_relaxed<Scope::kGpu>(epoch_word_) + 1;
    has_failed_ = detail::has_failed(failure_);
    calls_ = calls;
    unfenced_calls_ = 0;
  }

  // Begins the next call, or the next `calls` calls, of the same kernel.
  // @param ahead  1 if the kernel sends messages of the following call during these calls, otherwise 0
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus turn(const Group& group = {}, Heard heard = Heard::kEverybody,
                                               uint32_t calls = 1, uint32_t ahead = 0) {
    if (const SymmStatus status = close(group, heard); status != SymmStatus::kDone) return status;
    epoch_ += calls_;
    unfenced_calls_ = heard == Heard::kSome ? 0 : unfenced_calls_ + calls_;
    calls_ = calls;
    if (unfenced_calls_ + calls + ahead > kCallsAtOnce) {
      // Orders the reading and emptying of slots by all threads before the next packets that any thread
      // sends. Once a peer has received these packets, the peer may overwrite the slots. Therefore the group
      // must sync before the fence (which receive() has done) and after the fence.
      fence<Order::kAcquireRelease, Scope::kSystem>();
      group.sync();
      unfenced_calls_ = 0;
    }
    return SymmStatus::kDone;
  }

  // Ends the last call of a kernel.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}, Heard heard = Heard::kEverybody) {
    const SymmStatus status = close(group, heard);
    if (status == SymmStatus::kDone && group.elect())
      store_relaxed<Scope::kGpu>(epoch_word_, epoch_ + calls_ - 1);
    return status;
  }

  // Sends a message to one other member. In each call, at most one message may be sent to a member. The
  // source may be changed after the group's next sync().
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus send(int32_t peer, const void* source, uint64_t length_bytes,
                                               const Group& group = {}) const {
    if (!is_peer(peer) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const MessageBytes message(as_bytes(source), length_bytes);
    for_several<1>(count_packets(length_bytes), group, [&](const auto& index) {
      send_packet(peer, index[0], message.load(index[0]));
      return true;
    });
    return SymmStatus::kDone;
  }

  // Sends the same message to all other members.
  // @tparam kRanks  size of the team, if known at compile time; otherwise 0
  template <int kRanks = 0, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus broadcast(const void* source, uint64_t length_bytes,
                                                    const Group& group = {}) const {
    if (!is_size(kRanks) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const MessageBytes message(as_bytes(source), length_bytes);
    for_several<1>(count_packets(length_bytes), group, [&](const auto& index) {
      send_packet_to_all<kRanks>(index[0], message.load(index[0]));
      return true;
    });
    return SymmStatus::kDone;
  }

  // Receives the message of one other member. The length must equal the length of the sent message.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus receive(int32_t peer, void* destination, uint64_t length_bytes,
                                                  const Group& group = {}) const {
    if (!is_peer(peer) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const MessageBytes message(as_bytes(destination), length_bytes);
    Patience patience(context_);
    const bool have_come = for_several<1>(count_packets(length_bytes), group, [&](const auto& index) {
      Data data{};
      if (!receive_packet(peer, index[0], patience, data)) return false;
      message.store(index[0], data);
      return true;
    });
    return conclude(group, have_come, patience);
  }

  // Writes the sum of all members' messages to `destination`. Elements are added in rank order, so all ranks
  // get the same bits.
  // @param own  this rank's `count` elements of type T; may be `destination` itself
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus receive_reduce(const T* own, T* destination, uint64_t count,
                                                         const Group& group = {}) const {
    const uint64_t length_bytes = count * sizeof(T);
    if (!is_size(kRanks) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const MessageBytes from(as_bytes(own), length_bytes), to(as_bytes(destination), length_bytes);
    Patience patience(context_);
    const bool have_come = reduce_packets<kRanks>(
        count_packets(length_bytes), group, patience, ReduceAs<T>{},
        [&](uint32_t index) { return from.load(index); },
        [&](uint32_t index, const Data& sum) { to.store(index, sum); });
    return conclude(group, have_come, patience);
  }

  // ---- Single packets. Each thread calls these functions independently. `ahead` selects a call in flight; 0
  // is the first call. A function returns false if a packet did not arrive in time; in this case `patience`
  // contains the packet's sender. Call conclude() after receiving. When conclude() returns, all packets of
  // the group have been read.

  // Packets of several members, in rank order: of up to 4 members if kRanks is 0, and otherwise of all
  // members.
  template <int kRanks>
  struct Addends {
    static constexpr int32_t kMaxCount = kRanks == 0 ? 4 : kRanks;
    Data data[kMaxCount];
    int32_t first, count;  // members
  };

  VERBENA_DEVICE bool is_size(int ranks) const { return ranks == 0 || ranks == context_.team_size; }
  VERBENA_DEVICE void send_packet(int32_t peer, uint32_t index, const Data& data, uint32_t ahead = 0) const {
    char* const slot = find_slot_at(peer, ahead);
    Packet::send(slot + Packet::offset(index), find_note(slot, index), Packet::mask(data), epoch_ + ahead);
  }
  template <int kRanks = 0>
  VERBENA_DEVICE void send_packet_to_all(uint32_t index, const Data& data, uint32_t ahead = 0) const {
    const Data stored = Packet::mask(data);
    char* const slot = find_own_slot(ahead);
    char* const mine = slot + Packet::offset(index);
    if (Packet::is_plain(stored)) {
      for_peers<kRanks>([&](int64_t delta) { Packet::send_plain(detail::shift(mine, delta), stored); });
    } else {
      char* const note = find_note(slot, index);
      for_peers<kRanks>([&](int64_t delta) {
        Packet::send_noted(detail::shift(mine, delta), detail::shift(note, delta), stored, epoch_ + ahead);
      });
    }
  }
  VERBENA_DEVICE bool receive_packet(int32_t peer, uint32_t index, Patience& patience, Data& data) const {
    Data some[1];
    if (!receive_packets({peer}, {index}, 1, patience, some)) return false;
    data = some[0];
    return true;
  }
  // Receives the packet at index[i] from peers[i], for each set bit i of `which`. Polls all these packets in
  // each round.
  template <uint32_t kCount>
  VERBENA_DEVICE bool receive_packets(const int32_t (&peers)[kCount], const uint32_t (&index)[kCount],
                                      uint32_t which, Patience& patience, Data (&data)[kCount]) const {
    const auto find = [&](uint32_t i) { return Place{find_slot(peers[i], 0), index[i]}; };
    if (!await(
            which, data, find, [&](uint32_t i) { return peers[i]; }, patience, 0))
      return false;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      if ((which >> i & 1) != 0) data[i] = Packet::take(data[i], find(i).packet());
    }
    return true;
  }
  // For each i, receives the packet at index[i] from every member, from a few members at a time.
  // @param has  has(i, member) returns whether the member sends the packet at index[i] to this rank; if not,
  //             own[i] is used instead
  // @param take  take(i, addends) is called for each i and each batch of members. The batches, and the
  //              addends in a batch, are in rank order
  template <int kRanks, uint32_t kCount, typename Has, typename Take>
  VERBENA_DEVICE bool receive_several(const uint32_t (&index)[kCount], const Has& has, Patience& patience,
                                      const Data (&own)[kCount], uint32_t ahead, const Take& take) const {
    constexpr int32_t kMaxCount = Addends<kRanks>::kMaxCount;
    constexpr auto kStep = static_cast<uint32_t>(kMaxCount);
    static_assert(kCount * kStep <= 32, "verbena: each packet needs a bit of a 32-bit word");
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    VERBENA_UNROLL_BY(1)
    for (int32_t first = 0; first < size; first += kMaxCount) {
      Addends<kRanks> addends;
      addends.first = kRanks == 0 ? first : 0;
      addends.count = kRanks == 0 && size - first < kMaxCount ? size - first : kMaxCount;
      char* const here = find_slot(addends.first, ahead);
      const auto member_of = [&](uint32_t at) { return addends.first + static_cast<int32_t>(at % kStep); };
      const auto find = [&](uint32_t at) {
        return Place{here + at % kStep * slot_bytes_, index[at / kStep]};
      };
      uint32_t awaited = 0;
      VERBENA_UNROLL
      for (uint32_t at = 0; at < kCount * kStep; ++at) {
        const int32_t member = member_of(at);
        if (static_cast<int32_t>(at % kStep) < addends.count && has(at / kStep, member)) awaited |= 1u << at;
      }
      Data stored[kCount * kStep];
      if (!await(awaited, stored, find, member_of, patience, ahead)) return false;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kStep; ++k) {
          const uint32_t at = i * kStep + k;
          addends.data[k] = (awaited >> at & 1) != 0 ? Packet::take(stored[at], find(at).packet()) : own[i];
        }
        take(i, addends);
      }
    }
    return true;
  }
  // For each i, reduces the packets at index[i] of all members with `reduce` (reduction.cuh). data[i]
  // contains this rank's packet, and receives the result.
  template <int kRanks, uint32_t kCount, typename Reduce>
  VERBENA_DEVICE bool reduce_several(const uint32_t (&index)[kCount], Patience& patience,
                                     Data (&data)[kCount], const Reduce& reduce) const {
    typename Reduce::template Sums<Data> sums[kCount];
    const bool have_come = receive_several<kRanks>(
        index, [&](uint32_t, int32_t member) { return member != context_.team_rank; }, patience, data, 0,
        [&](uint32_t i, const Addends<kRanks>& addends) {
          reduce.add(sums[i], addends.data, addends.first, addends.count);
        });
    if (!have_come) return false;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i)
      data[i] = reduce.template finish<Data>(sums[i], kRanks == 0 ? context_.team_size : kRanks);
    return true;
  }
  // ---- Exchanges in which every member sends to every member. A rank also sends to itself, so a thread
  // keeps no data in registers while it waits, and the rank's own packet is not a special case. Data that
  // needs notes (packet.cuh) is rare, and so are delayed packets. The functions that handle these two cases
  // are not inlined and take their arguments by value, which keeps the loops short and the loops' variables
  // in registers.

  // The reason why a packet did not arrive: the low 8 bits are a WaitResult, and the higher bits are the
  // sender. The value is 0 if the packet has arrived.
  using Trouble = uint32_t;
  // Returns a value other than 0 if the team had failed before load_epoch(). A peer may set the failure word
  // at any moment, so threads of a group may get different results, which conclude() combines.
  VERBENA_DEVICE Trouble trouble() const {
    return has_failed_ ? static_cast<Trouble>(WaitResult::kTimedOut) : 0;
  }

  // Loads the addresses that send_to_members() needs. Call this function before waiting for earlier kernels,
  // so that the loads overlap with the wait.
  template <int kRanks>
  VERBENA_DEVICE void prepare() const {
    VERBENA_UNROLL
    for (int32_t member = 0; member < kRanks; ++member) (void)keep(find_delta<kRanks>(member));
  }
  template <int kRanks, uint32_t kCount>
  VERBENA_DEVICE void send_to_members(const uint32_t (&index)[kCount], uint32_t which,
                                      const Data (&data)[kCount], uint32_t ahead = 0) const {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      if ((which >> i & 1) == 0) continue;
      const Data stored = Packet::mask(data[i]);
      if (kRanks == 0 || __builtin_expect(!Packet::is_plain(stored), 0)) {
        send_slowly(workspace_, block_, epoch_ + ahead, index[i], stored);
        continue;
      }
      char* const mine = find_own_slot(ahead) + index[i] * Packet::kBytes;
      VERBENA_UNROLL
      for (int32_t member = 0; member < kRanks; ++member)
        Packet::send_plain(detail::shift(mine, find_delta<kRanks>(member)), stored);
    }
  }
  // For each set bit i of `which`, reduces the packets at index[i] of all members with `reduce`, and writes
  // the result to data[i].
  template <int kRanks, uint32_t kCount, typename Reduce>
  [[nodiscard]] VERBENA_DEVICE Trouble reduce_from_members(const uint32_t (&index)[kCount], uint32_t which,
                                                           Data (&data)[kCount], const Reduce& reduce) const {
    if (which == (1u << kCount) - 1) return reduce_all_of<kRanks>(index, data, reduce);
    Trouble trouble = 0;
    if constexpr (kCount > 1) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        if ((which >> i & 1) == 0 || trouble != 0) continue;
        Data one[1] = {data[i]};
        trouble = reduce_all_of<kRanks>({index[i]}, one, reduce);
        data[i] = one[0];
      }
    }
    return trouble;
  }

  // The other members, starting with the next rank, for exchanges in which each member gets different data.
  template <int kRanks>
  struct Peers {
    static constexpr uint32_t kCount = kRanks - 1;
    int32_t member[kCount];
    int64_t delta_bytes[kCount];
    char* here[kCount];  // the first slot of this rank that the member writes
  };
  template <int kRanks>
  VERBENA_DEVICE Peers<kRanks> find_peers() const {
    Peers<kRanks> peers;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < peers.kCount; ++i) {
      const int32_t next = context_.team_rank + 1 + static_cast<int32_t>(i);
      peers.member[i] = keep(next < kRanks ? next : next - kRanks);
      peers.delta_bytes[i] = keep(find_delta<kRanks>(peers.member[i]));
      peers.here[i] = keep(slots_ + static_cast<uint32_t>(peers.member[i]) * slot_bytes_);
    }
    return peers;
  }
  template <int kRanks>
  VERBENA_DEVICE void send_to_peer(const Peers<kRanks>& peers, uint32_t peer, uint32_t index,
                                   const Data& data, uint32_t ahead) const {
    const Data stored = Packet::mask(data);
    if (__builtin_expect(!Packet::is_plain(stored), 0))
      return send_slowly(workspace_, block_, epoch_ + ahead, index, stored, peers.member[peer]);
    Packet::send_plain(detail::shift(find_own_slot(ahead) + index * Packet::kBytes, peers.delta_bytes[peer]),
                       stored);
  }
  // Receives the packets at index[i] from all peers; data[i][k] receives the packet from peer k.
  template <int kRanks, uint32_t kCount>
  [[nodiscard]] VERBENA_DEVICE Trouble receive_from_peers(const Peers<kRanks>& peers,
                                                          const uint32_t (&index)[kCount], uint32_t ahead,
                                                          Data (&data)[kCount][kRanks - 1]) const {
    const auto find = [&](uint32_t i, uint32_t k) {
      return find_turn(peers.here[k], ahead) + index[i] * Packet::kBytes;
    };
    if (poll_at_once(find, data)) return 0;
    Trouble trouble = 0;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      VERBENA_UNROLL
      for (uint32_t k = 0; k < peers.kCount; ++k) {
        if (trouble != 0) continue;
        const Late late = receive_slowly(workspace_, block_, epoch_ + ahead, index[i], peers.member[k]);
        data[i][k] = late.data;
        trouble = late.trouble;
      }
    }
    return trouble;
  }
  template <typename Group>
  [[nodiscard]] VERBENA_DEVICE SymmStatus conclude(const Group& group, Trouble trouble) const {
    if (__builtin_expect(group.any(trouble != 0), 0)) return fail(context_, group, block_, trouble);
    return SymmStatus::kDone;
  }

  // Calls `body(index)` for this thread's share of `packets` packets, until `body` returns false. `index` is
  // an array of kCount packet indices or, for the last packets, an array of one index.
  // @return the last result of `body`
  template <uint32_t kCount = 2, typename Group, typename Body>
  VERBENA_DEVICE static bool for_several(uint32_t packets, const Group& group, const Body& body) {
    constexpr uint32_t kBehind = kCount - 1;
    uint32_t at = group.rank();
    bool goes_on = true;
    while (at < packets && packets - at > kBehind * group.size() && goes_on) {
      uint32_t index[kCount];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) index[i] = at + i * group.size();
      goes_on = body(index);
      at += kCount * group.size();
    }
    VERBENA_UNROLL_BY(1)
    for (; at < packets && goes_on; at += group.size()) {
      const uint32_t index[1] = {at};
      goes_on = body(index);
    }
    return goes_on;
  }
  // Reduces each of `packets` packets across all members.
  // @param load  load(index) returns this rank's packet
  // @param take  take(index, result) receives the result
  template <int kRanks, typename Group, typename Reduce, typename Load, typename Take>
  VERBENA_DEVICE bool reduce_packets(uint32_t packets, const Group& group, Patience& patience,
                                     const Reduce& reduce, const Load& load, const Take& take) const {
    return for_several(packets, group, [&](const auto& index) {
      constexpr uint32_t kCount = sizeof(index) / sizeof(index[0]);
      Data data[kCount];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) data[i] = load(index[i]);
      if (!reduce_several<kRanks>(index, patience, data, reduce)) return false;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) take(index[i], data[i]);
      return true;
    });
  }
  // find_slot_at() returns the slot in the memory of `peer` that this rank writes. find_slot_of() returns the
  // slot in the memory of this rank that `peer` writes. Callers use the slots to access packets directly.
  VERBENA_DEVICE char* find_slot_at(int32_t peer, uint32_t ahead = 0) const {
    return detail::shift(find_own_slot(ahead), detail::get_delta(context_, peer));
  }
  VERBENA_DEVICE char* find_slot_of(int32_t peer, uint32_t ahead = 0) const { return find_slot(peer, ahead); }
  // Returns the size, in bytes, of the part of a slot that contains packets. The notes of the packets follow
  // this part.
  VERBENA_DEVICE uint64_t data_bytes() const {
    return slot_bytes_ / (Packet::kBytes + Packet::kNoteBytes) * Packet::kBytes;
  }
  VERBENA_DEVICE char* find_note(char* slot, uint32_t index) const {
    return slot + data_bytes() + index * Packet::kNoteBytes;
  }
  // Returns the combined result of all threads of the group. The result includes the waits of the threads,
  // and a failure of the team before the kernel started.
  // @param have_come  false if a wait of this thread timed out
  template <typename Group>
  [[nodiscard]] VERBENA_DEVICE SymmStatus conclude(const Group& group, bool have_come,
                                                   const Patience& patience) const {
    return conclude(group, have_come ? trouble() : patience.trouble());
  }

 private:
  VERBENA_DEVICE static char* as_bytes(const void* source) {
    return static_cast<char*>(const_cast<void*>(source));
  }
  VERBENA_DEVICE bool is_peer(int32_t peer) const {
    return detail::is_member(context_, peer) && peer != context_.team_rank;
  }

  // Returns the slot in the memory of this rank that `source` writes.
  VERBENA_DEVICE char* find_slot(int32_t source, uint32_t ahead) const {
    return find_turn(slots_, ahead) + static_cast<uint32_t>(source) * slot_bytes_;
  }
  // This rank writes slots in the memory of other ranks. Returns the slot at the same offset in this rank's
  // own memory.
  VERBENA_DEVICE char* find_own_slot(uint32_t ahead) const { return find_turn(own_slots_, ahead); }
  VERBENA_DEVICE char* find_turn(char* slots, uint32_t ahead) const {
    return slots + static_cast<uint32_t>(epoch_ + ahead) % kSymmTurns * turn_bytes_;
  }
  struct Place {
    char* slot;
    uint32_t index;

    VERBENA_DEVICE char* packet() const { return slot + Packet::offset(index); }
  };
  // For each set bit i of `awaited`, waits for the packet at find(i), which member_of(i) sends. Polls all
  // these packets in each round.
  template <uint32_t kCount, typename Find, typename MemberOf>
  VERBENA_DEVICE bool await(uint32_t awaited, Data (&stored)[kCount], const Find& find,
                            const MemberOf& member_of, Patience& patience, uint32_t ahead) const {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) stored[i] = Packet::mask(Data{});  // treated as arrived
    for (uint32_t spins = 1;; ++spins) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        if ((awaited >> i & 1) != 0) stored[i] = Packet::poll(find(i).packet());
      }
      bool are_plain = true;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) are_plain = Packet::is_plain(stored[i]) && are_plain;
      if (are_plain) return true;
      uint32_t missing = kCount;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        const Place place = find(i);
        if (!Packet::has_come(stored[i], find_note(place.slot, place.index), epoch_ + ahead)) missing = i;
      }
      if (missing == kCount) return true;
      if (spins % kDefaultSpinsPerCheck == 0 && patience.check(member_of(missing)) != WaitResult::kReached)
        return false;
    }
  }
  template <typename Group>
  VERBENA_DEVICE_FAR static SymmStatus fail(const Context& context, const Group group, uint32_t block,
                                            Trouble trouble) {
    return detail::conclude(context, group, static_cast<WaitResult>(trouble & 0xff),
                            {SymmWait::kPacket, block, trouble >> 8});
  }
  template <int kRanks, uint32_t kCount, typename Reduce>
  VERBENA_DEVICE Trouble reduce_all_of(const uint32_t (&index)[kCount], Data (&data)[kCount],
                                       const Reduce& reduce) const {
    if constexpr (kRanks != 0) {
      char* const here = find_slot(0, 0);
      const auto find = [&](uint32_t i, uint32_t member) {
        return here + member * slot_bytes_ + index[i] * Packet::kBytes;
      };
      Data addends[kCount][kRanks];
      if (poll_at_once(find, addends)) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kCount; ++i) {
          typename Reduce::template Sums<Data> sums;
          reduce.add(sums, addends[i], 0, kRanks);
          data[i] = reduce.template finish<Data>(sums, kRanks);
        }
        return 0;
      }
    }
    Trouble trouble = 0;
    VERBENA_UNROLL_BY(1)
    for (uint32_t i = 0; i < kCount && trouble == 0; ++i) {
      const Late late = reduce_slowly(workspace_, block_, epoch_, index[i], reduce);
      data[i] = late.data;
      trouble = late.trouble;
    }
    return trouble;
  }
  // Fast path: takes the data of the packets at find(i, k), and empties the packets. If some packet does not
  // arrive within kPollsAtOnce polls, or needs a note, the function returns false and takes nothing.
  template <uint32_t kCount, uint32_t kSenders, typename Find>
  VERBENA_DEVICE bool poll_at_once(const Find& find, Data (&data)[kCount][kSenders]) const {
    const auto for_each = [&](const auto& body) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kSenders; ++k) body(data[i][k], find(i, k));
      }
    };
    bool are_plain = false;
    for (uint32_t polls = 0; polls < kPollsAtOnce && !are_plain; ++polls) {
      for_each([&](Data& stored, const char* here) { stored = Packet::poll(here); });
      are_plain = true;
      for_each([&](const Data& stored, const char*) {
        are_plain = static_cast<int>(are_plain) & static_cast<int>(Packet::is_plain(stored));
      });
    }
    if (__builtin_expect(!are_plain, 0)) return false;
    for_each([&](Data& stored, char* here) { stored = Packet::take(stored, here); });
    return true;
  }
  struct Late {
    Data data;
    Trouble trouble;
  };
  template <typename Reduce>
  VERBENA_DEVICE_FAR static Late reduce_slowly(const SymmWorkspace<Context>& workspace, uint32_t block,
                                               uint64_t epoch, uint32_t index, const Reduce reduce) {
    LowLatency exchange(workspace, block);
    exchange.epoch_ = epoch;
    Patience patience(workspace.context);
    typename Reduce::template Sums<Data> sums;
    const Data none[1] = {};
    const bool have_come = exchange.receive_several<0>(
        {index}, [](uint32_t, int32_t) { return true; }, patience, none, 0,
        [&](uint32_t, const Addends<0>& addends) {
          reduce.add(sums, addends.data, addends.first, addends.count);
        });
    if (!have_come) return {Data{}, patience.trouble()};
    return {reduce.template finish<Data>(sums, workspace.context.team_size), 0};
  }
  VERBENA_DEVICE_FAR static Late receive_slowly(const SymmWorkspace<Context>& workspace, uint32_t block,
                                                uint64_t epoch, uint32_t index, int32_t member) {
    LowLatency exchange(workspace, block);
    exchange.epoch_ = epoch;
    Patience patience(workspace.context);
    Late late{};
    if (!exchange.receive_packet(member, index, patience, late.data)) late.trouble = patience.trouble();
    return late;
  }
  // A value of send_slowly()'s parameter `to` that stands for all members.
  static constexpr int32_t kAll = -1;
  VERBENA_DEVICE_FAR static void send_slowly(const SymmWorkspace<Context>& workspace, uint32_t block,
                                             uint64_t epoch, uint32_t index, Data stored, int32_t to = kAll) {
    LowLatency exchange(workspace, block);
    exchange.epoch_ = epoch;
    VERBENA_UNROLL_BY(1)
    for (int32_t member = to == kAll ? 0 : to; member < (to == kAll ? workspace.context.team_size : to + 1);
         ++member) {
      char* const slot = exchange.find_slot_at(member);
      Packet::send(slot + Packet::offset(index), exchange.find_note(slot, index), stored, epoch);
    }
  }
  template <int kRanks>
  VERBENA_DEVICE int64_t find_delta(int32_t member) const {
    return kRanks != 0 && kRanks <= kSymmInlineDeltas ? context_.inline_deltas[member]
                                                      : detail::get_delta(context_, member);
  }
  // Calls `body(delta)` for each other member. `delta` is the distance in bytes from this rank's memory to
  // the member's memory. Each rank begins with a different member.
  template <int kRanks, typename Body>
  VERBENA_DEVICE void for_peers(const Body& body) const {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    VERBENA_UNROLL
    for (int32_t step = 1; step < size; ++step) {
      int32_t peer = context_.team_rank + step;
      if (peer >= size) peer -= size;
      body(find_delta<kRanks>(peer));
    }
  }

  VERBENA_DEVICE static uint32_t count_packets(uint64_t length_bytes) {
    return Packet::count(static_cast<uint32_t>(length_bytes));
  }

  // Ends a call. With Heard::kEverybody no barrier is needed, because the threads of the group have synced in
  // receive().
  template <typename Group>
  VERBENA_DEVICE SymmStatus close(const Group& group, Heard heard) const {
    return heard == Heard::kSome ? meet(context_, block_, group) : SymmStatus::kDone;
  }
  template <typename Group>
  VERBENA_DEVICE_FAR static SymmStatus meet(const Context& context, uint32_t block, const Group& group) {
    return symm_lsa_barrier(context, block, group);
  }

  const SymmWorkspace<Context>& workspace_;
  const Context& context_;
  const SymmBlocks& blocks_;
  // Addresses of the block's slots. The constructor computes them early, so that later only the offset of the
  // epoch must be added.
  uint64_t slot_bytes_, turn_bytes_;
  char *slots_, *own_slots_;
  uint64_t* epoch_word_;
  const uint64_t* failure_;  // the team's failure word, read together with the epoch
  uint32_t block_;
  uint32_t calls_ = 1;           // calls in flight
  uint32_t unfenced_calls_ = 0;  // number of calls since the last fence or the start of the kernel
  uint64_t epoch_ = 0;           // number of the first call in flight
  bool has_failed_ = false;
};

}  // namespace verbena::device

#endif
