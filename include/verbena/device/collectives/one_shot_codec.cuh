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
#include "verbena/device/warp_lines.cuh"

namespace verbena::device {

namespace detail {

// Up to two messages that are under way together, tile by tile: lines of a tile lie side by side.
template <typename Codec, typename Rounding, typename Exchange>
class CodedMessages {
 public:
  using Coded = typename Codec::Coded;
  using Lines = WarpLines<CodedTiles<Codec>::kBytes>;  // of a tile

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
    char* const memory = find_line_memory();
    Tiles(memory, 1).store(0, coded);
    Lines lines;
    lines.take(memory);
    const uint32_t call = tile >= most_tiles_ ? 1 : 0;
    lines.send((call == 0 ? there_[0] : there_[1]) + find_offset(tile), epoch_ + call);
    return coded;
  }

  // The peer's tile as it lies here now.
  VERBENA_DEVICE void poll(uint32_t tile, Lines& lines) const {
    lines.poll((tile < most_tiles_ ? here_[0] : here_[1]) + find_offset(tile));
  }
  // When it has come.
  VERBENA_DEVICE WaitResult receive(uint32_t tile, Lines& lines, Patience& patience) const {
    const uint64_t epoch = epoch_ + (tile >= most_tiles_ ? 1 : 0);
    bool is_polled = true;
    return Exchange::wait(patience, [&] {
      if (!is_polled) poll(tile, lines);
      is_polled = false;
      return lines.are_of(epoch);
    });
  }

  // The sum of this rank's tile and the peer's. Two numbers have the same sum in either order.
  VERBENA_DEVICE void add(const Coded& own, const Lines& lines, RawUnit (&raw)[kTileRows]) const {
    char* const memory = find_line_memory();
    lines.put(memory);
    const Coded theirs = Tiles(memory, 1).load(0);
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

  VERBENA_DEVICE uint32_t find_offset(uint32_t tile) const {
    return (tile >= most_tiles_ ? tile - most_tiles_ : tile) * Lines::kSlotBytes;
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
      group.size() > detail::kMostLineWarps * kWarpLanes ? 0 : lines / Messages::Lines::kLines);
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
        WaitResult mine = WaitResult::kReached;
        typename Codec::Coded own{};
        typename Messages::Lines polled;
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
