// All-reduces in few bits in one shot, for two ranks, who send no more in that way than in two: each codes
// its whole tensor and sends it to all others, in packets of 64 bytes, and all decode the same bytes, their
// own too, and add them up in float, in the order of ranks. So the same bits on all ranks, and one
// quantisation of each term: docs/quantisation.md has the bounds.
//
//   OneShot<Packet64> calls(workspace, block_index(), blocks);
//   status = all_reduce_coded<Int4>(workspace.context, calls, input, output, length_bytes, type);
//   status = calls.finish();
//
// Warps share out a block's tiles, and none waits for another: each sends its next tile before it looks for
// the peers' packets of the one before.
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

// A message tile by tile; `input` and `output` are the part of the tensors that it has.
template <typename Codec, typename Rounding, typename Exchange>
struct CodedMessage {
  using Coded = typename Codec::Coded;
  static constexpr uint32_t kLines =  // of a tile
      (CodedTiles<Codec>::kBytes + Packet64::kLineData - 1) / Packet64::kLineData;
  static constexpr uint32_t kPackets = kLines * Packet64::kLanes;
  static_assert(kLines <= kMostTileLines, "verbena: a tile fits in the memory of a warp");

  const SymmContext& context;
  const Exchange& exchange;
  const char* input;
  char* output;
  uint32_t length_bytes;
  DataType type;
  const Rounding& rounding;

  VERBENA_DEVICE Coded send(uint32_t tile) const {
    RawUnit raw[kTileRows];
    load_tile(input, length_bytes, tile, raw);
    Coded coded{};
    const Rounding of_tile = choose_rounding(tile);
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      float unit[kUnitNumbers];
      widen_unit(type, raw[row], unit);
      Codec::encode_row(unit, row, of_tile, coded);
    }
    char* const memory = find_coded_tile();
    Tiles(memory, 1).store(0, coded);
    sync_warp();
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t packet = find_packet(i);
      Halves data{};
      if (packet < kPackets) data = Packet64::load_data<Space::kGeneric>(memory, packet);
      exchange.send_packet_to_all(tile * kPackets + packet, data, packet < kPackets);
    }
    sync_warp();
    return coded;
  }

  // `own`: what send() has returned for the tile.
  VERBENA_DEVICE WaitResult receive(uint32_t tile, const Coded& own, Patience& patience,
                                    int32_t& late) const {
    float sums[kTileRows][kUnitNumbers] = {};
    VERBENA_UNROLL_BY(1)
    for (int32_t member = 0; member < context.team_size; ++member) {
      Coded coded = own;
      if (member != context.team_rank) {
        const WaitResult result = take_tile(member, tile, patience, coded);
        late = member;
        if (result != WaitResult::kReached) return result;
      }
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        float unit[kUnitNumbers];
        Codec::decode_row(coded, row, unit);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitNumbers; ++i)
          sums[row][i] = member == 0 ? unit[i] : add(sums[row][i], unit[i]);
      }
    }
    RawUnit raw[kTileRows];
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) raw[row] = narrow_unit(type, sums[row]);
    store_tile(output, length_bytes, tile, raw);
    return WaitResult::kReached;
  }

 private:
  using Tiles = CodedTiles<Codec, char, Space::kGeneric>;
  static constexpr uint32_t kEach = (kPackets + kWarpLanes - 1) / kWarpLanes;  // of a lane

  VERBENA_DEVICE static uint32_t find_packet(uint32_t i) { return i * kWarpLanes + lane(); }

  VERBENA_DEVICE WaitResult take_tile(int32_t member, uint32_t tile, Patience& patience, Coded& coded) const {
    uint32_t index[kEach], which = 0;
    Halves data[kEach];
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) {
      index[i] = tile * kPackets + find_packet(i);
      if (find_packet(i) < kPackets) which |= 1u << i;
    }
    const WaitResult result = exchange.receive_several(member, index, which, patience, data);
    if (result != WaitResult::kReached) return result;
    char* const memory = find_coded_tile();
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kEach; ++i) {
      if ((which >> i & 1) != 0) Packet64::store_data<Space::kGeneric>(memory, find_packet(i), data[i]);
    }
    sync_warp();
    coded = Tiles(memory, 1).load(0);
    sync_warp();
    return WaitResult::kReached;
  }

  // By chance each rank, block, message and tile has another sequence.
  VERBENA_DEVICE Rounding choose_rounding(uint32_t tile) const {
    const uint64_t sender = exchange.epoch() * kMostExchangeRanks + static_cast<uint64_t>(context.team_rank);
    return rounding.in_tile((sender << 16 | exchange.block()) << 24 | tile);
  }
};

}  // namespace detail

// `output` becomes the sum of all ranks' `input`, of bfloat16 or half, at any address; in place too. `calls`
// is a OneShot of packets of 64 bytes in the workspace of `context`; the group is a block of up to 16 warps.
template <typename Codec, typename Rounding = RoundToNearest, typename Calls, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_coded(const SymmContext& context, Calls& calls,
                                                         const char* input, char* output,
                                                         uint64_t length_bytes, DataType type,
                                                         const Rounding& rounding = {},
                                                         const Group& group = {}) {
  using Exchange = typename Calls::Exchange;
  using Message = detail::CodedMessage<Codec, Rounding, Exchange>;
  const uint64_t lines = calls.capacity_bytes() / Packet64::kLineData;
  const uint64_t most_bytes =
      group.size() > detail::kMostCodedWarps * kWarpLanes ? 0 : lines / Message::kLines * kTileBytes;
  return calls.for_messages(
      length_bytes, kTileBytes, most_bytes, group,
      [&](const Exchange& exchange, uint64_t offset, uint32_t length) {
        const Message message{context, exchange, input + offset, output + offset, length, type, rounding};
        const uint32_t tiles = (length + kTileBytes - 1) / kTileBytes, warps = group.size() / kWarpLanes;
        Patience patience(context);
        WaitResult mine = WaitResult::kReached;
        int32_t late = 0;
        const uint32_t first = group.rank() / kWarpLanes;
        typename Codec::Coded own{};
        // One place that sends: the loop's code is long.
        for (uint32_t next = first; next < tiles + warps && mine == WaitResult::kReached; next += warps) {
          typename Codec::Coded ahead{};
          if (next < tiles) ahead = message.send(next);
          if (next != first) mine = message.receive(next - warps, own, patience, late);
          own = ahead;
        }
        return exchange.conclude(group, mine, late);
      });
}

}  // namespace verbena::device

#endif
