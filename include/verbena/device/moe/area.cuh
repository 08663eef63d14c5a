// The kernels' view of the workspace of a mixture-of-experts exchange. MoeArea counts calls, sends packets
// and waits for packets. dispatch.cuh and combine.cuh use this file.
#ifndef VERBENA_DEVICE_MOE_AREA_CUH
#define VERBENA_DEVICE_MOE_AREA_CUH

#include "verbena/device/low_latency.cuh"
#include "verbena/device/moe/routing.cuh"
#include "verbena/device/symm_verbena.cuh"

namespace verbena::device {

// Consecutive packets in a rank's workspace: the addresses of the first packet and of its note (packet.cuh).
struct MoePlace {
  char *data, *notes;

  VERBENA_DEVICE MoePlace find(uint32_t packet) const {
    return {data + uint64_t{packet} * Packet::kBytes, notes + uint64_t{packet} * Packet::kNoteBytes};
  }
};

// An entry of a dispatch's header. An entry describes 32 tokens of the source rank, and is written and read
// by one access of 8 bytes. An entry contains a tag: the number of the call modulo 2^16, followed by a bit
// that is 1. So the tag differs from the zeros in an empty workspace. The call after the next call overwrites
// the entry.
struct MoeEntry {
  uint32_t bits;    // bit t is set if token t is sent to the receiver
  uint32_t tokens;  // number of the source rank's tokens, at most kMoeMaxTokens

  static constexpr uint32_t kTagBits = 17, kTokenBits = 32 - kTagBits;
  static_assert(kMoeMaxTokens < 1U << kTokenBits, "verbena: `tokens` has the bits that the tag leaves");

  VERBENA_DEVICE static uint32_t make_tag(uint64_t epoch) {
    return (static_cast<uint32_t>(epoch) << 1 | 1) & ((1U << kTagBits) - 1);
  }
  VERBENA_DEVICE uint64_t pack(uint64_t epoch) const {
    return uint64_t{tokens << kTagBits | make_tag(epoch)} << 32 | bits;
  }
  VERBENA_DEVICE static bool is_of_call(uint64_t packed, uint64_t epoch) {
    return (static_cast<uint32_t>(packed >> 32) & ((1U << kTagBits) - 1)) == make_tag(epoch);
  }
  VERBENA_DEVICE static MoeEntry unpack(uint64_t packed) {
    return {static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> (32 + kTagBits))};
  }
};

class MoeArea {
 public:
  using Data = Packet::Data;

  // All threads of the grid must construct a MoeArea, after they have waited for earlier kernels, because the
  // constructor loads the number of the last call.
  VERBENA_DEVICE MoeArea(const SymmWorkspace<>& workspace, const MoeShape& shape, MoeKind kind)
      : context_(workspace.context),
        shape_(shape),
        base_(workspace.blocks.slots),
        notes_(base_ + shape.packets() * Packet::kBytes),
        epochs_(workspace.blocks.epochs + static_cast<uint32_t>(kind) * shape.max_blocks) {
    epoch_ = load_relaxed<Scope::kGpu>(epochs_ + block_index()) + 1;
    trouble_ = detail::has_failed(context_) ? static_cast<uint32_t>(WaitResult::kTimedOut) : 0;
  }

  VERBENA_DEVICE uint64_t epoch() const { return epoch_; }
  VERBENA_DEVICE uint32_t me() const { return static_cast<uint32_t>(context_.team_rank); }

  VERBENA_DEVICE MoePlace find(uint64_t packet) const {
    return {base_ + packet * Packet::kBytes, notes_ + packet * Packet::kNoteBytes};
  }
  // Returns true if an earlier call or a wait of this thread has failed.
  VERBENA_DEVICE bool has_thread_trouble() const { return trouble_ != 0; }
  // Returns true if an earlier call or a wait of this warp has failed. All lanes must call it.
  VERBENA_DEVICE bool has_trouble() const { return ballot(kFullWarp, trouble_ != 0) != 0; }

  // Returns the difference in bytes between addresses on `rank` and the corresponding addresses on this rank.
  VERBENA_DEVICE int64_t find_delta(uint32_t rank) const {
    return detail::get_delta(context_, static_cast<int32_t>(rank));
  }
  // Sends packet `index` of a slot to a rank. `delta` is find_delta() of the rank. `mine` is the address that
  // the slot has on this rank.
  VERBENA_DEVICE void send(const MoePlace& mine, uint32_t index, const Data& data, int64_t delta) const {
    const Data stored = Packet::mask(data);
    char* const there = detail::shift(mine.data + uint64_t{index} * Packet::kBytes, delta);
    if (__builtin_expect(Packet::is_plain(stored), 1)) {
      Packet::send_plain(there, stored);
    } else {
      send_noted(there, detail::shift(mine.notes + uint64_t{index} * Packet::kNoteBytes, delta), stored,
                 epoch_);
    }
  }
  // For each set bit r of `which`, receives packets of row r, which members[r] sends. Each lane receives the
  // packets with the numbers first + i * kWarpLanes that are below `end`, and empties the slots of these
  // packets. The call does not change the data of any other row.
  // @return false if a packet has not arrived, or if an earlier wait has failed
  template <uint32_t kRows, uint32_t kCount>
  VERBENA_DEVICE bool receive(const MoePlace (&rows)[kRows], const uint32_t (&members)[kRows], uint32_t which,
                              uint32_t first, uint32_t end, Data (&data)[kRows][kCount]) {
    if (trouble_ != 0) return false;
    const auto is_awaited = [&](uint32_t row, uint32_t i) {
      return (which >> row & 1) != 0 && first + i * kWarpLanes < end;
    };
    const auto find_packet = [&](uint32_t row, uint32_t i) {
      return rows[row].data + uint64_t{first + i * kWarpLanes} * Packet::kBytes;
    };
    for (uint32_t spins = 1;; ++spins) {
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kCount; ++i)
          if (is_awaited(row, i)) data[row][i] = Packet::poll(find_packet(row, i));
      }
      bool are_plain = true;
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kCount; ++i)
          are_plain = static_cast<int>(are_plain) & (static_cast<int>(!is_awaited(row, i)) |
                                                     static_cast<int>(Packet::is_plain(data[row][i])));
      }
      if (are_plain) break;
      bool are_filled = true;
      uint32_t missing = 0;  // the member whose packet has not arrived
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kCount; ++i) {
          if (!is_awaited(row, i) || (data[row][i].x != 0 && data[row][i].z != 0)) continue;
          are_filled = false;
          missing = members[row];
        }
      }
      // Packets that need a note (packet.cuh) are rare.
      if (__builtin_expect(are_filled, 0)) {
        VERBENA_UNROLL
        for (uint32_t row = 0; row < kRows; ++row) {
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kCount; ++i) {
            if (!is_awaited(row, i) || Packet::is_plain(data[row][i])) continue;
            const char* const note = rows[row].notes + uint64_t{first + i * kWarpLanes} * Packet::kNoteBytes;
            const Noted noted = read_note(data[row][i], note, epoch_);
            data[row][i] = noted.data;
            if (noted.has_come) continue;
            are_filled = false;
            missing = members[row];
          }
        }
        if (are_filled) break;
      }
      if (spins % kDefaultSpinsPerCheck == 0 && !may_wait(missing)) return false;
    }
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i)
        if (is_awaited(row, i)) data[row][i] = Packet::take(data[row][i], find_packet(row, i));
    }
    return true;
  }
  // Receives one packet.
  VERBENA_DEVICE bool receive_one(const MoePlace& place, uint32_t member, Data& data) {
    Data all[1][1];
    if (!receive({place}, {member}, 1, 0, 1, all)) return false;
    data = all[0][0];
    return true;
  }

  // Sends an entry of a header to a rank, which may be this rank itself. `mine` is the address that the entry
  // has on this rank.
  VERBENA_DEVICE void send_entry(char* mine, const MoeEntry& entry, uint32_t rank) const {
    detail::send_bits(detail::shift(mine, find_delta(rank)), entry.pack(epoch_));
  }
  // Receives an entry from a rank. The call does not clear the entry, so any number of threads may receive
  // the same entry.
  // @tparam order  Order::kAcquire if the sender releases data with the entry
  template <Order order = Order::kRelaxed>
  VERBENA_DEVICE bool receive_entry(const char* here, uint32_t rank, MoeEntry& entry) {
    return receive_entry<order>(here, rank, entry, poll_entry<order>(here));
  }
  // The overload with `bits` receives an entry that poll_entry() has already loaded.
  template <Order order = Order::kRelaxed>
  VERBENA_DEVICE static uint64_t poll_entry(const char* here) {
    return load<order, Scope::kSystem, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const uint64_t*>(here));
  }
  template <Order order = Order::kRelaxed>
  VERBENA_DEVICE bool receive_entry(const char* here, uint32_t rank, MoeEntry& entry, uint64_t bits) {
    if (trouble_ != 0) return false;
    for (uint32_t spins = 1;; ++spins, bits = poll_entry<order>(here)) {
      if (MoeEntry::is_of_call(bits, epoch_)) {
        entry = MoeEntry::unpack(bits);
        return true;
      }
      if (spins % kDefaultSpinsPerCheck == 0 && !may_wait(rank)) return false;
    }
  }

  // Waits until a word contains the number of the call. The writer, a NIC or a rank, writes the word after
  // the data.
  // @param waits_longer  true if the writer may itself be waiting for a late rank. This call then uses a
  //                      longer time limit, so that the writer reports the late rank before this call gives
  //                      up
  VERBENA_DEVICE bool receive_word(const uint64_t* word, uint32_t member, bool waits_longer) {
    if (trouble_ != 0) return false;
    for (uint32_t spins = 1;; ++spins) {
      if (load_acquire<Scope::kSystem>(word) == epoch_) return true;  // FAULT(old_word_counts)
      if (spins % kDefaultSpinsPerCheck != 0) continue;
      if (!(waits_longer ? may_wait_longer(member) : may_wait(member))) return false;
    }
  }
  // Sends data to a rank that only a NIC reaches, followed by a word with the call's number. One thread makes
  // the call. The data that the NIC sends includes all stores that this thread has observed. All addresses
  // are addresses of this rank. The data and the word arrive at the same offsets in the receiver's heap.
  VERBENA_DEVICE void put(const char* here, char* there, uint64_t length_bytes, uint64_t* word,
                          uint32_t rank) {
    if (trouble_ != 0) return;
    const auto chunk = detail::request_copy(context_, PutOperation::kPut, here, there, length_bytes);
    const detail::PutRequest number{PutOperation::kWriteWord, epoch_, 0, detail::find_offset(context_, word)};
    const detail::PutRequest requests[] = {chunk, number};  // FAULT(word_leaves_before_its_chunk)
    const auto peer = static_cast<int32_t>(rank);
    const WaitResult sent = detail::enqueue(context_, SymmQueue{}, peer, requests, 2, true, nullptr);
    if (sent != WaitResult::kReached) trouble_ = static_cast<uint32_t>(sent) | rank << 8;
  }
  // Makes the error name `member` instead of the member for which this thread has waited.
  VERBENA_DEVICE void blame(uint32_t member) {
    if (trouble_ != 0) trouble_ = (trouble_ & 0xff) | member << 8;
  }

  // Combines the results of all waits of the block's threads. The block calls this function after its last
  // store. If a thread of the block has waited for a long time, another block may have given up in the
  // meantime. In this case, the function also checks the team's failure word.
  [[nodiscard]] VERBENA_DEVICE SymmStatus conclude() const {
    const BlockGroup block;
    if (__builtin_expect(block.any((trouble_ != 0) | (deadline_ns_ != 0)), 0))
      return conclude_late(context_, trouble_);
    return SymmStatus::kDone;
  }
  // Makes a call with invalid arguments fail on all ranks. Otherwise the other ranks would wait for this
  // rank.
  [[nodiscard]] VERBENA_DEVICE SymmStatus refuse() const {
    if (thread_index() == 0) detail::fail_team(context_, {SymmWait::kCall, block_index(), me()});
    return SymmStatus::kInvalid;
  }
  // Ends a call whose result is `status`. Updates the call counters of all max_blocks blocks, even if the
  // grid has fewer blocks.
  VERBENA_DEVICE void finish(SymmStatus status) const {
    if (status != SymmStatus::kDone) return;
    for (uint32_t block = block_index() + thread_index() * blocks_per_grid(); block < shape_.max_blocks;
         block += blocks_per_grid() * threads_per_block())
      store_relaxed<Scope::kGpu>(epochs_ + block, epoch_);
  }

 private:
  // The result of look(), which decides whether a wait for `member` may continue. look() returns it by value
  // and takes no pointers to variables: if the address of a variable were passed to a function that is not
  // inlined, the compiler would keep the variable in memory instead of registers.
  struct Look {
    uint64_t deadline_ns;
    uint32_t trouble;
  };
  VERBENA_DEVICE_FAR static void send_noted(char* there, char* note, const Data stored, uint64_t epoch) {
    Packet::send_noted(there, note, stored, epoch);
  }
  struct Noted {
    Data data;
    bool has_come;
  };
  VERBENA_DEVICE_FAR static Noted read_note(const Data stored, const char* note, uint64_t epoch) {
    Noted noted{stored, false};
    noted.has_come = Packet::has_come(noted.data, note, epoch);
    return noted;
  }
  VERBENA_DEVICE bool may_wait(uint32_t member) {
    return note_look(look<false>(context_, deadline_ns_, member));
  }
  VERBENA_DEVICE bool may_wait_longer(uint32_t member) {
    return note_look(look<true>(context_, deadline_ns_, member));
  }
  VERBENA_DEVICE bool note_look(const Look& seen) {
    deadline_ns_ = seen.deadline_ns;
    trouble_ = seen.trouble;
    return trouble_ == 0;
  }
  // @tparam kLonger  true to make the time limit a quarter longer
  template <bool kLonger>
  VERBENA_DEVICE_FAR static Look look(const SymmContext& context, uint64_t deadline_ns, uint32_t member) {
    WaitLimits limits = detail::limit_wait(context);
    if (deadline_ns == 0) deadline_ns = limits.deadline_ns;
    const uint64_t last_ns = deadline_ns + (kLonger ? context.timeout_ns / 4 : 0);
    limits.deadline_ns = last_ns < deadline_ns ? ~uint64_t{0} : last_ns;
    const auto result = static_cast<uint32_t>(limits.check());
    return {deadline_ns, result == 0 ? 0 : result | member << 8};
  }
  // A block that gives up stores the failure word and then fills the outputs with the failure pattern. A
  // block that has succeeded stores its outputs and then loads the failure word. Because of the fences,
  // either the block that has succeeded sees the failure, or the failure pattern overwrites the outputs of
  // this block.
  VERBENA_DEVICE_FAR static SymmStatus conclude_late(const SymmContext& context, uint32_t trouble) {
    const BlockGroup block;
    if (!block.any(trouble != 0)) {
      fence<Order::kSequential, Scope::kSystem>();
      if (!block.any(detail::has_failed(context))) return SymmStatus::kDone;
      return SymmStatus::kTimedOut;
    }
    const SymmStatus status = detail::conclude(context, block, static_cast<WaitResult>(trouble & 0xff),
                                               {SymmWait::kPacket, block_index(), trouble >> 8});
    fence<Order::kSequential, Scope::kSystem>();
    return status;
  }

  friend class MoeWindows;

  const SymmContext& context_;
  const MoeShape& shape_;
  char *base_, *notes_;
  uint64_t* epochs_;
  uint64_t epoch_;
  uint64_t deadline_ns_ = 0;  // deadline of all waits of the thread; 0 if not set yet
  uint32_t trouble_;          // encoded like LowLatency::Trouble
};

// load_moe() and store_moe() load and store 4, 8 or 16 bytes of the caller's tensors, without memory
// ordering.
template <typename T>
VERBENA_DEVICE T load_moe(const void* base, uint64_t index) {
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(static_cast<const T*>(base) +
                                                                              index);
}
template <typename T>
VERBENA_DEVICE void store_moe(void* base, uint64_t index, T value) {
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(static_cast<T*>(base) + index, value);
}

}  // namespace verbena::device

#endif
