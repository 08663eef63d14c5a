// Sends and receives encoded tiles as packets (low_latency.cuh). The packets are contiguous in a slot. All
// lanes of a warp send or receive a tile together, and exchange words through the block's shared memory.
#ifndef VERBENA_DEVICE_COLLECTIVES_CODED_PACKETS_CUH
#define VERBENA_DEVICE_COLLECTIVES_CODED_PACKETS_CUH

#include "verbena/device/collectives/codec_float8.cuh"
#include "verbena/device/collectives/codec_integer.cuh"
#include "verbena/device/low_latency.cuh"

namespace verbena::device {

inline constexpr uint32_t kMaxCodedWarps = 16;  // per block

namespace detail {

inline constexpr uint32_t kMaxCodedBytes = 1056;  // per tile

// Returns this warp's part of the shared memory.
VERBENA_DEVICE char* find_tile_memory() {
  constexpr uint32_t kVectors = kMaxCodedBytes / kVectorBytes;
#if VERBENA_EMULATED
  static const char key = 0;
  auto* const memory = static_cast<Vector16*>(
      emulation::shared_memory(&key, kMaxCodedWarps * kVectors * sizeof(Vector16), alignof(Vector16)));
#else
  VERBENA_SHARED Vector16 memory[kMaxCodedWarps * kVectors];
#endif
  return reinterpret_cast<char*>(memory + thread_index() / kWarpLanes * kVectors);
}

// encode_tile() encodes a lane's elements of a tile. decode_tile() is the inverse. `type` is the type of the
// elements in `raw`.
template <typename Codec, typename Rounding>
VERBENA_DEVICE typename Codec::Coded encode_tile(DataType type, const RawUnit (&raw)[kTileRows],
                                                 const Rounding& rounding) {
  TileElements numbers;
  widen_tile(type, raw, numbers);
  return Codec::encode(numbers, rounding);
}
template <typename Codec>
VERBENA_DEVICE void decode_tile(DataType type, const typename Codec::Coded& coded,
                                RawUnit (&raw)[kTileRows]) {
  VERBENA_UNROLL
  for (uint32_t row = 0; row < kTileRows; ++row) {
    float unit[kUnitElements];
    Codec::decode_row(coded, row, unit);
    raw[row] = narrow_unit(type, unit);
  }
}

}  // namespace detail

template <typename Codec>
class CodedPackets {
 public:
  using Coded = typename Codec::Coded;
  static constexpr uint32_t kTileBytes = CodedTiles<Codec>::kBytes;
  static_assert(kTileBytes <= detail::kMaxCodedBytes, "verbena: a tile must fit into a warp's memory");
  // One lane's packets of a tile.
  struct Polled {
    Packet::Data packets[(kTileBytes / Packet::kBytes + kWarpLanes - 1) / kWarpLanes];
  };

  // @param data_bytes  LowLatency::data_bytes()
  VERBENA_DEVICE explicit CodedPackets(uint64_t data_bytes) : data_bytes_(data_bytes) {}

  // Sends a tile to `slots` slots.
  // @param tile  number of the tile in the message
  // @param epoch  number of the call
  // @param find  find(i) returns slot i
  template <typename Find>
  VERBENA_DEVICE void send(const Coded& coded, uint32_t tile, uint64_t epoch, uint32_t slots,
                           const Find& find) const {
    char* const memory = detail::find_tile_memory();
    Tiles(memory, 1).store(0, coded);
    sync_warp();
    Polled stored;
    for_packets([&](uint32_t i, uint32_t offset) {
      stored.packets[i] =
          Packet::mask(load<Order::kWeak, Scope::kThreads>(reinterpret_cast<Vector16*>(memory + offset)));
    });
    sync_warp();
    const bool is_plain = are_plain(stored);
    for (uint32_t slot = 0; slot < slots; ++slot) {
      char* const there = find(slot);
      char* const first = there + tile * kTileBytes;
      if (is_plain) {
        for_packets(
            [&](uint32_t i, uint32_t offset) { Packet::send_plain(first + offset, stored.packets[i]); });
      } else {
        for_packets([&](uint32_t i, uint32_t offset) {
          Packet::send(first + offset, find_note(there, tile, offset), stored.packets[i], epoch);
        });
      }
    }
  }

  // Loads the packets of a tile, without waiting for them.
  VERBENA_DEVICE void poll(const char* slot, uint32_t tile, Polled& polled) const {
    const char* const here = slot + tile * kTileBytes;
    for_packets([&](uint32_t i, uint32_t offset) { polled.packets[i] = Packet::poll(here + offset); });
  }
  // Waits for a tile, empties the tile's packets, and writes the encoded tile to `coded`.
  // @param member  the sender
  // @param polled  packets from poll()
  // @return false, in all lanes, if the tile did not arrive in time
  VERBENA_DEVICE bool receive(char* slot, uint32_t tile, uint64_t epoch, int32_t member, Polled& polled,
                              Patience& patience, Coded& coded) const {
    const auto have_come = [&] {
      bool all = true;
      for_packets([&](uint32_t i, uint32_t offset) {
        all = Packet::has_come(polled.packets[i], find_note(slot, tile, offset), epoch) && all;
      });
      return all;
    };
    // All lanes leave the loop at the same time, because they sync after the loop anyway.
    for (uint32_t spins = 1;
         ballot(kFullWarp, !are_plain(polled)) != 0 && ballot(kFullWarp, !have_come()) != 0; ++spins) {
      poll(slot, tile, polled);
      if (spins % kDefaultSpinsPerCheck != 0) continue;
      if (ballot(kFullWarp, patience.check(member) != WaitResult::kReached) != 0) return false;
    }
    char* const memory = detail::find_tile_memory();
    for_packets([&](uint32_t i, uint32_t offset) {
      store<Order::kWeak, Scope::kThreads>(
          reinterpret_cast<Vector16*>(memory + offset),
          Packet::take(polled.packets[i], slot + tile * kTileBytes + offset));
    });
    sync_warp();
    coded = Tiles(memory, 1).load(0);
    sync_warp();
    return true;
  }

 private:
  using Tiles = CodedTiles<Codec, char, Space::kGeneric>;

  // Calls `body(i, offset)` for each packet of this lane.
  template <typename Body>
  VERBENA_DEVICE static void for_packets(const Body& body) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i * kWarpLanes * Packet::kBytes < kTileBytes; ++i) {
      const uint32_t offset = (i * kWarpLanes + lane()) * Packet::kBytes;
      if (offset < kTileBytes) body(i, offset);
    }
  }

  VERBENA_DEVICE static bool are_plain(const Polled& polled) {
    bool all = true;
    for_packets([&](uint32_t i, uint32_t) { all = all & Packet::is_plain(polled.packets[i]); });
    return all;
  }

  VERBENA_DEVICE char* find_note(char* slot, uint32_t tile, uint32_t offset) const {
    // FAULT(tiles_share_notes)
    return slot + data_bytes_ + (tile * kTileBytes + offset) / Packet::kBytes * Packet::kNoteBytes;
  }

  uint64_t data_bytes_;
};

}  // namespace verbena::device

#endif
