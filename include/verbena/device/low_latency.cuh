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
// Each member has a slot at each other one for each block, in four copies that calls use in turn. That four
// are enough, and no barrier is needed between calls, follows from two rules: in each call every rank gets a
// message, however short, from every other rank; and what a rank has read comes before what it sends (a
// fence, the end of a kernel) at every second call at least. Let rank p begin to write call k+4 into its slot
// at rank q, and let f be the last call before p's last fence.
//   1. k+4 is the first or the second call behind that fence: f is k+2 or k+3.
//   2. p has ended call f: it has got q's message of call f.
//   3. q sent that two calls or more after call k, so behind a fence that came after its reads of call k.
//   4. So q has read what p wrote in call k, which lay in the copy that p writes now.
// A call in which somebody does not hear from everybody (a broadcast by one rank, a ring) ends with
// Heard::kSome, which is a barrier: then 3 follows from that. A kernel that breaks the rules waits for a flag
// that was written over, and ends by time: with packets of 8 and 16 bytes it never takes wrong data.
//
// A workspace has packets of one kind, from when it is made or reset on: what one kind sends as data may look
// like the flag of another. A packet orders nothing but itself: other memory goes by signals and barriers.
// Every wait ends by the context's limits; when a call did not return kDone the ranks are out of step, and
// the hosts make the workspace good again (verbena_workspace_reset).
#ifndef VERBENA_DEVICE_LOW_LATENCY_CUH
#define VERBENA_DEVICE_LOW_LATENCY_CUH

#include "verbena/device/reduction.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

// Where the bytes of a message lie that are not all side by side: rows of `row_bytes`, each `step_bytes`
// behind the one before, the message from byte `first` of all rows on. Where both are equal the bytes are
// side by side, whatever the two are.
struct Rows {
  char* begin;
  uint64_t row_bytes, step_bytes;
  uint64_t first = 0;

  VERBENA_DEVICE static Rows side_by_side(const void* begin) {
    return {static_cast<char*>(const_cast<void*>(begin)), 1, 1};
  }
  VERBENA_DEVICE bool is_side_by_side() const { return row_bytes == step_bytes; }
  VERBENA_DEVICE Rows from(uint64_t offset) const { return {begin, row_bytes, step_bytes, first + offset}; }
  VERBENA_DEVICE char* find(uint64_t offset) const {
    offset += first;
    if (is_side_by_side()) return begin + offset;
    // Divisions of 32 bits are several times as fast.
    const uint64_t row = (offset | row_bytes) >> 32 == 0
                             ? static_cast<uint32_t>(offset) / static_cast<uint32_t>(row_bytes)
                             : offset / row_bytes;
    return begin + row * step_bytes + (offset - row * row_bytes);
  }
};

namespace detail {

VERBENA_DEVICE const char* find_byte(const char* place, uint64_t offset) {
  return place + offset;
}
VERBENA_DEVICE char* find_byte(char* place, uint64_t offset) {
  return place + offset;
}
VERBENA_DEVICE char* find_byte(const Rows& place, uint64_t offset) {
  return place.find(offset);
}
// The address of `bytes` from `offset` on, if they lie side by side; `length_bytes` is the message's.
template <typename Place>
VERBENA_DEVICE auto find_part(const Place& place, uint64_t offset, uint64_t bytes) {
  auto* const first = find_byte(place, offset);
  return find_byte(place, offset + bytes - 1) == first + (bytes - 1) ? first : nullptr;
}
VERBENA_DEVICE const char* find_part(const char* place, uint64_t offset, uint64_t) {
  return place + offset;
}
VERBENA_DEVICE char* find_part(char* place, uint64_t offset, uint64_t) {
  return place + offset;
}

// A part of the data that one thread loads or stores at once. Where its address is no multiple of its length,
// and of a tail, byte by byte: a call, which takes no code of the other way. What is not there is 0.
template <typename Part, typename Place>
VERBENA_DEVICE_FAR Part load_by_bytes(const Place& source, uint32_t offset, uint32_t length_bytes) {
  Part part = 0;
  VERBENA_UNROLL_BY(1)
  for (uint32_t i = 0; i < sizeof(Part) && offset + i < length_bytes; ++i) {
    const auto byte = load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const uint8_t*>(find_byte(source, offset + i)));
    part |= static_cast<Part>(byte) << (8 * i);
  }
  return part;
}
template <typename Part, typename Place>
VERBENA_DEVICE_FAR void store_by_bytes(const Place& destination, uint32_t offset, uint32_t length_bytes,
                                       Part part) {
  VERBENA_UNROLL_BY(1)
  for (uint32_t i = 0; i < sizeof(Part) && offset + i < length_bytes; ++i)
    store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<uint8_t*>(find_byte(destination, offset + i)),
        static_cast<uint8_t>(part >> (8 * i)));
}
// Whether the part is there as a whole; `address` is where.
template <typename Part, typename Address>
VERBENA_DEVICE bool is_whole(Address address, uint32_t offset, uint32_t length_bytes) {
  return length_bytes >= sizeof(Part) && offset <= length_bytes - sizeof(Part) && address != nullptr &&
         reinterpret_cast<uint64_t>(address) % sizeof(Part) == 0;
}
template <typename Part, typename Place>
VERBENA_DEVICE Part load_part(const Place& source, uint32_t offset, uint32_t length_bytes) {
  const char* const from = find_part(source, offset, sizeof(Part));
  if (!is_whole<Part>(from, offset, length_bytes)) return load_by_bytes<Part>(source, offset, length_bytes);
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<const Part*>(from));
}
template <typename Part, typename Place>
VERBENA_DEVICE void store_part(const Place& destination, uint32_t offset, uint32_t length_bytes, Part part) {
  char* const to = find_part(destination, offset, sizeof(Part));
  if (!is_whole<Part>(to, offset, length_bytes))
    return store_by_bytes(destination, offset, length_bytes, part);
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(reinterpret_cast<Part*>(to), part);
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
// What four lanes access by one instruction is one access of 64 bytes; all lanes of the warp call.
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
  if (is_active && lane() % 4 == 0)
    emulation::store(there, parts, 4 * sizeof(Halves), Order::kRelaxed, Scope::kSystem);
  sync_warp();
}
VERBENA_DEVICE Halves poll_line_part(const char* here, bool is_active) {
  Halves* const parts = find_line_parts();
  if (is_active && lane() % 4 == 0)
    emulation::load(parts, here, 4 * sizeof(Halves), Order::kRelaxed, Scope::kSystem);
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
  static constexpr uint32_t kFewest = 1;  // packets that come together

  VERBENA_DEVICE static uint32_t offset(uint32_t index) {
    return index * static_cast<uint32_t>(sizeof(Data));
  }
  VERBENA_DEVICE static uint32_t count(uint32_t length_bytes) {
    return length_bytes == 0 ? 1 : (length_bytes - 1) / static_cast<uint32_t>(sizeof(Data)) + 1;
  }
  template <typename Place>
  VERBENA_DEVICE static Data load_data(const Place& source, uint32_t index, uint32_t length_bytes) {
    return detail::load_part<Data>(source, offset(index), length_bytes);
  }
  template <typename Place>
  VERBENA_DEVICE static void store_data(const Place& to, uint32_t index, uint32_t length_bytes, Data data) {
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
  static constexpr uint32_t kFewest = 1;

  VERBENA_DEVICE static uint32_t offset(uint32_t index) {
    return index * static_cast<uint32_t>(sizeof(Data));
  }
  VERBENA_DEVICE static uint32_t count(uint32_t length_bytes) {
    return length_bytes == 0 ? 1 : (length_bytes - 1) / static_cast<uint32_t>(sizeof(Data)) + 1;
  }
  template <typename Place>
  VERBENA_DEVICE static Data load_data(const Place& source, uint32_t index, uint32_t length_bytes) {
    return detail::load_part<Data>(source, offset(index), length_bytes);
  }
  template <typename Place>
  VERBENA_DEVICE static void store_data(const Place& to, uint32_t index, uint32_t length_bytes, Data data) {
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

// 56 bytes in 64, by four lanes: the last one's upper half is the flag. It needs 64 bytes that four lanes
// store and load with one instruction to arrive, and to be seen, whole. GPUs on NVLink do so; no manual
// promises it, and other ways do not: verbena-symm --check tries it. 128 bytes, as NCCL's LL128 has them, are
// too many: between H100s now and then the first poll of a line saw the flag, and half of the line as it was
// before (docs/measurements, 2026-11-25-h100x2-torn-lines.txt). Groups are of whole warps.
struct Packet64 {
  using Data = detail::Halves;
  using Stored = detail::Halves;
  static constexpr uint32_t kBytes = 16, kLanes = 4, kLineData = kLanes * kBytes - 8;
  static constexpr bool kNeedsWarps = true;
  static constexpr uint32_t kFewest = kLanes;

  VERBENA_DEVICE static bool has_flag() { return lane() % kLanes == kLanes - 1; }
  VERBENA_DEVICE static uint32_t offset(uint32_t index) {
    return index / kLanes * kLineData + index % kLanes * kBytes;
  }
  VERBENA_DEVICE static uint32_t count(uint32_t length_bytes) {
    return length_bytes == 0 ? kLanes : ((length_bytes - 1) / kLineData + 1) * kLanes;
  }
  template <typename Place>
  VERBENA_DEVICE static Data load_data(const Place& source, uint32_t index, uint32_t length_bytes) {
    const uint32_t at = offset(index);
    return {detail::load_part<uint64_t>(source, at, length_bytes),
            has_flag() ? 0 : detail::load_part<uint64_t>(source, at + 8, length_bytes)};
  }
  template <typename Place>
  VERBENA_DEVICE static void store_data(const Place& to, uint32_t index, uint32_t length_bytes, Data data) {
    const uint32_t at = offset(index);
    detail::store_part(to, at, length_bytes, data.low);
    if (!has_flag()) detail::store_part(to, at + 8, length_bytes, data.high);
  }
  // Of a message in memory of the block, 8 bytes aligned and of whole lines.
  VERBENA_DEVICE static Data load_data(const char* source, uint32_t index) {
    const auto* const from = reinterpret_cast<const uint64_t*>(source + offset(index));
    return {load<Order::kWeak, Scope::kThreads>(from),
            has_flag() ? 0 : load<Order::kWeak, Scope::kThreads>(from + 1)};
  }
  VERBENA_DEVICE static void store_data(char* to, uint32_t index, Data data) {
    auto* const words = reinterpret_cast<uint64_t*>(to + offset(index));
    store<Order::kWeak, Scope::kThreads>(words, data.low);
    if (!has_flag()) store<Order::kWeak, Scope::kThreads>(words + 1, data.high);
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

// How long the waits of a thread may last together. The clock is not read before one of them has lasted
// kDefaultSpinsPerCheck polls.
class Patience {
 public:
  VERBENA_DEVICE explicit Patience(const SymmContext& context) : context_(context) {}

  // kReached: the wait may go on.
  VERBENA_DEVICE WaitResult check() {
    if (!has_begun_) limits_ = detail::limit_wait(context_);
    has_begun_ = true;
    return limits_.check();
  }

 private:
  const SymmContext& context_;
  WaitLimits limits_{};
  bool has_begun_ = false;
};

template <typename Packet = Packet16, typename Context = SymmContext>
class LowLatency {
 public:
  using Data = typename Packet::Data;
  // Calls that may be under way together: half of the copies of a slot.
  static constexpr uint32_t kCallsAtOnce = kSymmTurns / 2;

  // By all threads of the group that makes the calls; `block` is below the workspace's blocks, and no other
  // group uses it at the same time. The workspace outlives this.
  VERBENA_DEVICE LowLatency(const SymmWorkspace<Context>& workspace, uint32_t block)
      : context_(workspace.context),
        blocks_(workspace.blocks),
        slots_(workspace.blocks.slots + block * uint64_t{kSymmTurns} *
                                            static_cast<uint64_t>(workspace.context.team_size) *
                                            workspace.blocks.slot_bytes),
        block_(block) {}

  // The most that a message may have.
  VERBENA_DEVICE uint64_t capacity_bytes() const {
    constexpr uint64_t kMost = uint64_t{1} << 31;  // packets are counted in 32 bits
    const uint64_t slot_bytes = blocks_.slot_bytes < kMost ? blocks_.slot_bytes : kMost;
    return Packet::offset(static_cast<uint32_t>(slot_bytes) / Packet::kBytes);
  }
  VERBENA_DEVICE uint64_t epoch() const { return epoch_; }
  VERBENA_DEVICE uint32_t block() const { return block_; }

  // The first call of a kernel, which the kernels before it have ended; or the first `calls`, which are under
  // way together (packet by packet, below).
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus begin(const Group& group = {}, uint32_t calls = 1) {
    if (const SymmStatus status = check(group); status != SymmStatus::kDone) return status;
    load_epoch(calls);
    return SymmStatus::kDone;
  }
  // What begin() does, in two steps. Only the second one needs the kernels before this one to have ended.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus check(const Group& group = {}) const {
    if (block_ >= blocks_.count || blocks_.slot_bytes == 0) return SymmStatus::kInvalid;
    if (Packet::kNeedsWarps && group.size() % kWarpLanes != 0) return SymmStatus::kInvalid;
    return context_.has_remote != 0 ? SymmStatus::kUnreachable : SymmStatus::kDone;
  }
  VERBENA_DEVICE void load_epoch(uint32_t calls = 1) {
    epoch_ = load_relaxed<Scope::kGpu>(blocks_.epochs + block_) + 1;
    calls_ = calls;
    unfenced_calls_ = 0;
  }

  // The next call, or `calls`, of the same kernel.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus turn(const Group& group = {}, Heard heard = Heard::kEverybody,
                                               uint32_t calls = 1) {
    if (const SymmStatus status = close(group, heard); status != SymmStatus::kDone) return status;
    epoch_ += calls_;
    unfenced_calls_ = heard == Heard::kSome ? 0 : unfenced_calls_ + calls_;
    calls_ = calls;
    if (unfenced_calls_ + calls > kCallsAtOnce) {
      // What the threads have read comes before what they send next, also for who reads that. receive() has
      // met before the fence, and they meet behind it, as one thread reads and another one sends.
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
      store_relaxed<Scope::kGpu>(blocks_.epochs + block_, epoch_ + calls_ - 1);
    return status;
  }

  // A message to one other member, once a call; the source may be changed behind the group's next sync().
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus send(int32_t peer, const void* source, uint64_t length_bytes,
                                               const Group& group = {}) const {
    if (!is_peer(peer) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const auto length = static_cast<uint32_t>(length_bytes);
    for_packets(group, length, [&](uint32_t index, bool is_active) {
      send_packet(peer, index, load_data(as_bytes(source), index, length, is_active), is_active);
    });
    return SymmStatus::kDone;
  }

  // The same message to all other members. kRanks is the team's size, if that is known when the kernel is
  // compiled, or 0.
  template <int kRanks = 0, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus broadcast(const void* source, uint64_t length_bytes,
                                                    const Group& group = {}) const {
    if (!is_size(kRanks) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const auto length = static_cast<uint32_t>(length_bytes);
    for_packets(group, length, [&](uint32_t index, bool is_active) {
      send_packet_to_all<kRanks>(index, load_data(as_bytes(source), index, length, is_active), is_active);
    });
    return SymmStatus::kDone;
  }

  // The message of one other member, as long as it was sent.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus receive(int32_t peer, void* destination, uint64_t length_bytes,
                                                  const Group& group = {}) const {
    if (!is_peer(peer) || length_bytes > capacity_bytes()) return SymmStatus::kInvalid;
    const auto length = static_cast<uint32_t>(length_bytes);
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    for_packets(group, length, [&](uint32_t index, bool is_active) {
      if (mine != WaitResult::kReached) return;
      Data data{};
      mine = receive_packet(peer, index, is_active, patience, data);
      if (is_active && mine == WaitResult::kReached)
        Packet::store_data(static_cast<char*>(destination), index, length, data);
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
    const auto length = static_cast<uint32_t>(length_bytes);
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    const uint32_t packets = Packet::count(length);
    for_packets(group, length, [&](uint32_t index, bool is_active) {
      if (mine != WaitResult::kReached) return;
      Data data = load_data(as_bytes(own), index, length, is_active);
      mine = reduce_packets<kRanks>(
          index, [&](int32_t) { return packets; }, patience, data, late, ReduceAs<T>{}, data);
      if (is_active && mine == WaitResult::kReached)
        Packet::store_data(reinterpret_cast<char*>(destination), index, length, data);
    });
    return conclude(group, mine, late);
  }

  // ---- Packet by packet, by one thread or, where Packet::kNeedsWarps, by the lanes of a warp together, some
  // of which may be there for nothing (`is_active`). `ahead` is for which of the calls under way: 0 for the
  // first. All that a thread has received it has read when the next call of conclude() returns.

  // The packets of several members, in the order of ranks: of all, where their number is known when the
  // kernel is compiled, or of some at a time.
  template <int kRanks>
  struct Terms {
    static constexpr int32_t kMost = kRanks == 0 ? 4 : kRanks;
    Data data[kMost];
    int32_t first, count;  // members
  };

  // Whole warps come together where packets need it: up to there loops go, and packets before that one's are
  // somebody's of the warp.
  VERBENA_DEVICE static uint32_t find_end(uint32_t packets) {
    return Packet::kNeedsWarps ? (packets + kWarpLanes - 1) / kWarpLanes * kWarpLanes : packets;
  }
  VERBENA_DEVICE static uint32_t find_first_of_warp(uint32_t index) {
    return Packet::kNeedsWarps ? index - lane() : index;
  }
  VERBENA_DEVICE bool is_size(int ranks) const { return ranks == 0 || ranks == context_.team_size; }
  template <typename Place>
  VERBENA_DEVICE static Data load_data(const Place& source, uint32_t index, uint32_t length_bytes,
                                       bool is_active) {
    if (!is_active) return {};
    return Packet::load_data(source, index, length_bytes);
  }
  VERBENA_DEVICE void send_packet(int32_t peer, uint32_t index, const Data& data, bool is_active,
                                  uint32_t ahead = 0) const {
    Packet::send(find_slot_at(peer, ahead) + index * Packet::kBytes, data, epoch_ + ahead, is_active);
  }
  template <int kRanks = 0>
  VERBENA_DEVICE void send_packet_to_all(uint32_t index, const Data& data, bool is_active,
                                         uint32_t ahead = 0) const {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    // Each rank begins with another one.
    VERBENA_UNROLL
    for (int32_t step = 1; step < size; ++step) {
      int32_t peer = context_.team_rank + step;
      if (peer >= size) peer -= size;
      send_packet(peer, index, data, is_active, ahead);
    }
  }
  VERBENA_DEVICE WaitResult receive_packet(int32_t peer, uint32_t index, bool is_active, Patience& patience,
                                           Data& data, uint32_t ahead = 0) const {
    const char* const here = find_slot(peer, ahead) + index * Packet::kBytes;
    typename Packet::Stored stored{};
    const WaitResult result = wait(patience, [&] {
      stored = Packet::poll(here, is_active);
      return Packet::is_of(stored, epoch_ + ahead, is_active);
    });
    data = Packet::open(stored);
    return result;
  }
  // One packet of each member from `first` on, `own` from this one; all are asked for at once.
  // `count_of(member)` is how many packets its message has: behind them there is nothing to wait for. `late`
  // becomes the member that has not come in time.
  template <int kRanks, typename CountOf>
  VERBENA_DEVICE WaitResult receive_packets(uint32_t index, const CountOf& count_of, Patience& patience,
                                            const Data& own, Terms<kRanks>& terms, int32_t& late,
                                            uint32_t ahead = 0, int32_t first = 0) const {
    constexpr int32_t kMost = Terms<kRanks>::kMost;
    const int32_t left = context_.team_size - first;
    terms.first = kRanks == 0 ? first : 0;
    terms.count = kRanks != 0 ? kRanks : left < kMost ? left : kMost;
    const char* const here = find_slot(terms.first, ahead) + index * Packet::kBytes;
    const uint32_t first_of_warp = find_first_of_warp(index);
    typename Packet::Stored stored[kMost] = {};
    uint32_t missing = 0;
    VERBENA_UNROLL
    for (int32_t i = 0; i < kMost; ++i) {
      const int32_t member = terms.first + i;
      if (i < terms.count && member != context_.team_rank && first_of_warp < count_of(member))
        missing |= 1u << i;
    }
    const WaitResult result = wait(patience, [&] {
      VERBENA_UNROLL
      for (int32_t i = 0; i < kMost; ++i) {
        if ((missing >> i & 1) != 0)
          stored[i] = Packet::poll(here + static_cast<uint64_t>(i) * blocks_.slot_bytes,
                                   index < count_of(terms.first + i));
      }
      VERBENA_UNROLL
      for (int32_t i = 0; i < kMost; ++i) {
        if ((missing >> i & 1) != 0 &&
            Packet::is_of(stored[i], epoch_ + ahead, index < count_of(terms.first + i)))
          missing &= ~(1u << i);
      }
      return missing == 0;
    });
    if (result != WaitResult::kReached) {
      for (late = 0; (missing >> late & 1) == 0;) ++late;
      late += terms.first;
      return result;
    }
    VERBENA_UNROLL
    for (int32_t i = 0; i < kMost; ++i)
      terms.data[i] = terms.first + i == context_.team_rank ? own : Packet::open(stored[i]);
    return WaitResult::kReached;
  }
  // `take(terms)` for one packet of each member, in the order of ranks.
  template <int kRanks, typename CountOf, typename Take>
  VERBENA_DEVICE WaitResult receive_all(uint32_t index, const CountOf& count_of, Patience& patience,
                                        const Data& own, int32_t& late, uint32_t ahead,
                                        const Take& take) const {
    Terms<kRanks> terms;
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    VERBENA_UNROLL_BY(1)
    for (int32_t first = 0; first < size; first += Terms<kRanks>::kMost) {
      const WaitResult result =
          receive_packets<kRanks>(index, count_of, patience, own, terms, late, ahead, first);
      if (result != WaitResult::kReached) return result;
      take(terms);
    }
    return WaitResult::kReached;
  }
  // What `reduce` (as reduction.cuh has them) makes of one packet of each member.
  template <int kRanks, typename Reduce, typename CountOf>
  VERBENA_DEVICE WaitResult reduce_packets(uint32_t index, const CountOf& count_of, Patience& patience,
                                           const Data& own, int32_t& late, const Reduce& reduce,
                                           Data& result) const {
    typename Reduce::template Sums<Data> sums;
    const WaitResult end = receive_all<kRanks>(
        index, count_of, patience, own, late, 0,
        [&](const Terms<kRanks>& terms) { reduce.add(sums, terms.data, terms.first, terms.count); });
    if (end == WaitResult::kReached) result = reduce.template finish<Data>(sums, context_.team_size);
    return end;
  }
  // The same of several packets, those whose bit of `which` is set: data[i], this rank's own at index[i],
  // becomes the result. All of them are asked for at once.
  template <int kRanks, uint32_t kCount, typename Reduce>
  VERBENA_DEVICE WaitResult reduce_several(const uint32_t (&index)[kCount], uint32_t which,
                                           Patience& patience, Data (&data)[kCount], int32_t& late,
                                           const Reduce& reduce) const {
    static_assert(!Packet::kNeedsWarps, "verbena: several packets of a thread, not of a warp");
    constexpr int32_t kAtOnce = kRanks == 0 ? 1 : kRanks;
    static_assert(kCount * kAtOnce <= 32, "verbena: a bit of a word for each packet");
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    typename Reduce::template Sums<Data> sums[kCount];
    VERBENA_UNROLL_BY(1)
    for (int32_t first = 0; first < size; first += kAtOnce) {
      typename Packet::Stored stored[kCount][kAtOnce] = {};
      uint32_t missing = 0;
      const auto for_missing = [&](const auto& body) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kCount; ++i) {
          VERBENA_UNROLL
          for (int32_t k = 0; k < kAtOnce; ++k) {
            const uint32_t bit = 1u << (i * kAtOnce + static_cast<uint32_t>(k));
            if ((missing & bit) != 0) body(i, k, bit);
          }
        }
      };
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        VERBENA_UNROLL
        for (int32_t k = 0; k < kAtOnce; ++k) {
          if ((which >> i & 1) != 0 && first + k != context_.team_rank)
            missing |= 1u << (i * kAtOnce + static_cast<uint32_t>(k));
        }
      }
      const WaitResult result = wait(patience, [&] {
        for_missing([&](uint32_t i, int32_t k, uint32_t) {
          stored[i][k] = Packet::poll(find_slot(first + k, 0) + index[i] * Packet::kBytes, true);
        });
        for_missing([&](uint32_t i, int32_t k, uint32_t bit) {
          if (Packet::is_of(stored[i][k], epoch_, true)) missing &= ~bit;
        });
        return missing == 0;
      });
      if (result != WaitResult::kReached) {
        for_missing([&](uint32_t, int32_t k, uint32_t) { late = first + k; });
        return result;
      }
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        Data terms[kAtOnce];
        VERBENA_UNROLL
        for (int32_t k = 0; k < kAtOnce; ++k)
          terms[k] = first + k == context_.team_rank ? data[i] : Packet::open(stored[i][k]);
        reduce.add(sums[i], terms, first, kAtOnce);
      }
    }
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) data[i] = reduce.template finish<Data>(sums[i], size);
    return WaitResult::kReached;
  }
  // For who knows where packets lie: where this rank's go to at `peer`, and where the peer's come to here.
  VERBENA_DEVICE char* find_slot_at(int32_t peer, uint32_t ahead = 0) const {
    return detail::shift(find_slot(context_.team_rank, ahead), detail::get_delta(context_, peer));
  }
  VERBENA_DEVICE const char* find_slot_of(int32_t peer, uint32_t ahead = 0) const {
    return find_slot(peer, ahead);
  }
  // wait_for(), but where packets need whole warps the lanes stay together, whose condition is the same.
  template <typename Condition>
  VERBENA_DEVICE static WaitResult wait(Patience& patience, const Condition& condition) {
    for (uint32_t spins = 1; !condition(); ++spins) {
      if (spins % kDefaultSpinsPerCheck != 0) continue;
      const WaitResult mine = patience.check();
      if constexpr (!Packet::kNeedsWarps) {
        if (mine != WaitResult::kReached) return mine;
      } else {
        if (ballot(kFullWarp, mine == WaitResult::kAborted) != 0) return WaitResult::kAborted;
        if (ballot(kFullWarp, mine == WaitResult::kTimedOut) != 0) return WaitResult::kTimedOut;
      }
    }
    return WaitResult::kReached;
  }
  // What all threads of the group make of their waits; `peer` is whom this one has waited for in vain.
  template <typename Group>
  [[nodiscard]] VERBENA_DEVICE SymmStatus conclude(const Group& group, WaitResult mine, int32_t peer) const {
    return detail::conclude(context_, group, mine, {SymmWait::kPacket, block_, static_cast<uint32_t>(peer)});
  }

 private:
  VERBENA_DEVICE static const char* as_bytes(const void* source) { return static_cast<const char*>(source); }
  VERBENA_DEVICE bool is_peer(int32_t peer) const {
    return detail::is_member(context_, peer) && peer != context_.team_rank;
  }

  // Of this rank; `source` writes it.
  VERBENA_DEVICE char* find_slot(int32_t source, uint32_t ahead) const {
    const uint32_t turn = static_cast<uint32_t>(epoch_ + ahead) % kSymmTurns;
    return slots_ + static_cast<uint64_t>(turn * static_cast<uint32_t>(context_.team_size) +
                                          static_cast<uint32_t>(source)) *
                        blocks_.slot_bytes;
  }

  // `body(index, is_active)`.
  template <typename Group, typename Body>
  VERBENA_DEVICE void for_packets(const Group& group, uint32_t length_bytes, const Body& body) const {
    const uint32_t count = Packet::count(length_bytes);
    const uint32_t end = find_end(count);
    for (uint32_t index = group.rank(); index < end; index += group.size()) body(index, index < count);
  }

  // Packets have the lower half of the epoch. Before it comes round, once in 2^32 calls, all ranks forget
  // their packets: one that lay since then, behind shorter messages, would be taken for new. 0 is no call's.
  template <typename Group>
  VERBENA_DEVICE SymmStatus close(const Group& group, Heard heard) {
    // What may follow goes as far as this.
    const uint64_t next = epoch_ + calls_ - 1 + kCallsAtOnce;
    const bool is_last = next >> 32 != epoch_ >> 32;
    // Who has heard from everybody has met in receive(). Before slots are cleared what others sent there is
    // ordered by a barrier: packets order nothing.
    const SymmStatus status =
        heard == Heard::kSome || is_last ? meet(context_, block_, group) : SymmStatus::kDone;
    if (status != SymmStatus::kDone || !is_last) return status;
    epoch_ = next >> 32 << 32;
    calls_ = 1;
    return forget_packets(context_, blocks_, block_, group);
  }
  template <typename Group>
  VERBENA_DEVICE_FAR static SymmStatus forget_packets(const Context& context, const SymmBlocks& blocks,
                                                      uint32_t block, const Group& group) {
    const uint64_t length_bytes =
        uint64_t{kSymmTurns} * static_cast<uint64_t>(context.team_size) * blocks.slot_bytes;
    auto* const mine = reinterpret_cast<Vector16*>(blocks.slots + block * length_bytes);
    for (uint64_t i = group.rank(); i < length_bytes / sizeof(Vector16); i += group.size())
      store<Order::kWeak, Scope::kThreads>(mine + i, Vector16{});
    return symm_lsa_barrier(context, block, group);
  }
  template <typename Group>
  VERBENA_DEVICE_FAR static SymmStatus meet(const Context& context, uint32_t block, const Group& group) {
    return symm_lsa_barrier(context, block, group);
  }

  const Context& context_;
  const SymmBlocks& blocks_;
  char* slots_;  // the block's own: nothing but the epoch has to be known to find one of them
  uint32_t block_;
  uint32_t calls_ = 1;           // under way
  uint32_t unfenced_calls_ = 0;  // ended since the last fence or the begin of the kernel
  uint64_t epoch_ = 0;           // of the first call under way
};

}  // namespace verbena::device

#endif
