// Placing a received message: the descriptors of one slot of the unpack queue (verbena/unpack_abi.h) name
// pieces of bounce pages, a group of warps copies them to where they belong.
//
// The work is split by bytes. The group loads a batch of descriptors into shared memory, cuts each into
// pieces of a few rows, numbers the pieces of the whole batch by a prefix sum, and warp w of W takes pieces
// w, w + W, ... So warps are equally busy whether the message is one page of 64 KiB or a thousand of 16
// bytes.
//
// Everything here is called by all threads of the group together. Descriptors come from the host over PCIe:
// they are read once, as a coalesced load, at the same time as their count.
#ifndef VERBENA_DEVICE_UNPACK_CUH
#define VERBENA_DEVICE_UNPACK_CUH

#include "verbena/device/copy.cuh"
#include "verbena/unpack_abi.h"

namespace verbena::device {

// The warps that place one message: `threads` is a multiple of 32; `barrier` (0 to 15) is theirs alone
// meanwhile.
struct UnpackGroup {
  uint32_t thread;
  uint32_t threads;
  int barrier;

  // The whole block; its barrier is sync_block's.
  VERBENA_DEVICE static UnpackGroup block() { return {thread_index(), threads_per_block(), 0}; }

  VERBENA_DEVICE uint32_t warp() const { return thread / kWarpLanes; }
  VERBENA_DEVICE uint32_t warps() const { return threads / kWarpLanes; }
  VERBENA_DEVICE void sync() const {
    if (threads == kWarpLanes) {
      sync_warp();
    } else {
      sync_named(barrier, static_cast<int>(threads));
    }
  }
};

// Shared memory of one group. kBatch descriptors are staged at a time; 256 suit a block of its own (5.4 KiB),
// 32 a warp. A multiple of 32.
template <int kBatch = 256>
struct alignas(16) UnpackScratch {
  static_assert(kBatch >= kWarpLanes && kBatch % kWarpLanes == 0, "verbena: whole warps stage descriptors");
  LoadMeta descriptors[kBatch];
  // The number of the first piece of each descriptor; all ones behind the last, where a search ends.
  uint32_t first_piece[kBatch + kWarpLanes];
  uint32_t warp_rows[kBatch / kWarpLanes];  // what each warp staged: in rows, and in whole pieces
  uint32_t warp_pieces[kBatch / kWarpLanes];
};

namespace detail {

// Pieces of a batch as the group agreed on them.
struct Batch {
  uint32_t pieces;
  uint32_t piece_bytes;  // of the destination's whole vectors; a descriptor's first piece also has its head
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
template <int kBatch>
VERBENA_DEVICE Batch stage_batch(const UnpackGroup& group, UnpackScratch<kBatch>& scratch, LoadMeta mine,
                                 uint32_t count, const char* data, uint32_t largest_piece_bytes) {
  const uint32_t thread = group.thread, lane = thread % kWarpLanes, warp = group.warp();
  const uint32_t capacity = group.threads < kBatch ? group.threads : kBatch;
  const bool holds = thread < count;
  const char* const destination = data + mine.dst_off;
  const auto rows = holds ? static_cast<uint32_t>(count_pieces(destination, mine.len, kRowBytes)) : 0;
  const auto pieces =
      holds ? static_cast<uint32_t>(count_pieces(destination, mine.len, largest_piece_bytes)) : 0;
  const uint32_t rows_so_far = add_up_lanes(rows, lane);
  const uint32_t pieces_so_far = add_up_lanes(pieces, lane);
  if (thread < capacity) {
    if (holds) scratch.descriptors[thread] = mine;
    if (lane == kWarpLanes - 1) {
      scratch.warp_rows[warp] = rows_so_far;
      scratch.warp_pieces[warp] = pieces_so_far;
    }
  }
  group.sync();
  uint32_t rows_before = 0, rows_in_all = 0, pieces_before = 0, pieces_in_all = 0;
  for (uint32_t w = 0; w < capacity / kWarpLanes; ++w) {
    if (w < warp) rows_before += scratch.warp_rows[w], pieces_before += scratch.warp_pieces[w];
    rows_in_all += scratch.warp_rows[w], pieces_in_all += scratch.warp_pieces[w];
  }
  const bool small = pieces_in_all < 2 * group.warps();
  const uint32_t first = small ? rows_before + rows_so_far - rows : pieces_before + pieces_so_far - pieces;
  if (thread < capacity) scratch.first_piece[thread] = holds ? first : ~0u;
  if (thread < kWarpLanes) scratch.first_piece[capacity + thread] = ~0u;
  group.sync();
  return small ? Batch{rows_in_all, kRowBytes} : Batch{pieces_in_all, largest_piece_bytes};
}

// A warp's walk over its pieces of a batch: piece numbers grow, so the descriptor is searched from the last
// one on.
template <int kBatch>
class PieceWalk {
 public:
  VERBENA_DEVICE PieceWalk(const UnpackGroup& group, const UnpackScratch<kBatch>& scratch, Batch batch)
      : scratch_(scratch), batch_(batch), next_(group.warp()), step_(group.warps()) {}

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
    return cut_piece(data + piece.dst_off, bounce + piece.src_off, piece.len, index, batch_.piece_bytes);
  }

 private:
  const UnpackScratch<kBatch>& scratch_;
  const Batch batch_;
  uint32_t next_, step_;
  uint32_t descriptor_ = 0;
};

}  // namespace detail

// Copies through registers: any architecture, no memory but the scratch.
struct CopyThroughRegisters {
  static constexpr int kRows = 4;
  static constexpr uint32_t kPieceBytes = WarpPiece<kRows>::kMaxBodyBytes;

  VERBENA_DEVICE uint32_t piece_bytes() const { return kPieceBytes; }

  template <int kBatch>
  VERBENA_DEVICE void copy(const UnpackGroup& group, const UnpackScratch<kBatch>& scratch,
                           detail::Batch batch, const char* bounce, char* data) {
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
};

enum class UnpackResult : uint8_t {
  kDone,
  kBadCount,  // the slot says more descriptors than it can hold: nothing was written
};

// Places the message of `slot` (0 to 15) at `data`. The caller's threads already know that the message is
// complete: by wait_message below, or because NCCL's step said so. On return every byte is there for every
// thread of the group; what the plugin reuses the slot for happens after it hears of that (irecvConsumed). A
// count of 0 writes nothing.
template <int kBatch, typename Copy>
VERBENA_DEVICE UnpackResult unpack_message(const UnpackGroup& group, UnpackScratch<kBatch>& scratch,
                                           Copy& copy, const NetUnpackMeta* meta, uint32_t slot,
                                           const void* bounce, void* data) {
  const LoadMeta* const list = meta->mem[slot];
  const uint32_t capacity = group.threads < kBatch ? group.threads : kBatch;
  // Both loads travel at once; what lies behind the count is not used.
  LoadMeta mine{};
  if (group.thread < capacity) mine = load_relaxed<Scope::kSystem>(list + group.thread);
  const uint64_t count = load_relaxed<Scope::kSystem>(meta->cnt + slot);
  if (count > kUnpackMaxDescriptors) return UnpackResult::kBadCount;
  for (uint32_t base = 0; base < count; base += capacity) {
    const auto left = static_cast<uint32_t>(count) - base;
    const detail::Batch batch = detail::stage_batch(group, scratch, mine, left < capacity ? left : capacity,
                                                    static_cast<char*>(data), copy.piece_bytes());
    const uint32_t next = base + capacity + group.thread;
    if (group.thread < capacity && next < count) mine = load_relaxed<Scope::kSystem>(list + next);
    copy.copy(group, scratch, batch, static_cast<const char*>(bounce), static_cast<char*>(data));
    group.sync();
  }
  return UnpackResult::kDone;
}

}  // namespace verbena::device

#endif
