// The slots and flags of bulk.cuh: how chunks are numbered, where they are stored, and how blocks wait for
// them.
//
// A slot has two halves, one for addends and one for sums. A slot ends with one flag for each half; the flag
// contains the number of the last chunk that was written to the half. Chunks are numbered consecutively
// across launches, and chunk s uses slot s % 4 (kSymmTurns). No message is needed to free a slot, because the
// flags of later chunks show that the slot is free. bulk_reduce.cuh explains this for reductions, and
// bulk.cuh explains it for exchanges.
#ifndef VERBENA_DEVICE_COLLECTIVES_BULK_SLOTS_CUH
#define VERBENA_DEVICE_COLLECTIVES_BULK_SLOTS_CUH

#include "verbena/device/collectives/exchange_plan.cuh"
#include "verbena/device/symm_verbena.cuh"

namespace verbena::device {

// The halves of a slot.
enum class BulkPhase : uint32_t { kAddends = 0, kSums = 1 };

// A subset of a team that includes this rank. The subset consists of `count` entries of `list`, with the
// indices 0, stride, 2 * stride, and so on. If `list` is null, the subset contains all members.
struct BulkMembers {
  const uint8_t* list = nullptr;
  uint32_t count = 0, stride = 1;
};

// @tparam kReachesFar  true if some members can be reached only through a NIC; then only exchanges are
//                      allowed
template <typename Context, bool kReachesFar>
class BulkSlots {
 public:
  // The other parameters are the same as in OneShot's constructor. Groups must consist of whole warps.
  // @param chunk_bytes  max length of a chunk, in bytes of the tensor, the same on all ranks; 0 means as many
  //                     bytes as fit in a slot
  VERBENA_DEVICE BulkSlots(const SymmWorkspace<Context>& workspace, uint32_t block, uint32_t blocks,
                           uint32_t chunk_bytes = 0, const GridStart& start = {},
                           const BulkMembers& members = {})
      : context_(workspace.context),
        blocks_(workspace.blocks),
        start_(start),
        block_(block),
        count_blocks_(blocks),
        chunk_bytes_(chunk_bytes),
        members_(members) {
    if (kReachesFar && members_.list != nullptr) {
      while (members_.list[own_ * members_.stride] != context_.team_rank) ++own_;
    }
    if (block >= blocks || blocks > blocks_.count || blocks_.slot_bytes <= kFlagBytes)
      status_ = SymmStatus::kInvalid;
    if (context_.has_remote != 0 && !kReachesFar) status_ = SymmStatus::kUnreachable;
  }

  // Ends this block's calls. Call it once in a kernel, after the last collective.
  // @return the first error of the calls, or kDone
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone && has_begun_ && group.elect())
      store_relaxed<Scope::kGpu>(blocks_.epochs + block_, number_ - 1);
    return status_;
  }

 protected:
  static constexpr uint32_t kFlagBytes = kSymmSlotUnit;  // bytes at the end of a slot, for flags and lengths
  static constexpr uint32_t kLengthWord = 2;             // index of the length among the words of these bytes
  static constexpr uint64_t kMaxHalfBytes = uint64_t{1} << 30;

  template <typename Group>
  VERBENA_DEVICE bool begin(const Group& group) {
    if (status_ == SymmStatus::kDone && group.size() % kWarpLanes != 0) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone || has_begun_) return status_ == SymmStatus::kDone;
    start_();
    number_ = load_relaxed<Scope::kGpu>(blocks_.epochs + block_) + 1;
    has_begun_ = true;
    status_ = detail::begin_in_step(context_, group);
    return status_ == SymmStatus::kDone;
  }
  // Waits until all threads of the group have read the slots of this call. Afterwards, each thread may read
  // everything that any thread of the group has stored.
  template <typename Group>
  VERBENA_DEVICE SymmStatus end(uint64_t chunks, const Group& group) {
    number_ += chunks;
    group.sync();
    return SymmStatus::kDone;
  }

  VERBENA_DEVICE uint64_t half_bytes() const {
    const uint64_t half = (blocks_.slot_bytes - kFlagBytes) / 2 / kSymmSlotUnit * kSymmSlotUnit;
    return half < kMaxHalfBytes ? half : kMaxHalfBytes;
  }
  VERBENA_DEVICE uint64_t offset_of(BulkPhase phase) const {
    return phase == BulkPhase::kSums ? half_bytes() : 0;
  }
  // Returns the slot in the memory of this rank that `source` writes.
  VERBENA_DEVICE char* find_slot(uint64_t number, int32_t source) const {
    const auto size = static_cast<uint64_t>(context_.team_size);
    const uint64_t copy = block_ * uint64_t{kSymmTurns} + number % kSymmTurns;
    return blocks_.slots + (copy * size + static_cast<uint64_t>(source)) * blocks_.slot_bytes;
  }
  VERBENA_DEVICE uint64_t* find_flag(uint64_t number, int32_t source, BulkPhase phase) const {
    return reinterpret_cast<uint64_t*>(find_slot(number, source) + blocks_.slot_bytes - kFlagBytes) +
           static_cast<uint32_t>(phase);
  }
  VERBENA_DEVICE int32_t count_members() const {
    if (kReachesFar && members_.list != nullptr) return static_cast<int32_t>(members_.count);
    return context_.team_size;
  }
  // Returns the member whose index is this rank's index plus `turn`, modulo the number of members.
  VERBENA_DEVICE int32_t find_member(int32_t turn) const {
    if (kReachesFar && members_.list != nullptr)
      return members_.list[(own_ + static_cast<uint32_t>(turn)) % members_.count * members_.stride];
    const int32_t member = context_.team_rank + turn;
    return member < context_.team_size ? member : member - context_.team_size;
  }

  // The last warp signals and the first warp waits, so that the fence in the last warp does not delay the
  // wait of the first warp.
  template <typename Group>
  VERBENA_DEVICE void signal(uint64_t number, BulkPhase phase, const Group& group) const {
    const auto peers = static_cast<uint32_t>(count_members()) - 1;
    if (peers == 0) return;
    group.sync();
    for (uint32_t i = group.size() - 1 - group.rank(); i < peers; i += group.size()) {
      uint64_t* const flag = find_flag(number, context_.team_rank, phase);
      const int64_t delta = detail::get_delta(context_, find_member(static_cast<int32_t>(i) + 1));
      if (kReachesFar && delta == kSymmOutOfReach) continue;
      store_release<Scope::kSystem>(detail::shift(flag, delta), number);
    }
  }
  template <typename Group>
  VERBENA_DEVICE bool wait(uint64_t number, BulkPhase phase, const Group& group) {
    const auto peers = static_cast<uint32_t>(count_members()) - 1;
    if (peers == 0) return true;
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    for (uint32_t i = group.rank(); i < peers && mine == WaitResult::kReached; i += group.size()) {
      late = find_member(static_cast<int32_t>(i) + 1);
      const uint64_t* const flag = find_flag(number, late, phase);
      for (uint32_t spins = 1; load_acquire<Scope::kSystem>(flag) < number; ++spins) {
        if (spins % kDefaultSpinsPerCheck != 0) continue;
        mine = patience.check();
        if (mine != WaitResult::kReached) break;
      }
    }
    status_ =
        detail::conclude(context_, group, mine, {SymmWait::kPacket, block_, static_cast<uint32_t>(late)});
    return status_ == SymmStatus::kDone;
  }

  const Context& context_;
  const SymmBlocks& blocks_;
  GridStart start_;
  uint32_t block_, count_blocks_, chunk_bytes_;
  BulkMembers members_;
  uint32_t own_ = 0;     // this rank's index among the members
  uint64_t number_ = 0;  // number of the next chunk
  bool has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
