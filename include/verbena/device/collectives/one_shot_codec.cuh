// Quantised one-shot all-reduce between two ranks. Between two ranks, one-shot sends no more bytes than
// two-shot. Each rank encodes its whole tensor and sends it in packets. Both ranks decode the same bytes,
// including the bytes that they have encoded themselves, and add the elements in float. So both ranks get the
// same bits, and each addend is quantised once. docs/quantisation.md has the error bounds.
//
//   OneShot<> calls(workspace, block_index(), blocks);
//   status = all_reduce_quantised<Int4>(workspace.context, calls, input, output, length_bytes, type);
//   status = calls.finish();
//
// The tiles of a block are distributed over its warps, and no warp waits for another warp of the block.
#ifndef VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CODEC_CUH
#define VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CODEC_CUH

#include "verbena/device/collectives/coded_packets.cuh"
#include "verbena/device/collectives/one_shot.cuh"

namespace verbena::device {

namespace detail {

// Sends and receives up to two messages that are in flight at the same time, tile by tile. All lanes of a
// warp call these functions together.
template <typename Codec, typename Rounding, typename Exchange>
class CodedMessages {
 public:
  using Coded = typename Codec::Coded;
  using Polled = typename CodedPackets<Codec>::Polled;
  static constexpr uint32_t kTileBytes = CodedPackets<Codec>::kTileBytes;

  // @param max_tiles  max number of tiles of a message. Later tiles are in the second message
  // @param rounding  must outlive this object
  VERBENA_DEVICE CodedMessages(const SymmContext& context, const Exchange& exchange, uint32_t max_tiles,
                               DataType type, const Rounding& rounding)
      : peer_(1 - context.team_rank),
        packets_(exchange.data_bytes()),
        epoch_(exchange.epoch()),
        sender_((epoch_ << 1 | static_cast<uint64_t>(context.team_rank)) << 16 | exchange.block()),
        max_tiles_(max_tiles),
        type_(type),
        rounding_(rounding) {
    VERBENA_UNROLL
    for (uint32_t call = 0; call < 2; ++call) {
      there_[call] = exchange.find_slot_at(peer_, call);
      here_[call] = exchange.find_slot_of(peer_, call);
    }
  }

  // Encodes and sends a tile. Returns the encoded tile.
  VERBENA_DEVICE Coded send(uint32_t tile, const RawUnit (&raw)[kTileRows]) const {
    // For stochastic rounding, each rank, block, message and tile has a different random sequence.
    const Coded coded = encode_tile<Codec>(type_, raw, rounding_.in_tile(sender_ << 24 | tile));
    packets_.send(coded, tile_of(tile), epoch_of(tile), 1, [&](uint32_t) { return slot_of(there_, tile); });
    return coded;
  }
  // Loads the packets of the peer's tile, without waiting for them.
  VERBENA_DEVICE void poll(uint32_t tile, Polled& polled) const {
    packets_.poll(slot_of(here_, tile), tile_of(tile), polled);
  }
  // Waits for the peer's tile and adds it to this rank's tile. The order does not matter for the sum of two
  // elements.
  // @return false, in all lanes, if the tile did not arrive in time
  VERBENA_DEVICE bool add(uint32_t tile, Polled& polled, Patience& patience, const Coded& own,
                          RawUnit (&raw)[kTileRows]) const {
    Coded theirs;
    if (!packets_.receive(slot_of(here_, tile), tile_of(tile), epoch_of(tile), peer_, polled, patience,
                          theirs))
      return false;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      float sums[kUnitElements], unit[kUnitElements];
      Codec::decode_row(own, row, sums);
      Codec::decode_row(theirs, row, unit);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) sums[i] = detail::add(sums[i], unit[i]);
      raw[row] = narrow_unit(type_, sums);
    }
    return true;
  }

 private:
  // For a tile of either message, slot_of() returns the message's slot, tile_of() returns the index of the
  // tile in the message, and epoch_of() returns the epoch of the message.
  VERBENA_DEVICE char* slot_of(char* const (&slots)[2], uint32_t tile) const {
    return tile < max_tiles_ ? slots[0] : slots[1];
  }
  VERBENA_DEVICE uint32_t tile_of(uint32_t tile) const {
    return tile < max_tiles_ ? tile : tile - max_tiles_;
  }
  VERBENA_DEVICE uint64_t epoch_of(uint32_t tile) const { return epoch_ + (tile >= max_tiles_ ? 1 : 0); }

  int32_t peer_;
  CodedPackets<Codec> packets_;
  uint64_t epoch_, sender_;
  uint32_t max_tiles_;
  DataType type_;
  const Rounding& rounding_;
  char* there_[2];
  char* here_[2];
};

}  // namespace detail

// Writes the sum of both ranks' `input` to `output`, which may be `input` itself.
// @param calls  a OneShot over the workspace of `context`
// @param input, output  bfloat16 or half elements; need no alignment
// @param group  a block of up to 16 warps
template <typename Codec, typename Rounding = RoundToNearest, typename Calls, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_quantised(const SymmContext& context, Calls& calls,
                                                             const char* input, char* output,
                                                             uint64_t length_bytes, DataType type,
                                                             const Rounding& rounding = {},
                                                             const Group& group = {}) {
  using Exchange = typename Calls::Exchange;
  using Messages = detail::CodedMessages<Codec, Rounding, Exchange>;
  const auto max_tiles = static_cast<uint32_t>(
      group.size() > kMaxCodedWarps * kWarpLanes ? 0 : calls.capacity_bytes() / Messages::kTileBytes);
  const uint32_t warps = group.size() / kWarpLanes, first = group.rank() / kWarpLanes;
  RawUnit raw[kTileRows];
  return calls.template for_messages<2, 2>(
      length_bytes, kTileBytes, uint64_t{max_tiles} * kTileBytes, group,
      [&](uint64_t offset, uint32_t length) {
        if (first * kTileBytes < length) load_tile(input + offset, length, first, raw);
      },
      [&](const Exchange& exchange, uint64_t offset, uint32_t length) {
        const Messages messages(context, exchange, max_tiles, type, rounding);
        const uint32_t tiles = (length + kTileBytes - 1) / kTileBytes;
        Patience patience(context);
        bool have_come = true;
        typename Codec::Coded own{};
        typename Messages::Polled polled;
        // Each iteration sends one tile and adds the previous tile. The loads of the next tile's elements and
        // of the peer's previous tile are issued early.
        for (uint32_t next = first; next < tiles + warps && have_come; next += warps) {
          const uint32_t before = next - warps;
          if (next != first) messages.poll(before, polled);
          typename Codec::Coded ahead{};
          if (next < tiles) ahead = messages.send(next, raw);
          if (next + warps < tiles) load_tile(input + offset, length, next + warps, raw);
          if (next != first) {
            RawUnit sums[kTileRows];
            have_come = messages.add(before, polled, patience, own, sums);
            if (have_come) store_tile(output + offset, length, before, sums);
          }
          own = ahead;
        }
        return exchange.conclude(group, have_come, patience);
      });
}

}  // namespace verbena::device

#endif
