// All-reduces in few bits of two ranks, in one shot, by which they send no more than by two: each codes its
// whole tensor and sends it in packets, and both decode the same bytes, their own too, and add
// them up in float. So the same bits on both, and one quantisation of each term: docs/quantisation.md has the
// bounds.
//
//   OneShot<> calls(workspace, block_index(), blocks);
//   status = all_reduce_coded<Int4>(workspace.context, calls, input, output, length_bytes, type);
//   status = calls.finish();
//
// Warps share out a block's tiles, and none waits for another one.
#ifndef VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CODEC_CUH
#define VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CODEC_CUH

#include "verbena/device/collectives/codec_float8.cuh"
#include "verbena/device/collectives/codec_integer.cuh"
#include "verbena/device/collectives/one_shot.cuh"

namespace verbena::device {

namespace detail {

inline constexpr uint32_t kMostCodedWarps = 16;    // of a block
inline constexpr uint32_t kMostCodedBytes = 1056;  // of a tile

// The warp's own place in the block's shared memory: words change lanes there on the way to packets and from
// them.
VERBENA_DEVICE char* find_tile_memory() {
  constexpr uint32_t kVectors = kMostCodedBytes / kVectorBytes;
#if VERBENA_EMULATED
  static const char key = 0;
  auto* const memory = static_cast<Vector16*>(
      emulation::shared_memory(&key, kMostCodedWarps * kVectors * sizeof(Vector16), alignof(Vector16)));
#else
  VERBENA_SHARED Vector16 memory[kMostCodedWarps * kVectors];
#endif
  return reinterpret_cast<char*>(memory + thread_index() / kWarpLanes * kVectors);
}

// Up to two messages that are under way together, tile by tile: packets of a tile lie side by side. By all
// lanes of a warp together.
template <typename Codec, typename Rounding, typename Exchange>
class CodedMessages {
 public:
  using Coded = typename Codec::Coded;
  static constexpr uint32_t kTileBytes = CodedTiles<Codec>::kBytes;
  static_assert(kTileBytes <= kMostCodedBytes, "verbena: a warp's memory for a tile");
  // A lane's packets of a tile.
  struct Polled {
    Packet::Data packets[(kTileBytes / Packet::kBytes + kWarpLanes - 1) / kWarpLanes];
  };

  // The first message has up to `most_tiles`. `rounding` outlives this.
  VERBENA_DEVICE CodedMessages(const SymmContext& context, const Exchange& exchange, uint32_t most_tiles,
                               DataType type, const Rounding& rounding)
      : peer(1 - context.team_rank),
        note_bytes_(exchange.note_bytes()),
        epoch_(exchange.epoch()),
        sender_((epoch_ << 1 | static_cast<uint64_t>(context.team_rank)) << 16 | exchange.block()),
        most_tiles_(most_tiles),
        type_(type),
        rounding_(rounding) {
    VERBENA_UNROLL
    for (uint32_t call = 0; call < 2; ++call) {
      there_[call] = exchange.find_slot_at(peer, call);
      here_[call] = exchange.find_slot_of(peer, call);
    }
  }
  const int32_t peer;

  VERBENA_DEVICE Coded send(uint32_t tile, const RawUnit (&raw)[kTileRows]) const {
    // By chance each rank, block, message and tile has another sequence.
    const Rounding of_tile = rounding_.in_tile(sender_ << 24 | tile);
    Coded coded{};
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      float unit[kUnitNumbers];
      widen_unit(type_, raw[row], unit);
      Codec::encode_row(unit, row, of_tile, coded);
    }
    char* const memory = find_tile_memory();
    Tiles(memory, 1).store(0, coded);
    sync_warp();
    char* const there = find_tile(there_, tile);
    for_packets([&](uint32_t, uint32_t offset) {
      const auto data = load<Order::kWeak, Scope::kThreads>(reinterpret_cast<Vector16*>(memory + offset));
      Packet::send(there + offset, note_bytes_, Packet::mask(data), epoch_of(tile));
    });
    sync_warp();
    return coded;
  }

  // The peer's tile as it lies here now.
  VERBENA_DEVICE void poll(uint32_t tile, Polled& polled) const {
    const char* const here = find_tile(here_, tile);
    for_packets([&](uint32_t i, uint32_t offset) { polled.packets[i] = Packet::poll(here + offset); });
  }
  // When it has come: it is in the warp's memory then. False, for all lanes: it has not.
  VERBENA_DEVICE bool receive(uint32_t tile, Polled& polled, Patience& patience) const {
    char* const here = find_tile(here_, tile);
    const auto has_come = [&] {
      bool all = true;
      for_packets([&](uint32_t i, uint32_t offset) {
        all = Packet::has_come(polled.packets[i], here + offset, note_bytes_, epoch_of(tile)) && all;
      });
      return all;
    };
    bool goes_on = true;
    for (uint32_t spins = 1; goes_on && !has_come(); ++spins) {
      poll(tile, polled);
      if (spins % kDefaultSpinsPerCheck == 0) goes_on = patience.check(peer) == WaitResult::kReached;
    }
    if (ballot(kFullWarp, !goes_on) != 0) return false;
    char* const memory = find_tile_memory();
    for_packets([&](uint32_t i, uint32_t offset) {
      store<Order::kWeak, Scope::kThreads>(reinterpret_cast<Vector16*>(memory + offset),
                                           Packet::take(polled.packets[i], here + offset));
    });
    sync_warp();
    return true;
  }

  // The sum of this rank's tile and the peer's. Two numbers have the same sum in either order.
  VERBENA_DEVICE void add(const Coded& own, RawUnit (&raw)[kTileRows]) const {
    const Coded theirs = Tiles(find_tile_memory(), 1).load(0);
    sync_warp();
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      float sums[kUnitNumbers], unit[kUnitNumbers];
      Codec::decode_row(own, row, sums);
      Codec::decode_row(theirs, row, unit);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitNumbers; ++i) sums[i] = detail::add(sums[i], unit[i]);
      raw[row] = narrow_unit(type_, sums);
    }
  }

 private:
  using Tiles = CodedTiles<Codec, char, Space::kGeneric>;

  VERBENA_DEVICE char* find_tile(char* const (&slots)[2], uint32_t tile) const {
    return tile < most_tiles_ ? slots[0] + tile * kTileBytes : slots[1] + (tile - most_tiles_) * kTileBytes;
  }
  VERBENA_DEVICE uint64_t epoch_of(uint32_t tile) const { return epoch_ + (tile >= most_tiles_ ? 1 : 0); }
  // `body(i, offset)` for each packet of the lane.
  template <typename Body>
  VERBENA_DEVICE static void for_packets(const Body& body) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i * kWarpLanes * Packet::kBytes < kTileBytes; ++i) {
      const uint32_t offset = (i * kWarpLanes + lane()) * Packet::kBytes;
      if (offset < kTileBytes) body(i, offset);
    }
  }

  uint64_t note_bytes_, epoch_, sender_;
  uint32_t most_tiles_;
  DataType type_;
  const Rounding& rounding_;
  char* there_[2];
  char* here_[2];
};

}  // namespace detail

// `output` becomes the sum of both ranks' `input`, of bfloat16 or half, at any address; in place too. `calls`
// is a OneShot in the workspace of `context`; the group is a block of up to 16 warps.
template <typename Codec, typename Rounding = RoundToNearest, typename Calls, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_coded(const SymmContext& context, Calls& calls,
                                                         const char* input, char* output,
                                                         uint64_t length_bytes, DataType type,
                                                         const Rounding& rounding = {},
                                                         const Group& group = {}) {
  using Exchange = typename Calls::Exchange;
  using Messages = detail::CodedMessages<Codec, Rounding, Exchange>;
  const auto most_tiles = static_cast<uint32_t>(group.size() > detail::kMostCodedWarps * kWarpLanes
                                                    ? 0
                                                    : calls.capacity_bytes() / Messages::kTileBytes);
  const uint32_t warps = group.size() / kWarpLanes, first = group.rank() / kWarpLanes;
  RawUnit raw[kTileRows];
  return calls.template for_messages<2, 2>(
      length_bytes, kTileBytes, uint64_t{most_tiles} * kTileBytes, group,
      [&](uint64_t offset, uint32_t length) {
        if (first * kTileBytes < length) load_tile(input + offset, length, first, raw);
      },
      [&](const Exchange& exchange, uint64_t offset, uint32_t length) {
        const Messages messages(context, exchange, most_tiles, type, rounding);
        const uint32_t tiles = (length + kTileBytes - 1) / kTileBytes;
        Patience patience(context);
        bool have_come = true;
        typename Codec::Coded own{};
        typename Messages::Polled polled;
        // In each turn a tile is sent. The next one's numbers and the peer's tile before are asked for ahead
        // of need.
        for (uint32_t next = first; next < tiles + warps && have_come; next += warps) {
          const uint32_t before = next - warps;
          if (next != first) messages.poll(before, polled);
          typename Codec::Coded ahead{};
          if (next < tiles) ahead = messages.send(next, raw);
          if (next + warps < tiles) load_tile(input + offset, length, next + warps, raw);
          if (next != first) have_come = messages.receive(before, polled, patience);
          if (next != first && have_come) {
            RawUnit sums[kTileRows];
            messages.add(own, sums);
            store_tile(output + offset, length, before, sums);
          }
          own = ahead;
        }
        return exchange.conclude(group, have_come, patience);
      });
}

}  // namespace verbena::device

#endif
