// Placing a received message: the descriptors of one slot of the unpack queue (verbena/unpack_abi.h) name
// pieces of bounce pages, a group of warps copies them to where they belong.
//
// The work is split by bytes. The group loads a batch of descriptors into shared memory, cuts each into
// pieces of a few rows, numbers the pieces of the whole batch by a prefix sum, and warp w of W takes pieces
// w, w + W, ... So warps are equally busy whether the message is one page of 64 KiB or a thousand of 16
// bytes.
//
// Everything here is called by all threads of a group (group.cuh: a warp, warps, a block) together.
// Descriptors come from the host over PCIe: they are read once, as a coalesced load, at the same time as
// their count.
#ifndef VERBENA_DEVICE_UNPACK_CUH
#define VERBENA_DEVICE_UNPACK_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/wait.cuh"
#include "verbena/unpack_abi.h"

namespace verbena::device {

// What a warp staged, cut in rows and cut in whole pieces.
struct StagedCounts {
  uint32_t rows, pieces;
};

// Shared memory of one group. kBatch descriptors are staged at a time; 256 suit a block of its own (5.4 KiB),
// 32 a warp. A multiple of 32.
template <int kBatch = 256>
struct alignas(16) UnpackScratch {
  static_assert(kBatch >= kWarpLanes && kBatch % kWarpLanes == 0, "verbena: whole warps stage descriptors");
  LoadMeta descriptors[kBatch];
  // The number of the first piece of each descriptor; all ones behind the last, where a search ends.
  uint32_t first_piece[kBatch + kWarpLanes];
  StagedCounts staged[kBatch / kWarpLanes];
  uint64_t count;  // wait_message passes it on
};

namespace detail {

// Of the queue, which the host wrote and the group has acquired.
template <typename T>
VERBENA_DEVICE T load_queue(const T* address) {
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(address);
}

// Descriptors staged at a time: one a thread.
template <int kBatch, typename Group>
VERBENA_DEVICE uint32_t get_capacity(const Group& group) {
  return group.size() < kBatch ? group.size() : kBatch;
}

// Pieces of a batch as the group agreed on them.
struct Batch {
  uint32_t pieces;
  uint32_t piece_shift;  // a piece is 2^piece_shift bytes of the destination's vectors, and a head where
                         // there is one
};

// Inclusive over the lanes of a warp.
VERBENA_DEVICE uint32_t add_up_lanes(uint32_t value, uint32_t lane) {
  VERBENA_UNROLL
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const int from = static_cast<int>(lane) - distance;
    const uint32_t below = shuffle(kFullWarp, value, from < 0 ? 0 : from);
    if (from >= 0) value += below;
  }
  return value;
}

// Puts `count` descriptors, thread i holding the i-th, into the scratch and numbers their pieces. A message
// that would leave warps without work is cut into single rows.
template <int kPieceShift, int kBatch, typename Group>
VERBENA_DEVICE Batch stage_batch(const Group& group, UnpackScratch<kBatch>& scratch, LoadMeta mine,
                                 uint32_t count, const char* data) {
  const uint32_t thread = group.rank(), lane = thread % kWarpLanes;
  const uint32_t warp = thread / kWarpLanes, warps = group.size() / kWarpLanes;
  const bool holds = thread < count;
  const char* const destination = data + mine.dst_off;
  const uint32_t rows = holds ? count_pieces(destination, mine.len, kRowShift) : 0;
  const uint32_t pieces = holds ? count_pieces(destination, mine.len, kPieceShift) : 0;
  const uint32_t rows_so_far = add_up_lanes(rows, lane);
  const uint32_t pieces_so_far = add_up_lanes(pieces, lane);
  if (holds) scratch.descriptors[thread] = mine;
  if (lane == kWarpLanes - 1 && warp < kBatch / kWarpLanes)
    scratch.staged[warp] = {rows_so_far, pieces_so_far};
  group.sync();
  uint32_t rows_before = 0, rows_in_all = 0, pieces_before = 0, pieces_in_all = 0;
  VERBENA_UNROLL
  for (uint32_t w = 0; w < kBatch / kWarpLanes; ++w) {
    const auto staged = w < warps ? scratch.staged[w] : StagedCounts{0, 0};
    if (w < warp) rows_before += staged.rows, pieces_before += staged.pieces;
    rows_in_all += staged.rows, pieces_in_all += staged.pieces;
  }
  const bool small = pieces_in_all < 2 * warps;
  const uint32_t first = small ? rows_before + rows_so_far - rows : pieces_before + pieces_so_far - pieces;
  const uint32_t capacity = get_capacity<kBatch>(group);
  if (thread < capacity) scratch.first_piece[thread] = holds ? first : ~0u;
  if (thread < kWarpLanes) scratch.first_piece[capacity + thread] = ~0u;
  group.sync();
  return small ? Batch{rows_in_all, kRowShift} : Batch{pieces_in_all, kPieceShift};
}

// A warp's walk over its pieces of a batch: piece numbers grow, so the descriptor is searched from the last
// one on.
template <int kBatch>
class PieceWalk {
 public:
  template <typename Group>
  VERBENA_DEVICE PieceWalk(const Group& group, const UnpackScratch<kBatch>& scratch, Batch batch)
      : scratch_(scratch),
        batch_(batch),
        next_(group.rank() / kWarpLanes),
        step_(group.size() / kWarpLanes) {}

  VERBENA_DEVICE bool has_next() const { return next_ < batch_.pieces; }

  // All lanes call it. There is a next piece.
  VERBENA_DEVICE CopyPiece take(const char* bounce, char* data) {
    const uint32_t lane = device::lane();
    for (;;) {
      // The lanes look at the next 32 descriptors: those that begin at or before the piece are a run of
      // lanes.
      const uint32_t begun = ballot(kFullWarp, scratch_.first_piece[descriptor_ + 1 + lane] <= next_);
      descriptor_ += static_cast<uint32_t>(__builtin_popcount(begun));
      if (begun != kFullWarp) break;
    }
    const LoadMeta piece = scratch_.descriptors[descriptor_];
    const uint32_t index = next_ - scratch_.first_piece[descriptor_];
    next_ += step_;
    return cut_piece(data + piece.dst_off, bounce + piece.src_off, piece.len, index, batch_.piece_shift);
  }

 private:
  const UnpackScratch<kBatch>& scratch_;
  const Batch batch_;
  uint32_t next_, step_;
  uint32_t descriptor_ = 0;
};

}  // namespace detail

// A way of copying has copy(), which takes its share of a batch and may leave copies under way that need the
// scratch no more, and drain(), which ends them.
//
// Through registers: any architecture, no memory but the scratch.
struct CopyThroughRegisters {
  static constexpr int kRows = 4;
  static constexpr int kPieceShift = 11;
  static_assert(1 << kPieceShift == WarpPiece<kRows>::kMaxBodyBytes, "verbena: a piece fills the registers");

  template <typename Group, int kBatch>
  VERBENA_DEVICE void copy(const Group& group, const UnpackScratch<kBatch>& scratch, detail::Batch batch,
                           const char* bounce, char* data) {
    detail::PieceWalk<kBatch> walk(group, scratch, batch);
    if (!walk.has_next()) return;
    WarpPiece<kRows> even, odd;  // one's loads are under way while the other is stored
    even.load(walk.take(bounce, data));
    for (;;) {
      const bool has_odd = walk.has_next();
      if (has_odd) odd.load(walk.take(bounce, data));
      even.store();
      if (!has_odd) return;
      const bool has_even = walk.has_next();
      if (has_even) even.load(walk.take(bounce, data));
      odd.store();
      if (!has_even) return;
    }
  }

  VERBENA_DEVICE void drain() {}
};

enum class UnpackResult : uint8_t {
  kDone,
  kBadCount,  // the slot says more descriptors than it can hold: nothing was written
};

namespace detail {

// Thread i of the group holds the i-th descriptor.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE void unpack_list(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                const LoadMeta* list, uint32_t count, LoadMeta mine, const char* bounce,
                                char* data) {
  const uint32_t capacity = get_capacity<kBatch>(group);
  for (uint32_t base = 0; base < count; base += capacity) {
    const uint32_t left = count - base;
    const Batch batch =
        stage_batch<Copy::kPieceShift>(group, scratch, mine, left < capacity ? left : capacity, data);
    const uint32_t next = base + capacity + group.rank();
    if (group.rank() < capacity && next < count) mine = load_queue(list + next);  // arrives during the copy
    copy.copy(group, scratch, batch, bounce, data);
    if (base + capacity < count) group.sync();  // the scratch has been read
  }
  copy.drain();
  group.sync();
}

}  // namespace detail

// Places the message of `slot` (0 to 15), which has `count` descriptors, at `data`. The caller's threads have
// acquired the message: one of them by a load at system scope (wait_message, or NCCL's step), the others by a
// barrier behind it. On return every byte is there for every thread of the group. The plugin uses the slot
// and the pages again only when it is told (irecvConsumed). A count of 0 writes nothing.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                           const NetUnpackMeta* meta, uint32_t slot, uint64_t count,
                                           const void* bounce, void* data) {
  if (count > kUnpackMaxDescriptors) return UnpackResult::kBadCount;
  const LoadMeta* const list = meta->mem[slot];
  LoadMeta mine{};
  if (group.rank() < detail::get_capacity<kBatch>(group) && group.rank() < count)
    mine = detail::load_queue(list + group.rank());
  detail::unpack_list(group, scratch, copy, list, static_cast<uint32_t>(count), mine,
                      static_cast<const char*>(bounce), static_cast<char*>(data));
  return UnpackResult::kDone;
}

// The same for a caller that knows that the message is complete but not its count, as NCCL does.
template <typename Group, int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const Group& group, UnpackScratch<kBatch>& scratch, Copy& copy,
                                           const NetUnpackMeta* meta, uint32_t slot, const void* bounce,
                                           void* data) {
  // Count and descriptors cross PCIe at the same time; what lies behind the count is not used.
  const LoadMeta* const list = meta->mem[slot];
  LoadMeta mine{};
  if (group.rank() < detail::get_capacity<kBatch>(group)) mine = detail::load_queue(list + group.rank());
  const uint64_t count = detail::load_queue(meta->cnt + slot);
  if (count > kUnpackMaxDescriptors) return UnpackResult::kBadCount;
  detail::unpack_list(group, scratch, copy, list, static_cast<uint32_t>(count), mine,
                      static_cast<const char*>(bounce), static_cast<char*>(data));
  return UnpackResult::kDone;
}

struct MessageWait {
  WaitResult result;
  uint64_t count;  // the message's descriptors, if the result is kReached
};

// The group waits for the slot's message. Between two of these the group unpacks, or syncs.
template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
          typename Group, int kBatch>
[[nodiscard]] VERBENA_DEVICE MessageWait wait_message(const Group& group, UnpackScratch<kBatch>& scratch,
                                                      const NetUnpackMeta* meta, uint32_t slot,
                                                      const WaitLimits& limits) {
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) {
    mine = wait_until<Relation::kNotEqual, Scope::kSystem, BackOff, kSpinsPerCheck>(meta->cnt + slot, 0,
                                                                                    limits, &scratch.count);
  }
  const WaitResult result = agree(group, mine);
  return {result, scratch.count};
}

}  // namespace verbena::device

#endif
