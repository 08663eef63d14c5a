// Copies any number of bytes between any two addresses, in 16-byte vectors with many independent loads in
// flight. If the addresses of source and destination differ modulo 16, the data is realigned in registers.
//
// copy_group() copies with all threads of a group, copy_thread() with one thread. Source and destination must
// not overlap. Only the bytes of the destination are written. The source is read in aligned 16-byte units, so
// the call also reads up to 15 bytes before and after the source, and discards them. These reads are safe,
// because allocations consist of whole units, but a bounds checker may report them.
//
// All accesses are weak. Before a thread copies data that other threads have written, it must acquire the
// data (by load_acquire, or by a barrier after another thread's load_acquire). The acquire also drops stale
// lines of the L1 cache. Loads at system scope would not need an acquire. But the GPU executes such loads of
// mapped host memory one after the other, which takes 30 ns for each thread.
#ifndef VERBENA_DEVICE_COPY_CUH
#define VERBENA_DEVICE_COPY_CUH

#include "verbena/device/group.cuh"
#include "verbena/device/machine.cuh"
#include "verbena/device/memory_order.cuh"

namespace verbena::device {

inline constexpr uint32_t kVectorBytes = sizeof(Vector16);
inline constexpr uint32_t kRowShift = 9;
inline constexpr uint32_t kRowBytes = 1u << kRowShift;  // number of bytes that one instruction of a warp
                                                        // moves
static_assert(kRowBytes == kVectorBytes * kWarpLanes, "verbena: a row has one vector per lane");

namespace detail {

VERBENA_DEVICE uint32_t offset_in_vector(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) % kVectorBytes;
}

// Returns the number of bytes up to the first 16-byte boundary.
VERBENA_DEVICE uint32_t get_head_bytes(const void* address) {
  return (kVectorBytes - offset_in_vector(address)) % kVectorBytes;
}

VERBENA_DEVICE Vector16 load_data(const char* address) {
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<const Vector16*>(address));
}

VERBENA_DEVICE void store_data(char* address, Vector16 value) {
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(reinterpret_cast<Vector16*>(address),
                                                                        value);
}

VERBENA_DEVICE void copy_byte(char* destination, const char* source) {
  const auto value = load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<const uint8_t*>(source));
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<uint8_t*>(destination), value);
}

// Returns bytes `shift` to `shift` + 15 of the 32 bytes (low, high). `shift` is 0 to 15.
VERBENA_DEVICE Vector16 realign(Vector16 low, Vector16 high, uint32_t shift) {
  uint32_t w0 = low.x, w1 = low.y, w2 = low.z, w3 = low.w, w4 = high.x, w5 = high.y, w6 = high.z;
  if ((shift & 8) != 0) w0 = w2, w1 = w3, w2 = w4, w3 = w5, w4 = w6, w5 = high.w;
  if ((shift & 4) != 0) w0 = w1, w1 = w2, w2 = w3, w3 = w4, w4 = w5;
  const uint32_t bits = shift % 4 * 8;
  return {shift_right_wrap(w0, w1, bits), shift_right_wrap(w1, w2, bits), shift_right_wrap(w2, w3, bits),
          shift_right_wrap(w3, w4, bits)};
}

}  // namespace detail

// A span of bytes to copy.
struct CopyPiece {
  char* destination;
  const char* source;
  uint32_t length_bytes;
};

// Splits a copy into three parts: a head up to the destination's first 16-byte boundary, whole vectors, and a
// tail.
struct CopyShape {
  uint32_t head_bytes = 0, vectors = 0, tail_bytes = 0;
  uint32_t shift = 0;            // bytes from `source` to the bytes of the first vector
  char* destination = nullptr;   // address of the first vector
  const char* source = nullptr;  // the aligned unit of the source in which the first vector starts

  VERBENA_DEVICE static CopyShape of(const CopyPiece& piece) {
    const auto [destination, source, length_bytes] = piece;
    CopyShape shape;
    const uint32_t to_boundary = detail::get_head_bytes(destination);
    shape.head_bytes = to_boundary < length_bytes ? to_boundary : length_bytes;
    const uint32_t body_bytes = length_bytes - shape.head_bytes;
    shape.vectors = body_bytes / kVectorBytes;
    shape.tail_bytes = body_bytes % kVectorBytes;
    shape.destination = destination + shape.head_bytes;
    shape.shift = detail::offset_in_vector(source + shape.head_bytes);
    shape.source = source + shape.head_bytes - shape.shift;
    return shape;
  }

  // Copies head and tail, one byte per lane.
  VERBENA_DEVICE void copy_ends(uint32_t lane) const {
    if ((head_bytes | tail_bytes) == 0) return;
    const char* const from = source + shift;
    if (lane < head_bytes) {
      const auto back = static_cast<ptrdiff_t>(lane) - static_cast<ptrdiff_t>(head_bytes);
      detail::copy_byte(destination + back, from + back);
    }
    if (lane < tail_bytes) {
      const uint32_t offset = vectors * kVectorBytes + lane;
      detail::copy_byte(destination + offset, from + offset);
    }
  }
};

// Copies a piece of at most kRows rows (of kRowBytes each) with a warp, in two steps: load() and store().
// Between the two steps, the warp can do other work, such as the loads of a second piece. All 32 lanes call
// load() with the same piece, and then store().
template <int kRows>
class WarpPiece {
 public:
  static constexpr uint32_t kMaxBodyBytes = kRows * kRowBytes;

  VERBENA_DEVICE void load(const CopyPiece& piece) {
    shape_ = CopyShape::of(piece);
    const uint32_t lane = device::lane();
    const char* const from = shape_.source + lane * kVectorBytes;
    // A vector that is not aligned in the source spans two units, so the copy then needs one unit more than
    // there are vectors.
    const uint32_t units = shape_.shift == 0 || shape_.vectors == 0 ? shape_.vectors : shape_.vectors + 1;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      if (row * kWarpLanes + lane < units) rows_[row] = detail::load_data(from + row * kRowBytes);
    }
    if (units > kRows * kWarpLanes && lane == 0) beyond_ = detail::load_data(from + kRows * kRowBytes);
  }

  VERBENA_DEVICE void store() {
    const uint32_t lane = device::lane();
    char* const to = shape_.destination + lane * kVectorBytes;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      const Vector16 value = shape_.shift == 0 ? rows_[row] : realign_row(row, lane);
      if (row * kWarpLanes + lane < shape_.vectors) detail::store_data(to + row * kRowBytes, value);
    }
    shape_.copy_ends(lane);
  }

 private:
  // Each lane also needs the unit of the next lane. The last lane needs the first unit of the next row, and
  // gets this unit from lane 0.
  VERBENA_DEVICE Vector16 realign_row(uint32_t row, uint32_t lane) {
    Vector16 mine = rows_[row];
    if (lane == 0) mine = row + 1 < kRows ? rows_[row + 1 < kRows ? row + 1 : row] : beyond_;
    const int from = static_cast<int>((lane + 1) % kWarpLanes);
    const Vector16 next = {shuffle(kFullWarp, mine.x, from), shuffle(kFullWarp, mine.y, from),
                           shuffle(kFullWarp, mine.z, from), shuffle(kFullWarp, mine.w, from)};
    return detail::realign(rows_[row], next, shape_.shift);
  }

  CopyShape shape_;
  Vector16 rows_[kRows] = {};
  Vector16 beyond_ = {};
};

namespace detail {

inline constexpr int kCopyRows = 4;
inline constexpr uint32_t kCopyPieceShift = 11;
static_assert(1 << kCopyPieceShift == WarpPiece<kCopyRows>::kMaxBodyBytes,
              "verbena: the body of a piece must fill the rows");

// Returns piece `index` of a copy that is split into pieces of 2^piece_shift bytes. The first piece also
// contains the head, which is the bytes before the destination's first 16-byte boundary. Every other piece
// starts at a 16-byte boundary of the destination.
template <typename Length>
VERBENA_DEVICE CopyPiece cut_piece(char* destination, const char* source, Length length_bytes, Length index,
                                   uint32_t piece_shift) {
  const Length head = get_head_bytes(destination);
  const Length from = index == 0 ? 0 : head + (index << piece_shift);
  const Length left = length_bytes - from;
  const Length wanted = (Length{1} << piece_shift) + (index == 0 ? head : 0);
  return {destination + from, source + from, static_cast<uint32_t>(wanted < left ? wanted : left)};
}

template <typename Length>
VERBENA_DEVICE Length count_pieces(const char* destination, Length length_bytes, uint32_t piece_shift) {
  const Length head = get_head_bytes(destination);
  if (length_bytes <= head) return length_bytes == 0 ? 0 : 1;  // FAULT(copy_has_a_piece_too_many)
  return ((length_bytes - head - 1) >> piece_shift) + 1;
}

// Copies pieces `first`, `first + step`, and so on with one warp. Loads the next piece while the current
// piece is being stored.
VERBENA_DEVICE void copy_pieces(char* destination, const char* source, uint64_t length_bytes, uint64_t first,
                                uint64_t step) {
  const uint64_t pieces = count_pieces(destination, length_bytes, kCopyPieceShift);
  if (first >= pieces) return;
  WarpPiece<kCopyRows> even, odd;
  even.load(cut_piece(destination, source, length_bytes, first, kCopyPieceShift));
  for (uint64_t piece = first;; piece += 2 * step) {
    if (piece + step < pieces)
      odd.load(cut_piece(destination, source, length_bytes, piece + step, kCopyPieceShift));
    even.store();
    if (piece + step >= pieces) return;
    if (piece + 2 * step < pieces)
      even.load(cut_piece(destination, source, length_bytes, piece + 2 * step, kCopyPieceShift));
    odd.store();
    if (piece + 2 * step >= pieces) return;
  }
}

}  // namespace detail

// Copies all bytes with one thread. The loops are not unrolled: each store waits for its load, so unrolling
// would not make the loops faster.
VERBENA_DEVICE void copy_thread(void* destination, const void* source, size_t length_bytes) {
  auto* const to = static_cast<char*>(destination);
  const auto* const from = static_cast<const char*>(source);
  size_t done = 0;
  if (detail::offset_in_vector(to) == detail::offset_in_vector(from)) {
    VERBENA_UNROLL_BY(1)
    for (; done < length_bytes && detail::offset_in_vector(to + done) != 0; ++done)
      detail::copy_byte(to + done, from + done);
    VERBENA_UNROLL_BY(1)
    for (; length_bytes - done >= kVectorBytes; done += kVectorBytes)
      detail::store_data(to + done, detail::load_data(from + done));
  }
  VERBENA_UNROLL_BY(1)
  for (; done < length_bytes; ++done) detail::copy_byte(to + done, from + done);
}

// Copies bytes with all threads of a group (group.cuh), which must consist of whole warps. Call group.sync()
// before a thread reads bytes that another thread has copied.
template <typename Group>
VERBENA_DEVICE void copy_group(const Group& group, void* destination, const void* source,
                               size_t length_bytes) {
  detail::copy_pieces(static_cast<char*>(destination), static_cast<const char*>(source),
                      uint64_t{length_bytes}, group.rank() / kWarpLanes, group.size() / kWarpLanes);
}

VERBENA_DEVICE void copy_warp(void* destination, const void* source, size_t length_bytes) {
  copy_group(WarpGroup{}, destination, source, length_bytes);
}

VERBENA_DEVICE void copy_block(void* destination, const void* source, size_t length_bytes) {
  copy_group(BlockGroup{}, destination, source, length_bytes);
}

}  // namespace verbena::device

#endif
