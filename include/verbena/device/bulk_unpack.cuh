// Unpacks messages by bulk copies through shared memory, on sm_90 and later. The bulk copy engine loads
// pieces into shared memory and stores them from there, so the copies in flight occupy no registers. If a
// piece is not aligned to 16 bytes, the engine loads it, and the warp realigns and stores it. To use this
// method, pass a CopyThroughShared to the functions of unpack.cuh.
#ifndef VERBENA_DEVICE_BULK_UNPACK_CUH
#define VERBENA_DEVICE_BULK_UNPACK_CUH

#include "verbena/device/async_copy.cuh"
#include "verbena/device/unpack.cuh"

namespace verbena::device {

// A copy method (unpack.cuh). Each warp has a ring of buffers (stages) in shared memory. A stage holds one
// piece of the message. As long as there are enough pieces, all stages are in flight. All threads of the
// group construct the object once per kernel, and use it for any number of messages.
class CopyThroughShared {
 public:
  static constexpr int kPieceShift = 12;
  // Alignment of loads in bytes. Unaligned loads make the engine 20 % slower.
  static constexpr uint32_t kLineBytes = 128;
  // A piece may start inside a line, and may have a head of up to 15 bytes.
  static constexpr uint32_t kStageBytes = (1u << kPieceShift) + 2 * kLineBytes;

  // Returns the size of the shared memory for a group, in bytes.
  // @param stages  stages per warp, 2 to 32; with three stages, unpacking reaches the speed of a copy kernel
  VERBENA_HOST_DEVICE static constexpr uint32_t count_shared_bytes(uint32_t warps, uint32_t stages) {
    return warps * stages * (kStageBytes + sizeof(CopyBarrier));
  }

  // @param shared  count_shared_bytes() bytes of shared memory, aligned to kLineBytes; reserved for this
  //                object until the object is destroyed
  template <typename Group>
  VERBENA_DEVICE CopyThroughShared(const Group& group, void* shared, uint32_t stages)
      : stages_(static_cast<char*>(shared) + (group.rank() / kWarpLanes) * stages * kStageBytes),
        barriers_(reinterpret_cast<CopyBarrier*>(static_cast<char*>(shared) +
                                                 (group.size() / kWarpLanes) * stages * kStageBytes) +
                  (group.rank() / kWarpLanes) * stages),
        stage_count_(stages) {
    if (lane() == 0) {
      for (uint32_t stage = 0; stage < stages; ++stage) init_copy_barrier(barriers_ + stage, 1);
    }
    // No sync is needed here, because the group syncs while it stages a batch, before the other lanes use the
    // barriers.
  }

  // Lane 0 may destroy the barriers, because no lane is still waiting: the lanes sync after each wait in
  // which all lanes take part. Afterwards another CopyThroughShared may use the memory. Before the memory is
  // used for another purpose, the group must sync.
  VERBENA_DEVICE ~CopyThroughShared() {
    drain();
    if (lane() != 0) return;
    for (uint32_t stage = 0; stage < stage_count_; ++stage) destroy_copy_barrier(barriers_ + stage);
  }
  CopyThroughShared(const CopyThroughShared&) = delete;
  CopyThroughShared& operator=(const CopyThroughShared&) = delete;

  template <typename Group, int kBatch>
  VERBENA_DEVICE void copy(const Group& group, const UnpackScratch<kBatch>& scratch, detail::Batch batch,
                           const char* bounce, char* data) {
    detail::PieceWalk<kBatch> walk(group, scratch, batch, bounce, data);
    if (batch.piece_shift == kRowShift) {  // a short message is copied faster through registers
      detail::copy_rows(walk);
      return;
    }
    if (lane() == 0) fence_async_proxy();  // makes all data that the group can read visible to the engine
    while (walk.has_next()) {
      if (in_flight_ == stage_count_) finish();
      begin(walk.take());
    }
  }

  VERBENA_DEVICE void drain() {
    while (in_flight_ > 0) finish();
    if (lane() == 0) wait_bulk_groups<0>();
  }

 private:
  // A position in the ring, and the parity of the current round through the ring.
  struct Cursor {
    uint32_t stage = 0, parity = 0;
    VERBENA_DEVICE void advance(uint32_t stages) {
      if (++stage == stages) stage = 0, parity ^= 1;
    }
  };

  VERBENA_DEVICE void begin(const CopyPiece& piece) {
    const uint32_t stage = begun_.stage;
    begun_.advance(stage_count_);
    ++in_flight_;
    // Starting the load at a line boundary is safe, because the bytes before the piece are on the same page.
    const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(piece.source)) % kLineBytes;
    if (lane() == stage) {
      destination_ = piece.destination;
      offset_and_length_ = offset | piece.length_bytes * kLineBytes;
    }
    if (lane() != 0) return;
    wait_bulk_groups_read<0>();  // the engine may still be reading the stage's previous piece
    const uint32_t units = (offset + piece.length_bytes + kVectorBytes - 1) / kVectorBytes;
    arrive_expecting(barriers_ + stage, units * kVectorBytes);
    copy_bulk_global_to_shared(stages_ + stage * kStageBytes, piece.source - offset, units * kVectorBytes,
                               barriers_ + stage);
  }

  VERBENA_DEVICE void finish() {
    const uint32_t stage = finished_.stage, parity = finished_.parity;
    finished_.advance(stage_count_);
    --in_flight_;
    const auto from_lane = static_cast<int>(stage);
    const uint32_t packed = shuffle(kFullWarp, offset_and_length_, from_lane);
    const auto address = reinterpret_cast<uint64_t>(destination_);
    const uint32_t low = shuffle(kFullWarp, static_cast<uint32_t>(address), from_lane);
    const uint32_t high = shuffle(kFullWarp, static_cast<uint32_t>(address >> 32), from_lane);
    const CopyPiece piece = {reinterpret_cast<char*>(static_cast<uint64_t>(high) << 32 | low),
                             stages_ + stage * kStageBytes + packed % kLineBytes, packed / kLineBytes};
    const bool is_whole = ((low | packed | piece.length_bytes) % kVectorBytes) == 0;
    if (!is_whole) {
      wait(stage, parity);
      store_realigned(CopyShape::of(piece));
      sync_warp();  // all lanes have read the stage, so it may be filled again
    } else if (lane() == 0) {
      wait(stage, parity);
      copy_bulk_shared_to_global(piece.destination, piece.source, piece.length_bytes);
      commit_bulk_group();
    }
  }

  // Waits without a deadline, because the engine always completes its copies.
  VERBENA_DEVICE void wait(uint32_t stage, uint32_t parity) const {
    while (!try_wait_parity(barriers_ + stage, parity)) continue;
  }

  VERBENA_DEVICE static void store_realigned(const CopyShape& shape) {
    const auto* const units = reinterpret_cast<const Vector16*>(shape.source);
    VERBENA_UNROLL_BY(4)
    for (uint32_t vector = lane(); vector < shape.vectors; vector += kWarpLanes) {
      const Vector16 value =
          shape.shift == 0 ? units[vector] : detail::realign(units[vector], units[vector + 1], shape.shift);
      detail::store_data(shape.destination + vector * kVectorBytes, value);
    }
    const char* const source = shape.source + shape.shift;
    const auto put = [&](ptrdiff_t offset) {
      store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
          reinterpret_cast<uint8_t*>(shape.destination + offset), static_cast<uint8_t>(source[offset]));
    };
    const uint32_t mine = lane();
    if (mine < shape.head_bytes) put(static_cast<ptrdiff_t>(mine) - static_cast<ptrdiff_t>(shape.head_bytes));
    if (mine < shape.tail_bytes) put(shape.vectors * kVectorBytes + mine);
  }

  char* const stages_;           // stages of this thread's warp
  CopyBarrier* const barriers_;  // one for each stage
  const uint32_t stage_count_;
  Cursor begun_, finished_;
  uint32_t in_flight_ = 0;  // number of stages between finished_ and begun_
  // Lane s keeps the state of stage s.
  char* destination_ = nullptr;
  uint32_t offset_and_length_ = 0;
};

}  // namespace verbena::device

#endif
