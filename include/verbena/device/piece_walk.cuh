// Distributes the work of unpacking a message over the warps of a group, for unpack.cuh. The group loads a
// batch of descriptors into shared memory, splits the descriptors into pieces, and numbers the pieces by a
// prefix sum. Each warp then copies its share of the pieces.
#ifndef VERBENA_DEVICE_PIECE_WALK_CUH
#define VERBENA_DEVICE_PIECE_WALK_CUH

#include "verbena/device/copy.cuh"
#include "verbena/unpack_abi.h"

namespace verbena::device {

// The number of pieces of a warp's descriptors: `rows` if the descriptors are split into single rows (of
// kRowBytes each), `pieces` if they are split into pieces of full size.
struct StagedCounts {
  uint32_t rows, pieces;
};

// Shared memory for one group of threads (a block or a warp).
// @tparam kBatch  max descriptors of a batch, a multiple of 32; use 256 for a block (5.4 KiB) and 32 for a
//                 warp
template <int kBatch = 256>
struct alignas(16) UnpackScratch {
  static_assert(kBatch >= kWarpLanes && kBatch % kWarpLanes == 0, "verbena: kBatch must be a multiple of 32");
  LoadMeta descriptors[kBatch];
  // The number of each descriptor's first piece. In entries after the last descriptor, all bits are set,
  // which ends a search.
  uint32_t first_piece[kBatch + kWarpLanes];
  StagedCounts staged[kBatch / kWarpLanes];
  uint64_t count;  // used by wait_message() to pass the count to all threads
};

namespace detail {

// Loads a value from the unpack queue. The group must have acquired the value.
template <typename T>
VERBENA_DEVICE T load_queue(const T* address) {
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(address);
}

// Returns the max number of descriptors of a batch: one per thread, up to kBatch.
template <int kBatch, typename Group>
VERBENA_DEVICE uint32_t get_capacity(const Group& group) {
  return group.size() < kBatch ? group.size() : kBatch;
}

// The pieces of a batch. All threads of the group have the same values.
struct Batch {
  uint32_t pieces;       // number of pieces
  uint32_t piece_shift;  // a piece has 2^piece_shift bytes; the first piece of a descriptor has up to 15 more
};

// Writes `count` descriptors to shared memory and numbers their pieces. Thread i passes descriptor i. If a
// batch has fewer than half as many pieces as there are warps, the batch is split into single rows instead.
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
  const bool small = pieces_in_all < warps / 2;
  const uint32_t first = small ? rows_before + rows_so_far - rows : pieces_before + pieces_so_far - pieces;
  const uint32_t capacity = get_capacity<kBatch>(group);
  if (thread < capacity) scratch.first_piece[thread] = holds ? first : ~0u;
  if (thread < kWarpLanes) scratch.first_piece[capacity + thread] = ~0u;
  group.sync();
  return small ? Batch{rows_in_all, kRowShift} : Batch{pieces_in_all, kPieceShift};
}

// Iterates over a warp's pieces of a batch. The piece numbers grow, so the search for a piece's descriptor
// starts at the descriptor of the previous piece.
template <int kBatch>
class PieceWalk {
 public:
  template <typename Group>
  VERBENA_DEVICE PieceWalk(const Group& group, const UnpackScratch<kBatch>& scratch, Batch batch,
                           const char* bounce, char* data)
      : scratch_(scratch),
        batch_(batch),
        bounce_(bounce),
        data_(data),
        next_(group.rank() / kWarpLanes),
        step_(group.size() / kWarpLanes) {}

  VERBENA_DEVICE bool has_next() const { return next_ < batch_.pieces; }

  // Returns the next piece; has_next() must be true. All lanes make the call.
  VERBENA_DEVICE CopyPiece take() {
    const uint32_t lane = device::lane();
    for (;;) {
      // Each lane reads, for one of the next 32 descriptors, the number of the descriptor's first piece. The
      // descriptors that start at or before the wanted piece are in consecutive lanes, starting with lane 0.
      const uint32_t begun = ballot(kFullWarp, scratch_.first_piece[descriptor_ + 1 + lane] <= next_);
      descriptor_ += static_cast<uint32_t>(__builtin_popcount(begun));
      if (begun != kFullWarp) break;
    }
    const LoadMeta piece = scratch_.descriptors[descriptor_];
    const uint32_t index = next_ - scratch_.first_piece[descriptor_];
    next_ += step_;
    return cut_piece(data_ + piece.dst_off, bounce_ + piece.src_off, piece.len, index, batch_.piece_shift);
  }

 private:
  const UnpackScratch<kBatch>& scratch_;
  const Batch batch_;
  const char* const bounce_;
  char* const data_;
  uint32_t next_, step_;
  uint32_t descriptor_ = 0;
};

// Iterates over a warp's pieces, like PieceWalk, for a message of at most 32 descriptors. Lane i of every
// warp keeps descriptor i in registers, so no shared memory is needed.
template <uint32_t kPieceShift = kRowShift>
class LaneWalk {
 public:
  template <typename Group>
  VERBENA_DEVICE LaneWalk(const Group& group, const LoadMeta* list, uint32_t count, const char* bounce,
                          char* data)
      : bounce_(bounce), data_(data), next_(group.rank() / kWarpLanes), step_(group.size() / kWarpLanes) {
    const uint32_t lane = device::lane();
    if (lane < count) mine_ = load_queue(list + lane);
    const uint32_t pieces = lane < count ? count_pieces(data + mine_.dst_off, mine_.len, kPieceShift) : 0;
    const uint32_t so_far = add_up_lanes(pieces, lane);
    first_ = lane < count ? so_far - pieces : ~0u;
    pieces_ = shuffle(kFullWarp, so_far, kWarpLanes - 1);
  }

  // Returns whether each warp has at most two pieces. Messages with more pieces are copied faster with
  // PieceWalk.
  template <typename Group>
  VERBENA_DEVICE bool is_short(const Group& group) const {
    return pieces_ <= group.size() / kWarpLanes * 2;
  }
  VERBENA_DEVICE bool has_next() const { return next_ < pieces_; }

  VERBENA_DEVICE CopyPiece take() {
    const uint32_t begun = ballot(kFullWarp, first_ <= next_);
    const int holder = __builtin_popcount(begun) - 1;
    const auto get = [&](uint32_t value) { return shuffle(kFullWarp, value, holder); };
    const uint64_t destination = get(static_cast<uint32_t>(mine_.dst_off)) |
                                 uint64_t{get(static_cast<uint32_t>(mine_.dst_off >> 32))} << 32;
    const uint32_t index = next_ - get(first_);
    next_ += step_;
    return cut_piece(data_ + destination, bounce_ + get(mine_.src_off), get(mine_.len), index, kPieceShift);
  }

 private:
  const char* const bounce_;
  char* const data_;
  uint32_t next_, step_, pieces_ = 0;
  LoadMeta mine_{};
  uint32_t first_ = ~0u;  // number of the descriptor's first piece
};

// Copies pieces of kRows rows. Loads the next piece while the current piece is being stored.
template <int kRows, typename Walk>
VERBENA_DEVICE void copy_walk(Walk& walk) {
  if (!walk.has_next()) return;
  WarpPiece<kRows> even, odd;
  even.load(walk.take());
  for (;;) {
    const bool has_odd = walk.has_next();
    if (has_odd) odd.load(walk.take());
    even.store();
    if (!has_odd) return;
    const bool has_even = walk.has_next();
    if (has_even) even.load(walk.take());
    odd.store();
    if (!has_even) return;
  }
}

// Copies the pieces of a short message, two at a time. The pieces are single rows.
template <typename Walk>
VERBENA_DEVICE void copy_rows(Walk& walk) {
  while (walk.has_next()) {
    WarpPiece<1> first, second;
    first.load(walk.take());
    const bool has_second = walk.has_next();
    if (has_second) second.load(walk.take());
    first.store();
    if (has_second) second.store();
  }
}

}  // namespace detail

}  // namespace verbena::device

#endif
