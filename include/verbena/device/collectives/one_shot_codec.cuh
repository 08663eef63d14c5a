// All-reduces in few bits of two ranks, in one shot, by which they send no more than by two: each codes its
// whole tensor and sends it in packets of 64 bytes, and both decode the same bytes, their own too, and add
// them up in float. So the same bits on both, and one quantisation of each term: docs/quantisation.md has the
// bounds.
//
//   OneShot<Packet64> calls(workspace, block_index(), blocks);
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

inline constexpr uint32_t kMostCodedWarps = 16, kMostTileLines = 19;  // of a block; of a tile of 8 bits

// A warp's memory for one coded tile, in which words change lanes.
VERBENA_DEVICE char* find_coded_tile() {
  constexpr uint32_t kBytes = (kMostTileLines * Packet64::kLineData + 15) / 16 * 16;
#if VERBENA_EMULATED
  static const char key = 0;
  char* const tiles =
      static_cast<char*>(emulation::shared_memory(&key, kMostCodedWarps * kBytes, alignof(Vector16)));
#else
  VERBENA_SHARED alignas(Vector16) char tiles[kMostCodedWarps * kBytes];
#endif
  return tiles + thread_index() / kWarpLanes * kBytes;
}

// Up to two messages that are under way together, tile by tile: lines of a tile lie side by side.
template <typename Codec, typename Rounding, typename Exchange>
class CodedMessages {
 public:
  using Coded = typename Codec::Coded;
  static constexpr uint32_t kLines =  // of a tile
      (CodedTiles<Codec>::kBytes + Packet64::kLineData - 1) / Packet64::kLineData;
  static constexpr uint32_t kPackets = kLines * Packet64::kLanes;
  static_assert(kLines <= kMostTileLines, "verbena: a tile fits in the memory of a warp");
  static constexpr uint32_t kEach = (kPackets + kWarpLanes - 1) / kWarpLanes;  // packets of a lane
  struct Polled {
    Halves packets[kEach];
  };

  // The first message has up to `most_tiles`. `rounding` outlives this.
  VERBENA_DEVICE CodedMessages(const SymmContext& context, const Exchange& exchange, uint32_t most_tiles,
                               DataType type, const Rounding& rounding)
      : peer(1 - context.team_rank),
        epoch_(exchange.epoch()),
        sender_((epoch_ << 1 | static_cast<uint64_t>(context.team_rank)) << 16 | exchange.block()),
        most_tiles_(most_tiles),
        type_(type),
        rounding_(rounding) {
    VERBENA_UNROLL
    for (uint32_t call = 0; call < 2; ++call) {
      there_[call] = exchange.find_slot_at(peer, call) + lane() * Packet64::kBytes;
      here_[call] = exchange.find_slot_of(peer, call) + lane() * Packet64::kBytes;
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
    char* const memory = find_coded_tile();
    Tiles(memory, 1).store(0, coded);
    sync_warp();
    const uint32_t call = tile >= most_tiles_ ? 1 : 0;
    char* const there = (call == 0 ? there_[0] : there_[1]) + find_offset(tile);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) {
      Halves data{};
      if (is_there(i)) data = Packet64::load_data<Space::kGeneric>(memory, i * kWarpLanes + lane());
      Packet64::send(there + i * kWarpLanes * Packet64::kBytes, data, epoch_ + call, is_there(i));
    }
    sync_warp();
    return coded;
  }

  // The peer's tile as it lies here now.
  VERBENA_DEVICE void poll(uint32_t tile, Polled& polled) const {
    const char* const here = (tile < most_tiles_ ? here_[0] : here_[1]) + find_offset(tile);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i)
      polled.packets[i] = Packet64::poll(here + i * kWarpLanes * Packet64::kBytes, is_there(i));
  }
  // When it has come.
  VERBENA_DEVICE WaitResult receive(uint32_t tile, Polled& polled, Patience& patience) const {
    const uint64_t epoch = epoch_ + (tile >= most_tiles_ ? 1 : 0);
    bool is_polled = true;
    return Exchange::wait(patience, [&] {
      if (!is_polled) poll(tile, polled);
      is_polled = false;
      bool have_come = true;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kEach; ++i)
        have_come = Packet64::is_of(polled.packets[i], epoch, is_there(i)) && have_come;
      return have_come;
    });
  }

  // The sum of this rank's tile and the peer's. Two numbers have the same sum in either order.
  VERBENA_DEVICE void add(const Coded& own, const Polled& polled, RawUnit (&raw)[kTileRows]) const {
    char* const memory = find_coded_tile();
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) {
      if (is_there(i))
        Packet64::store_data<Space::kGeneric>(memory, i * kWarpLanes + lane(),
                                              Packet64::open(polled.packets[i]));
    }
    sync_warp();
    const Coded theirs = Tiles(memory, 1).load(0);
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

  // Whether a tile has the lane's i-th packet.
  VERBENA_DEVICE static bool is_there(uint32_t i) {
    return (i + 1) * kWarpLanes <= kPackets || i * kWarpLanes + lane() < kPackets;
  }
  VERBENA_DEVICE uint32_t find_offset(uint32_t tile) const {
    return (tile >= most_tiles_ ? tile - most_tiles_ : tile) * kPackets * Packet64::kBytes;
  }

  uint64_t epoch_, sender_;
  uint32_t most_tiles_;
  DataType type_;
  const Rounding& rounding_;
  char* there_[2];
  const char* here_[2];
};

}  // namespace detail

// `output` becomes the sum of both ranks' `input`, of bfloat16 or half, at any address; in place too. `calls`
// is a OneShot of packets of 64 bytes in the workspace of `context`; the group is a block of up to 16 warps.
template <typename Codec, typename Rounding = RoundToNearest, typename Calls, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_coded(const SymmContext& context, Calls& calls,
                                                         const char* input, char* output,
                                                         uint64_t length_bytes, DataType type,
                                                         const Rounding& rounding = {},
                                                         const Group& group = {}) {
  using Exchange = typename Calls::Exchange;
  using Messages = detail::CodedMessages<Codec, Rounding, Exchange>;
  const uint64_t lines = calls.capacity_bytes() / Packet64::kLineData;
  const auto most_tiles = static_cast<uint32_t>(
      group.size() > detail::kMostCodedWarps * kWarpLanes ? 0 : lines / Messages::kLines);
  return calls.template for_messages<2, 2>(
      length_bytes, kTileBytes, uint64_t{most_tiles} * kTileBytes, group,
      [&](const Exchange& exchange, uint64_t offset, uint32_t length) {
        const Messages messages(context, exchange, most_tiles, type, rounding);
        const uint32_t tiles = (length + kTileBytes - 1) / kTileBytes, warps = group.size() / kWarpLanes;
        const uint32_t first = group.rank() / kWarpLanes;
        Patience patience(context);
        WaitResult mine = WaitResult::kReached;
        RawUnit raw[kTileRows];
        typename Codec::Coded own{};
        typename Messages::Polled polled;
        if (first < tiles) load_tile(input + offset, length, first, raw);
        // In each turn a tile is sent. The next one's numbers and the peer's tile before are asked for ahead
        // of need.
        for (uint32_t next = first; next < tiles + warps && mine == WaitResult::kReached; next += warps) {
          const uint32_t before = next - warps;
          if (next != first) messages.poll(before, polled);
          typename Codec::Coded ahead{};
          if (next < tiles) ahead = messages.send(next, raw);
          if (next + warps < tiles) load_tile(input + offset, length, next + warps, raw);
          if (next != first) mine = messages.receive(before, polled, patience);
          if (next != first && mine == WaitResult::kReached) {
            RawUnit sums[kTileRows];
            messages.add(own, polled, sums);
            store_tile(output + offset, length, before, sums);
          }
          own = ahead;
        }
        return exchange.conclude(group, mine, messages.peer);
      });
}

}  // namespace verbena::device

#endif
