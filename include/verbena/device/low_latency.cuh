// Messages of a few KiB between ranks in reach of each other, one NVLink trip long: data travels with its
// flag in one store, and who polls the flag has the data. No fence, no barrier, no signal. The flag is the
// call's number (epoch), which grows, so that every bit pattern is legal data and nothing is ever armed.
//
// A call is what the same block of all ranks does together, in the same order everywhere: send() or
// broadcast() from memory that lies anywhere, receive() or receive_reduce(), turn() or finish().
//
//   LowLatency<> exchange(workspace, block_index());
//   status = exchange.begin(group);
//   status = exchange.broadcast(input, length_bytes, group);
//   status = exchange.receive_reduce(input, output, count, group);
//   status = exchange.finish(group);
//
// Each member has a slot at each other one for each block, in two copies that calls use in turn. That two
// are enough, and no barrier is needed between calls, follows from one rule: in each call every rank gets a
// message, however short, from every other rank. Let rank p begin to write call k+2 into its slot at rank q.
//   1. p has ended call k+1: it has got q's message of call k+1.
//   2. q sent that after it had ended call k: turn() and the end of a kernel come after all of its reads.
//   3. So q has read what p wrote in call k, which lay in the copy that p writes now.
// With one copy 3 fails: q may still read call k+1 while p writes call k+2. A call in which somebody does not
// hear from everybody (a broadcast by one rank, a ring) ends with Heard::kSome, which is a barrier: then
// 2 follows from that. A kernel that breaks the rule waits for a flag that was written over, and ends by
// time: with packets of 8 and 16 bytes it never takes wrong data.
//
// A packet orders nothing but itself: other memory goes by signals and barriers. Every wait ends by the
// context's limits; when a call did not return kDone the ranks are out of step, and the hosts make the
// workspace good again (verbena_workspace_reset).
#ifndef VERBENA_DEVICE_LOW_LATENCY_CUH
#define VERBENA_DEVICE_LOW_LATENCY_CUH

#include "verbena/device/packed.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

namespace detail {

// A part of the data that one thread loads or stores at once. Of a tail, bytes; what is not there is 0.
template <typename Part>
VERBENA_DEVICE Part load_part(const char* source, uint64_t offset, uint64_t length_bytes) {
  constexpr uint64_t kBytes = sizeof(Part);
  const char* const from = source + offset;
  if (offset + kBytes <= length_bytes && reinterpret_cast<uint64_t>(from) % kBytes == 0)
    return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const Part*>(from));
  Part part = 0;
  for (uint64_t i = 0; i < kBytes && offset + i < length_bytes; ++i) {
    const auto byte = load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const uint8_t*>(from + i));
    part |= static_cast<Part>(byte) << (8 * i);
  }
  return part;
}
template <typename Part>
VERBENA_DEVICE void store_part(char* destination, uint64_t offset, uint64_t length_bytes, Part part) {
  constexpr uint64_t kBytes = sizeof(Part);
  char* const to = destination + offset;
  if (offset + kBytes <= length_bytes && reinterpret_cast<uint64_t>(to) % kBytes == 0)
    return store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(reinterpret_cast<Part*>(to),
                                                                                 part);
  for (uint64_t i = 0; i < kBytes && offset + i < length_bytes; ++i)
    store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<uint8_t*>(to + i), static_cast<uint8_t>(part >> (8 * i)));
}

// Stores and loads of packets: strong, since both sides access the place at the same time; relaxed, since
// the flag is in the same access as the data.
template <typename T>
VERBENA_DEVICE void send_bits(char* there, const T& bits) {
  store<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(reinterpret_cast<T*>(there), bits);
}
template <typename T>
VERBENA_DEVICE T poll_bits(const char* here) {
  return load<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<const T*>(here));
}

#if VERBENA_EMULATED
// What eight lanes access by one instruction is one access of 128 bytes; all lanes of the warp call.
VERBENA_DEVICE Halves* find_line_parts() {
  static const char key = 0;
  return static_cast<Halves*>(
             emulation::shared_memory(&key, threads_per_block() * sizeof(Halves), alignof(Halves))) +
         thread_index();
}
VERBENA_DEVICE void send_line_part(char* there, Halves part, bool is_active) {
  Halves* const parts = find_line_parts();
  *parts = part;
  sync_warp();
  if (is_active && lane() % 8 == 0)
    emulation::store(there, parts, 8 * sizeof(Halves), Order::kRelaxed, Scope::kSystem);
  sync_warp();
}
VERBENA_DEVICE Halves poll_line_part(const char* here, bool is_active) {
  Halves* const parts = find_line_parts();
  if (is_active && lane() % 8 == 0)
    emulation::load(parts, here, 8 * sizeof(Halves), Order::kRelaxed, Scope::kSystem);
  sync_warp();
  const Halves part = *parts;
  sync_warp();
  return part;
}
#else
// The lanes come together, so that the hardware makes one access of theirs.
VERBENA_DEVICE void send_line_part(char* there, Halves part, bool is_active) {
  sync_warp();
  if (is_active) send_bits(there, part);
}
VERBENA_DEVICE Halves poll_line_part(const char* here, bool is_active) {
  sync_warp();
  return is_active ? poll_bits<Halves>(here) : Halves{};
}
#endif

}  // namespace detail

// The kinds of packets. kBytes is what a thread stores, at that times its number in the slot; Data what it
// carries. `offset` and `count` are of the message: where a thread's data lies in it, how many packets it
// takes, one at least.

// 4 bytes in 8: the shortest, for messages that leave threads without work.
struct Packet8 {
  using Data = uint32_t;
  using Stored = uint64_t;
  static constexpr uint32_t kBytes = 8;
  static constexpr bool kNeedsWarps = false;

  VERBENA_DEVICE static uint64_t offset(uint64_t index) { return index * sizeof(Data); }
  VERBENA_DEVICE static uint64_t count(uint64_t length_bytes) {
    return length_bytes == 0 ? 1 : (length_bytes + sizeof(Data) - 1) / sizeof(Data);
  }
  VERBENA_DEVICE static Data load_data(const char* source, uint64_t index, uint64_t length_bytes) {
    return detail::load_part<Data>(source, offset(index), length_bytes);
  }
  VERBENA_DEVICE static void store_data(char* to, uint64_t index, uint64_t length_bytes, Data data) {
    detail::store_part(to, offset(index), length_bytes, data);
  }
  VERBENA_DEVICE static void send(char* there, Data data, uint64_t epoch, bool) {
    detail::send_bits(there, uint64_t{data} | epoch << 32);
  }
  VERBENA_DEVICE static Stored poll(const char* here, bool) { return detail::poll_bits<Stored>(here); }
  VERBENA_DEVICE static bool is_of(Stored stored, uint64_t epoch, bool) {
    return static_cast<uint32_t>(stored >> 32) == static_cast<uint32_t>(epoch);
  }
  VERBENA_DEVICE static Data open(Stored stored) { return static_cast<Data>(stored); }
};

// 8 bytes in 16: each half has its own flag, as a store of 16 bytes may arrive as two of 8.
struct Packet16 {
  using Data = uint64_t;
  using Stored = detail::Halves;
  static constexpr uint32_t kBytes = 16;
  static constexpr bool kNeedsWarps = false;

  VERBENA_DEVICE static uint64_t offset(uint64_t index) { return index * sizeof(Data); }
  VERBENA_DEVICE static uint64_t count(uint64_t length_bytes) {
    return length_bytes == 0 ? 1 : (length_bytes + sizeof(Data) - 1) / sizeof(Data);
  }
  VERBENA_DEVICE static Data load_data(const char* source, uint64_t index, uint64_t length_bytes) {
    return detail::load_part<Data>(source, offset(index), length_bytes);
  }
  VERBENA_DEVICE static void store_data(char* to, uint64_t index, uint64_t length_bytes, Data data) {
    detail::store_part(to, offset(index), length_bytes, data);
  }
  VERBENA_DEVICE static void send(char* there, Data data, uint64_t epoch, bool) {
    const uint64_t flag = epoch << 32;
    detail::send_bits(there, Stored{flag | static_cast<uint32_t>(data), flag | data >> 32});
  }
  VERBENA_DEVICE static Stored poll(const char* here, bool) { return detail::poll_bits<Stored>(here); }
  VERBENA_DEVICE static bool is_of(Stored stored, uint64_t epoch, bool) {
    const auto flag = static_cast<uint32_t>(epoch);
    return static_cast<uint32_t>(stored.low >> 32) == flag &&
           static_cast<uint32_t>(stored.high >> 32) == flag;
  }
  VERBENA_DEVICE static Data open(Stored stored) {
    return static_cast<uint32_t>(stored.low) | stored.high << 32;
  }
};

// 120 bytes in 128, by eight lanes: the last one's upper half is the flag. It needs 128 bytes that eight
// lanes store and load with one instruction to arrive, and to be seen, whole. NVLink does so between GPUs of
// sm_70 and newer, and NCCL's LL128 counts on it; no manual promises it, and other ways do not:
// verbena-symm --check tries it. Groups are of whole warps.
struct Packet128 {
  using Data = detail::Halves;
  using Stored = detail::Halves;
  static constexpr uint32_t kBytes = 16, kLanes = 8, kLineData = kLanes * kBytes - 8;
  static constexpr bool kNeedsWarps = true;

  VERBENA_DEVICE static bool has_flag() { return lane() % kLanes == kLanes - 1; }
  VERBENA_DEVICE static uint64_t offset(uint64_t index) {
    return index / kLanes * kLineData + index % kLanes * kBytes;
  }
  VERBENA_DEVICE static uint64_t count(uint64_t length_bytes) {
    return length_bytes == 0 ? kLanes : (length_bytes + kLineData - 1) / kLineData * kLanes;
  }
  VERBENA_DEVICE static Data load_data(const char* source, uint64_t index, uint64_t length_bytes) {
    const uint64_t at = offset(index);
    return {detail::load_part<uint64_t>(source, at, length_bytes),
            has_flag() ? 0 : detail::load_part<uint64_t>(source, at + 8, length_bytes)};
  }
  VERBENA_DEVICE static void store_data(char* to, uint64_t index, uint64_t length_bytes, Data data) {
    const uint64_t at = offset(index);
    detail::store_part(to, at, length_bytes, data.low);
    if (!has_flag()) detail::store_part(to, at + 8, length_bytes, data.high);
  }
  VERBENA_DEVICE static void send(char* there, Data data, uint64_t epoch, bool is_active) {
    if (has_flag()) data.high = epoch;
    detail::send_line_part(there, data, is_active);
  }
  VERBENA_DEVICE static Stored poll(const char* here, bool is_active) {
    return detail::poll_line_part(here, is_active);
  }
  // The same answer for all lanes.
  VERBENA_DEVICE static bool is_of(Stored stored, uint64_t epoch, bool is_active) {
    return ballot(kFullWarp, is_active && has_flag() && stored.high != epoch) == 0;
  }
  VERBENA_DEVICE static Data open(Stored stored) { return {stored.low, has_flag() ? 0 : stored.high}; }
};

// Whether in a call each rank has got a message from every other one.
enum class Heard : uint8_t { kEverybody, kSome };

template <typename Packet = Packet16, typename Context = SymmContext>
class LowLatency {
 public:
  // By all threads of the group that makes the calls; `block` is below the workspace's blocks, and no other
  // group uses it at the same time. The workspace outlives this.
  VERBENA_DEVICE LowLatency(const SymmWorkspace<Context>& workspace, uint32_t block)
      : context_(workspace.context), blocks_(workspace.blocks), block_(block) {}

  // The most that a message may have.
  VERBENA_DEVICE uint64_t capacity_bytes() const {
    return Packet::offset(blocks_.slot_bytes / Packet::kBytes);
  }
  VERBENA_DEVICE uint64_t epoch() const { return epoch_; }

  // The first call of a kernel, which the kernels before it have ended.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus begin(const Group& group = {}) {
    if (block_ >= blocks_.count || blocks_.slot_bytes == 0) return SymmStatus::kInvalid;
    if (Packet::kNeedsWarps && group.size() % kWarpLanes != 0) return SymmStatus::kInvalid;
    if (context_.has_remote != 0) return SymmStatus::kUnreachable;
    // Nothing looks at it before the first packet leaves: the data is loaded meanwhile.
    epoch_ = load_relaxed<Scope::kGpu>(blocks_.epochs + block_) + 1;
    return SymmStatus::kDone;
  }

  // The next call of the same kernel.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus turn(const Group& group = {}, Heard heard = Heard::kEverybody) {
    if (const SymmStatus status = close(group, heard); status != SymmStatus::kDone) return status;
    // What the threads have read comes before what they send next, also for who reads that. receive() has
    // met before the fence, and they meet behind it, as one thread reads and another one sends.
    fence<Order::kAcquireRelease, Scope::kSystem>();
    group.sync();
    ++epoch_;
    return SymmStatus::kDone;
  }

  // Ends the last call of a kernel.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}, Heard heard = Heard::kEverybody) {
    const SymmStatus status = close(group, heard);
    if (status == SymmStatus::kDone && group.elect())
      store_relaxed<Scope::kGpu>(blocks_.epochs + block_, epoch_);
    return status;
  }

  // A message to one other member, once a call; the source may be changed behind the group's next sync().
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus send(int32_t peer, const void* source, uint64_t length_bytes,
                                               const Group& group = {}) const {
    if (!is_peer(peer) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    char* const there = detail::shift(find_slot(context_.team_rank), detail::get_delta(context_, peer));
    for_packets(group, length_bytes, [&](uint64_t index, bool is_active) {
      Packet::send(there + index * Packet::kBytes, load_data(source, index, length_bytes, is_active), epoch_,
                   is_active);
    });
    return SymmStatus::kDone;
  }

  // The same message to all other members. kRanks is the team's size, if that is known when the kernel is
  // compiled, or 0.
  template <int kRanks = 0, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus broadcast(const void* source, uint64_t length_bytes,
                                                    const Group& group = {}) const {
    if (!is_size(kRanks) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    char* const mine = find_slot(context_.team_rank);
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    for_packets(group, length_bytes, [&](uint64_t index, bool is_active) {
      const auto data = load_data(source, index, length_bytes, is_active);
      // Each rank begins with another one.
      for (int32_t step = 1; step < size; ++step) {
        int32_t peer = context_.team_rank + step;
        if (peer >= size) peer -= size;
        Packet::send(detail::shift(mine, detail::get_delta(context_, peer)) + index * Packet::kBytes, data,
                     epoch_, is_active);
      }
    });
    return SymmStatus::kDone;
  }

  // The message of one other member, as long as it was sent.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus receive(int32_t peer, void* destination, uint64_t length_bytes,
                                                  const Group& group = {}) const {
    if (!is_peer(peer) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const WaitLimits limits = detail::limit_wait(context_);
    const char* const here = find_slot(peer);
    WaitResult mine = WaitResult::kReached;
    for_packets(group, length_bytes, [&](uint64_t index, bool is_active) {
      if (mine != WaitResult::kReached) return;
      typename Packet::Stored stored{};
      mine = wait(limits, [&] {
        stored = Packet::poll(here + index * Packet::kBytes, is_active);
        return Packet::is_of(stored, epoch_, is_active);
      });
      if (is_active && mine == WaitResult::kReached)
        Packet::store_data(static_cast<char*>(destination), index, length_bytes, Packet::open(stored));
    });
    return conclude(group, mine, peer);
  }

  // `destination` becomes the sum of all members' messages, this one's from `own`: `count` numbers, added in
  // the order of ranks as packed.cuh does, the same bits on all of them. It may be `own`.
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus receive_reduce(const T* own, T* destination, uint64_t count,
                                                         const Group& group = {}) const {
    const uint64_t length_bytes = count * sizeof(T);
    if (!is_size(kRanks) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const WaitLimits limits = detail::limit_wait(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    for_packets(group, length_bytes, [&](uint64_t index, bool is_active) {
      if (mine != WaitResult::kReached) return;
      const auto data = load_data(own, index, length_bytes, is_active);
      PackedSum<T, sizeof(data)> sum{};
      mine = add_all<kRanks>(limits, index, is_active, data, sum, &late);
      if (is_active && mine == WaitResult::kReached)
        Packet::store_data(reinterpret_cast<char*>(destination), index, length_bytes,
                           __builtin_bit_cast(typename Packet::Data, sum.round()));
    });
    return conclude(group, mine, late);
  }

 private:
  VERBENA_DEVICE bool is_peer(int32_t peer) const {
    return detail::is_member(context_, peer) && peer != context_.team_rank;
  }
  VERBENA_DEVICE bool is_size(int ranks) const { return ranks == 0 || ranks == context_.team_size; }

  // Of this rank; `source` writes it.
  VERBENA_DEVICE char* find_slot(int32_t source) const {
    const auto size = static_cast<uint64_t>(context_.team_size);
    const uint64_t copy = block_ * uint64_t{kSymmTurns} + epoch_ % kSymmTurns;
    return blocks_.slots + (copy * size + static_cast<uint64_t>(source)) * blocks_.slot_bytes;
  }

  // `body(index, is_active)`: whole warps come together where packets need it, some lanes for nothing.
  template <typename Group, typename Body>
  VERBENA_DEVICE void for_packets(const Group& group, uint64_t length_bytes, const Body& body) const {
    const uint64_t count = Packet::count(length_bytes);
    const uint64_t end = Packet::kNeedsWarps ? (count + kWarpLanes - 1) / kWarpLanes * kWarpLanes : count;
    for (uint64_t index = group.rank(); index < end; index += group.size()) body(index, index < count);
  }
  VERBENA_DEVICE static typename Packet::Data load_data(const void* source, uint64_t index,
                                                        uint64_t length_bytes, bool is_active) {
    if (!is_active) return {};
    return Packet::load_data(static_cast<const char*>(source), index, length_bytes);
  }

  // wait_for(), but where packets need whole warps the lanes stay together, whose condition is the same.
  template <typename Condition>
  VERBENA_DEVICE static WaitResult wait(const WaitLimits& limits, const Condition& condition) {
    if constexpr (!Packet::kNeedsWarps) {
      return wait_for(limits, condition);
    } else {
      for (uint32_t spins = 1; !condition(); ++spins) {
        if (spins % kDefaultSpinsPerCheck != 0) continue;
        const WaitResult mine = limits.check();
        if (ballot(kFullWarp, mine == WaitResult::kAborted) != 0) return WaitResult::kAborted;
        if (ballot(kFullWarp, mine == WaitResult::kTimedOut) != 0) return WaitResult::kTimedOut;
      }
      return WaitResult::kReached;
    }
  }

  // One packet of each member; those of several are asked for at once.
  template <int kRanks, typename Sum>
  VERBENA_DEVICE WaitResult add_all(const WaitLimits& limits, uint64_t index, bool is_active,
                                    const typename Packet::Data& own, Sum& sum, int32_t* late) const {
    constexpr int32_t kAtOnce = kRanks == 0 ? 8 : kRanks;
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    const char* const here = find_slot(0) + index * Packet::kBytes;
    for (int32_t first = 0; first < size; first += kAtOnce) {
      typename Packet::Stored stored[kAtOnce] = {};
      const int32_t last = size - first < kAtOnce ? size - first : kAtOnce;
      uint32_t missing = (1u << last) - 1;
      if (context_.team_rank - first >= 0 && context_.team_rank - first < last)
        missing &= ~(1u << (context_.team_rank - first));
      const WaitResult result = wait(limits, [&] {
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if ((missing >> i & 1) != 0)
            stored[i] = Packet::poll(here + static_cast<uint64_t>(first + i) * blocks_.slot_bytes, is_active);
        }
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if ((missing >> i & 1) != 0 && Packet::is_of(stored[i], epoch_, is_active)) missing &= ~(1u << i);
        }
        return missing == 0;
      });
      if (result != WaitResult::kReached) {
        *late = first;
        while ((missing >> (*late - first) & 1) == 0) ++*late;
        return result;
      }
      VERBENA_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (i >= last) break;
        const auto packed = __builtin_bit_cast(
            typename Sum::Numbers, first + i == context_.team_rank ? own : Packet::open(stored[i]));
        if (first + i == 0) {
          sum.begin(packed);
        } else {
          sum.add(packed);
        }
      }
    }
    return WaitResult::kReached;
  }

  template <typename Group>
  VERBENA_DEVICE SymmStatus conclude(const Group& group, WaitResult mine, int32_t peer) const {
    return detail::conclude(context_, group, mine, {SymmWait::kPacket, block_, static_cast<uint32_t>(peer)});
  }

  // Packets have the lower half of the epoch. Before it comes round, once in 2^32 calls, all ranks forget
  // their packets: one that lay since then, behind shorter messages, would be taken for new. 0 is no call's.
  template <typename Group>
  VERBENA_DEVICE SymmStatus close(const Group& group, Heard heard) {
    const bool is_last = static_cast<uint32_t>(epoch_ + 1) == 0;
    // Who has heard from everybody has met in receive(). Before slots are cleared what others sent there is
    // ordered by a barrier: packets order nothing.
    const SymmStatus status =
        heard == Heard::kSome || is_last ? symm_lsa_barrier(context_, block_, group) : SymmStatus::kDone;
    if (status != SymmStatus::kDone || !is_last) return status;
    ++epoch_;
    const uint64_t length_bytes =
        uint64_t{kSymmTurns} * static_cast<uint64_t>(context_.team_size) * blocks_.slot_bytes;
    auto* const mine = reinterpret_cast<Vector16*>(blocks_.slots + block_ * length_bytes);
    for (uint64_t i = group.rank(); i < length_bytes / sizeof(Vector16); i += group.size())
      store<Order::kWeak, Scope::kThreads>(mine + i, Vector16{});
    return symm_lsa_barrier(context_, block_, group);
  }

  const Context& context_;
  const SymmBlocks& blocks_;
  uint32_t block_;
  uint64_t epoch_ = 0;
};

}  // namespace verbena::device

#endif
