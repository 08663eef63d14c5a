// Data of a warp in lines of 64 bytes (Packet64 of low_latency.cuh): words change lanes in the block's shared
// memory on the way to the lines and from them. By all lanes of a warp together.
#ifndef VERBENA_DEVICE_WARP_LINES_CUH
#define VERBENA_DEVICE_WARP_LINES_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/low_latency.cuh"

namespace verbena::device::detail {

inline constexpr uint32_t kMostLineWarps = 16;    // of a block
inline constexpr uint32_t kMostLineBytes = 1064;  // of a warp's data, as whole lines

// The warp's own place; a multiple of 16.
VERBENA_DEVICE char* find_line_memory() {
  constexpr uint32_t kVectors = (kMostLineBytes + kVectorBytes - 1) / kVectorBytes;
#if VERBENA_EMULATED
  static const char key = 0;
  auto* const memory = static_cast<Vector16*>(
      emulation::shared_memory(&key, kMostLineWarps * kVectors * sizeof(Vector16), alignof(Vector16)));
#else
  VERBENA_SHARED Vector16 memory[kMostLineWarps * kVectors];
#endif
  return reinterpret_cast<char*>(memory + thread_index() / kWarpLanes * kVectors);
}

// kBytes of each warp.
template <uint32_t kBytes>
struct WarpLines {
  static constexpr uint32_t kLines = (kBytes + Packet64::kLineData - 1) / Packet64::kLineData;
  static constexpr uint32_t kPackets = kLines * Packet64::kLanes, kSlotBytes = kPackets * Packet64::kBytes;
  static constexpr uint32_t kEach = (kPackets + kWarpLanes - 1) / kWarpLanes;  // packets of a lane
  static_assert(kLines * Packet64::kLineData <= kMostLineBytes, "verbena: a warp's memory for lines");

  Halves packets[kEach];

  // From the warp's memory, where all lanes have put theirs; behind send() or poll() that may be changed.
  VERBENA_DEVICE void take(const char* memory) {
    sync_warp();
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      packets[i] = has(i) ? Packet64::load_data(memory, number(i)) : Halves{};
  }
  // `there`: where the warp's lines begin at a peer, as this rank's address. The lanes meet.
  VERBENA_DEVICE void send(char* there, uint64_t epoch) const {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      Packet64::send(there + number(i) * Packet64::kBytes, packets[i], epoch, has(i));
  }

  // What lies here now; all at once. The lanes meet.
  VERBENA_DEVICE void poll(const char* here) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      packets[i] = Packet64::poll(here + number(i) * Packet64::kBytes, has(i));
  }
  VERBENA_DEVICE bool are_of(uint64_t epoch) const {
    bool are_all = true;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) are_all = Packet64::is_of(packets[i], epoch, has(i)) && are_all;
    return are_all;
  }
  // Into the warp's memory: all lanes' are there behind it.
  VERBENA_DEVICE void put(char* memory) const {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) {
      if (has(i)) Packet64::store_data(memory, number(i), Packet64::open(packets[i]));
    }
    sync_warp();
  }

 private:
  VERBENA_DEVICE static uint32_t number(uint32_t i) { return i * kWarpLanes + lane(); }
  VERBENA_DEVICE static bool has(uint32_t i) {
    return (i + 1) * kWarpLanes <= kPackets || number(i) < kPackets;
  }
};

}  // namespace verbena::device::detail

#endif
