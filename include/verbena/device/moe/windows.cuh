// Access to the windows of other ranks, in an exchange with MoeShape::in_windows. The output, the scales and
// the handle of a dispatch lie in windows, and so do the experts' rows of a combine. A dispatch stores each
// row at its final place, in the outputs of the ranks of its experts. A combine loads the rows that it adds
// from the experts' ranks. So rows need no slots in the workspace, and are not copied again.
//
// At the start of a call, each rank sends offers to all ranks: the places of its memory, and the number of
// blocks of its kernel. An offer also says that earlier kernels of the rank have ended, so that the output of
// a dispatch may be overwritten, or the rows of a combine are complete. After a block's last access to
// windows, the block sends a word with the number of the call to all ranks. A rank ends its call when it has
// received the words of all blocks of all ranks.
//
// The rules of layout.cuh hold for offers as for headers. They also hold for the words: a rank that sends a
// word of call k has ended call k-1, and so has received the offers of call k-1. A rank sends these offers
// after it has ended call k-2, and so after it has received all words of call k-2.
#ifndef VERBENA_DEVICE_MOE_WINDOWS_CUH
#define VERBENA_DEVICE_MOE_WINDOWS_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/moe/area.cuh"

namespace verbena::device {

// The contents of an entry that offers memory.
struct MoeOffer {
  uint64_t place;  // offset of the memory in the rank's heap in packets
  // In the first offer of a call, the number of blocks of the rank's kernel. In the other offers, the result
  // of find_moe_format().
  uint32_t value;

  static constexpr uint32_t kValueBits = 9, kHighBits = MoeEntry::kTokenBits - kValueBits;
  static_assert(kMoeMaxBlocks < 1U << kValueBits);

  // Returns whether an entry has enough bits for the place.
  VERBENA_DEVICE bool fits() const { return place >> (32 + kHighBits) == 0; }
  VERBENA_DEVICE MoeEntry pack() const {
    return {static_cast<uint32_t>(place), value << kHighBits | static_cast<uint32_t>(place >> 32)};
  }
  VERBENA_DEVICE static MoeOffer unpack(const MoeEntry& entry) {
    const uint64_t high = entry.tokens & ((1U << kHighBits) - 1);
    return {high << 32 | entry.bits, entry.tokens >> kHighBits};
  }
};

// Returns a hash of the format of a dispatch's output. A rank stores rows in the outputs of other ranks, so
// all ranks must pass the same format.
VERBENA_DEVICE uint32_t find_moe_format(const MoeDispatch& call) {
  uint32_t format = 0;
  for (const uint32_t value : {call.row_bytes, call.scale_bytes, call.output_scale_bytes, call.column_rows})
    format = (format ^ value) * 0x9e3779b1U;
  return format >> (32 - MoeOffer::kValueBits);
}

// The tokens that this rank sends to each rank.
struct MoeSentMasks : MoeMasks {};

// Memory of this rank that it offers.
struct MoeMemory {
  const void* address;
  uint64_t length_bytes;
};

// The memory that each rank has offered, at addresses of this rank.
struct MoeOffered {
  char* memory[kMoeMaxRanks][kMoeOffers];
  uint32_t blocks[kMoeMaxRanks];  // of the rank's kernel; 0 if the rank does not take part
};

class MoeWindows {
 public:
  VERBENA_DEVICE MoeWindows(const MoeShape& shape, MoeKind kind)
      : shape_(shape),
        kind_(kind),
        masks_(find_moe_shared<MoeSentMasks>()),
        offered_(find_moe_shared<MoeOffered>()) {}

  // Offers memory of this rank to all ranks. All threads of one block call it.
  // @param here    this rank's address of its offers
  // @param format  find_moe_format() of the call, if there are several offers
  // @return false if some of the memory is not in a window
  template <uint32_t kCount>
  VERBENA_DEVICE bool send_offers(const MoeArea& area, char* here, const MoeMemory (&memory)[kCount],
                                  uint32_t format) const {
    MoeOffer offers[kCount];
    bool are_possible = true;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) {
      offers[i] = {detail::find_offset(area.context_, memory[i].address) / Packet::kBytes,
                   i == 0 ? blocks_per_grid() : format};
      are_possible &=
          detail::is_in_heap(area.context_, memory[i].address, memory[i].length_bytes) && offers[i].fits();
    }
    const uint32_t rank = thread_index();
    if (!are_possible || rank >= shape_.ranks || !shape_.is_near(rank) || area.has_thread_trouble())
      return are_possible;
    fence<Order::kAcquireRelease, Scope::kSystem>();  // releases what earlier kernels have read and written
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) area.send_entry(here + i * kMoeEntryBytes, offers[i].pack(), rank);
    return true;
  }
  // Receives the offers of all ranks. All threads of a block must call it, and then sync. After that, the
  // block sees the rows that were written before the offers.
  // @param find  find(rank) returns this rank's address of a rank's first offer
  template <uint32_t kCount, typename Find>
  VERBENA_DEVICE SymmStatus receive_offers(MoeArea& area, uint32_t format, const Find& find) {
    // The last threads receive offers, while the first threads load masks.
    for (uint32_t i = threads_per_block() - 1 - thread_index(); i < shape_.ranks * kCount;
         i += threads_per_block()) {
      const uint32_t rank = i / kCount, number = i % kCount;
      MoeEntry entry{};
      if (shape_.is_near(rank) &&
          !area.receive_entry<Order::kAcquire>(find(rank) + number * kMoeEntryBytes, rank, entry))
        return SymmStatus::kTimedOut;
      const MoeOffer offer = MoeOffer::unpack(entry);
      auto* const there = reinterpret_cast<char*>(area.context_.heap_begin + offer.place * Packet::kBytes);
      offered_.memory[rank][number] = detail::shift(there, area.find_delta(rank));
      if (number == 0) offered_.blocks[rank] = offer.value;
      // FAULT(formats_may_differ)
      if (number != 0 && shape_.is_near(rank) && offer.value != format) return SymmStatus::kInvalid;
    }
    return SymmStatus::kDone;
  }
  // Loads a mask for each rank; masks of ranks that do not take part are empty. All threads of a block must
  // call it, and then sync, call count_words() and sync again.
  // @param first      the thread that loads the first word
  // @param load_word  load_word(rank, word, bits) loads a word of the mask for a rank, and returns false if a
  //                   wait has failed
  // @return false if a wait of the thread has failed
  template <typename LoadWord>
  VERBENA_DEVICE bool load_words(MoeMasks& masks, uint32_t first, const LoadWord& load_word) const {
    const uint32_t words = shape_.mask_words();
    for (uint32_t i = (thread_index() + threads_per_block() - first) % threads_per_block();
         i < shape_.ranks * words; i += threads_per_block()) {
      const uint32_t rank = i / words;
      masks.words[i] = 0;
      if (shape_.is_near(rank) && !load_word(rank, i - rank * words, masks.words[i])) return false;
    }
    return true;
  }
  // Counts the bits of the masks.
  // @param first  the warp that counts the bits of the first rank
  VERBENA_DEVICE void count_words(MoeMasks& masks, uint32_t first) const {
    const uint32_t warps = threads_per_block() / kWarpLanes, words = shape_.mask_words();
    for (uint32_t rank = (thread_index() / kWarpLanes + warps - first % warps) % warps; rank < shape_.ranks;
         rank += warps) {
      uint32_t before = 0;
      for (uint32_t word = lane(); word - lane() < words; word += kWarpLanes)
        before = masks.set_words(rank, words, word - lane(),
                                 word < words ? masks.words[rank * words + word] : 0, before);
      if (lane() == 0) masks.counts[rank] = before;
    }
  }

  // Returns whether a token is sent to the rank with the lane's number.
  VERBENA_DEVICE bool goes_to_lane(uint32_t token) const {
    return lane() < shape_.ranks && masks_.has(shape_.mask_words(), lane(), token);
  }
  // Returns the index of the row of one of this rank's tokens among the rows [ranks][max_tokens] of `rank`.
  VERBENA_DEVICE uint32_t find_row(const MoeArea& area, uint32_t rank, uint32_t token) const {
    return area.me() * shape_.max_tokens + masks_.find_number(shape_.mask_words(), rank, token);
  }
  VERBENA_DEVICE MoeMasks& masks() const { return masks_; }
  VERBENA_DEVICE char* find(uint32_t rank, uint32_t offer) const { return offered_.memory[rank][offer]; }

  // find_counter() returns a counter for the warps of this rank's kernel. The counter is 0 when the call
  // begins, because one block of the call before has called reset_next_counter(). The counters take the
  // place of the words that a rank would send to itself.
  VERBENA_DEVICE uint64_t* find_counter(const MoeArea& area) const { return find_word(area, area.me(), 0); }
  VERBENA_DEVICE void reset_next_counter(const MoeArea& area) const {
    auto* const next = area.base_ + shape_.find_end_word(area.epoch() + 1, kind_, area.me(), 0);
    // FAULT(items_are_taken_once)
    if (thread_index() == 0) store_relaxed<Scope::kGpu>(reinterpret_cast<uint64_t*>(next), 0);
  }

  // Ends the block's accesses to windows, and the call. The last block waits until all ranks have ended their
  // accesses to this rank's windows. All threads of the block must call it, after their last access.
  VERBENA_DEVICE SymmStatus finish(MoeArea& area) const {
    const BlockGroup group;
    const bool has_failed = group.any(area.has_thread_trouble());
    const uint32_t thread = thread_index();
    if (!has_failed && thread < shape_.ranks && shape_.is_near(thread) && thread != area.me()) {
      uint64_t* const word = find_word(area, area.me(), block_index());
      store_release<Scope::kSystem>(detail::shift(word, area.find_delta(thread)), area.epoch());
    }
    const bool awaits = !has_failed && block_index() == blocks_per_grid() - 1;
    for (uint32_t peer = 0; peer < shape_.ranks && awaits; ++peer) {
      const uint32_t blocks = peer == area.me() ? 0 : offered_.blocks[peer];  // FAULT(others_end_unheard)
      for (uint32_t block = thread; block < blocks; block += threads_per_block())
        if (!area.receive_word(find_word(area, peer, block), peer, false)) break;
    }
    const SymmStatus status = area.conclude();
    area.finish(status);
    return status;
  }

 private:
  VERBENA_DEVICE uint64_t* find_word(const MoeArea& area, uint32_t rank, uint32_t block) const {
    return reinterpret_cast<uint64_t*>(area.base_ + shape_.find_end_word(area.epoch(), kind_, rank, block));
  }

  const MoeShape& shape_;
  const MoeKind kind_;
  MoeMasks& masks_;
  MoeOffered& offered_;
};

// The items of a call that a warp moves. The first item of each warp is fixed. When a warp has finished an
// item, it takes the next item from a counter, because some multiprocessors move rows faster than others.
// With fixed items, a dispatch by 24 blocks takes 12 % longer (docs/moe.md).
class MoeItemQueue {
 public:
  VERBENA_DEVICE MoeItemQueue(const MoeItems& items, uint32_t tokens, uint64_t* counter)
      : step_(items.step),
        count_(items.count(tokens)),
        counter_(counter),
        item_(items.first),
        next_(take()) {}

  VERBENA_DEVICE bool is_end() const { return item_ >= count_; }
  VERBENA_DEVICE uint32_t item() const { return item_; }
  // All lanes must call it. The counter is updated one item ahead, so that the warp does not wait for it.
  VERBENA_DEVICE void advance() {
    item_ = shuffle(kFullWarp, next_, 0);
    next_ = take();
  }

 private:
  VERBENA_DEVICE uint32_t take() const {
    if (lane() != 0) return 0;
    return step_ + static_cast<uint32_t>(fetch_add<Order::kRelaxed, Scope::kGpu>(counter_, uint64_t{1}));
  }

  const uint32_t step_, count_;
  uint64_t* const counter_;
  uint32_t item_, next_;
};

// Returns the pointer of a lane to all lanes.
VERBENA_DEVICE char* share_moe_pointer(const char* of_lane, uint32_t from) {
  const auto bits = reinterpret_cast<uint64_t>(of_lane);
  const uint64_t high = shuffle(kFullWarp, static_cast<uint32_t>(bits >> 32), static_cast<int>(from));
  const uint64_t low = shuffle(kFullWarp, static_cast<uint32_t>(bits), static_cast<int>(from));
  return reinterpret_cast<char*>(high << 32 | low);
}

}  // namespace verbena::device

#endif
