// Quantised two-shot all-reduce in packets. Each rank encodes the addends that it sends. The owner of a
// share, which is the rank that sums the share, adds the addends in float: first its own addend, which is not
// quantised, and then the addends of the other ranks, starting with the next rank. The owner encodes the sum
// once, and all ranks, including the owner, decode the same bytes. So all ranks get the same bits, and a
// result is quantised twice (its addends once, its sum once), whatever the number of ranks is.
// docs/quantisation.md has the error bounds.
//
//   TwoShot<> calls(workspace, block_index(), blocks);
//   status = all_reduce_quantised_two_shot<Int4, Int8>(workspace.context, calls, input, output,
//                                                     length_bytes, type);
//   status = calls.finish();
//
// The tiles of a block are distributed over its warps, and no warp waits for another warp of the block.
#ifndef VERBENA_DEVICE_COLLECTIVES_TWO_SHOT_CODEC_CUH
#define VERBENA_DEVICE_COLLECTIVES_TWO_SHOT_CODEC_CUH

#include "verbena/device/collectives/coded_packets.cuh"
#include "verbena/device/collectives/two_shot.cuh"

namespace verbena::device {

namespace detail {

// A round of a block. In a round, the block processes some tiles of each rank's share. Two calls are in
// flight: addends are sent in the first call, with the codec Addends, and sums are sent in the second call,
// with the codec Sums.
template <typename Addends, typename Sums, typename Rounding, typename Exchange>
class CodedShares {
 public:
  // The tensor, and the tiles of each share that the round processes: `count` tiles, starting with tile
  // `first` of the share.
  struct Tensor {
    const char* input;
    char* output;
    uint64_t length_bytes;
    uint32_t share_tiles, first, count;
    DataType type;
  };

  // All arguments must outlive this object.
  VERBENA_DEVICE CodedShares(const SymmContext& context, const Exchange& exchange, const Tensor& tensor,
                             const Rounding& rounding)
      : exchange_(exchange),
        tensor_(tensor),
        rounding_(rounding),
        me_(context.team_rank),
        size_(context.team_size),
        tiles_(static_cast<uint32_t>((tensor.length_bytes + device::kTileBytes - 1) / device::kTileBytes)),
        addends_(exchange.data_bytes()),
        sums_(exchange.data_bytes()) {}

  // Runs the round in steps. In each step, each warp processes one tile of each share. In step s, a block
  // sends its tiles' addends of step s and their sums of step s-1, and receives the sums of step s-2, so that
  // links and arithmetic units are busy at the same time. A step waits only for packets that the other ranks
  // send in earlier steps, so there is no deadlock.
  // @return false if a packet did not arrive in time; in this case `patience` contains the sender
  template <typename Group>
  VERBENA_DEVICE bool run(const Group& group, Patience& patience) const {
    const uint32_t warp = group.rank() / kWarpLanes, warps = group.size() / kWarpLanes;
    const Stride stride = find_stride(warps);
    Pair sent = find_first(warp), taken = sent;
    for (uint32_t begin = 0; begin < tensor_.count + 2 * warps; begin += warps) {
      send_addends(sent, stride, begin + warps);
      if (begin >= warps && !reduce_addends(begin - warps + warp, patience)) return false;
      if (begin >= 2 * warps && !take_sums(taken, stride, begin - warps, patience)) return false;
    }
    return true;
  }

 private:
  // A pair of a peer and a tile. Pairs are ordered by tile, and pairs with the same tile by peer, starting
  // with the next rank. The pairs are distributed over the warps.
  struct Pair {
    uint32_t turn;
    int32_t member;
    uint32_t tile;
  };
  // The distance from one pair of a warp to the next pair of the warp.
  struct Stride {
    uint32_t turns, tiles;
  };

  // Sends the addends of the warp's pairs, starting with pair `next`, for tiles below `end`.
  VERBENA_DEVICE void send_addends(Pair& next, const Stride& stride, uint32_t end) const {
    RawUnit raw[kTileRows];
    if (is_before(next, end)) load(next, raw);
    while (is_before(next, end)) {
      const Pair pair = next;
      typename Addends::Coded coded{};
      if (pair.tile < count_tiles(pair.member))
        coded = encode_tile<Addends>(tensor_.type, raw,
                                     choose_rounding(static_cast<uint32_t>(pair.member), pair.tile));
      // Loads the elements of the next pair before sending the elements of this pair.
      next = step(pair, stride);
      if (is_before(next, end)) load(next, raw);
      if (pair.tile >= count_sent(pair.member)) continue;
      addends_.send(coded, pair.tile, exchange_.epoch(), 1,
                    [&](uint32_t) { return exchange_.find_slot_at(pair.member); });
    }
  }

  VERBENA_DEVICE bool reduce_addends(uint32_t tile, Patience& patience) const {
    if (tile >= count_sent(me_)) return true;
    const bool is_there = tile < count_tiles(me_);
    TileElements sums{};
    typename CodedPackets<Addends>::Polled polled;
    if (count_peers() != 0) addends_.poll(exchange_.find_slot_of(find_peer(0)), tile, polled);
    RawUnit raw[kTileRows];
    if (is_there) load(me_, tile, raw);
    if (is_there) widen_tile(tensor_.type, raw, sums);
    VERBENA_UNROLL_BY(1)
    for (uint32_t k = 0; k < count_peers(); ++k) {
      const int32_t member = find_peer(k);
      typename Addends::Coded coded{};
      if (!addends_.receive(exchange_.find_slot_of(member), tile, exchange_.epoch(), member, polled, patience,
                            coded))
        return false;
      // Loads the packets of the next rank before adding the packets of this rank.
      if (k + 1 < count_peers()) addends_.poll(exchange_.find_slot_of(find_peer(k + 1)), tile, polled);
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        float unit[kUnitElements];
        Addends::decode_row(coded, row, unit);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitElements; ++i) sums.of[row][i] = detail::add(sums.of[row][i], unit[i]);
      }
    }
    typename Sums::Coded result{};
    if (is_there) result = Sums::encode(sums, choose_rounding(static_cast<uint32_t>(size_), tile));
    sums_.send(result, tile, exchange_.epoch() + 1, count_peers(),
               [&](uint32_t k) { return exchange_.find_slot_at(find_peer(k), 1); });
    if (!is_there) return true;
    decode_tile<Sums>(tensor_.type, result, raw);
    // If output and input are the same, lanes after the end of the tensor have loaded the last element, which
    // another lane now overwrites. This is safe, because the lanes have synced since the load.
    store(me_, tile, raw);
    return true;
  }

  VERBENA_DEVICE bool take_sums(Pair& next, const Stride& stride, uint32_t end, Patience& patience) const {
    typename CodedPackets<Sums>::Polled polled;
    poll_sums(next, end, polled);
    while (is_before(next, end)) {
      const Pair pair = next;
      next = step(pair, stride);
      typename CodedPackets<Sums>::Polled ahead;
      poll_sums(next, end, ahead);
      typename Sums::Coded coded{};
      if (pair.tile < count_sent(pair.member)) {
        if (!sums_.receive(exchange_.find_slot_of(pair.member, 1), pair.tile, exchange_.epoch() + 1,
                           pair.member, polled, patience, coded))
          return false;
        RawUnit raw[kTileRows];
        decode_tile<Sums>(tensor_.type, coded, raw);
        if (pair.tile < count_tiles(pair.member)) store(pair.member, pair.tile, raw);
      }
      polled = ahead;
    }
    return true;
  }

  // count_tiles() returns the number of the round's tiles in a member's share. count_sent() returns the
  // number of tiles that are sent. At least one tile is sent, because each rank must receive a message from
  // every other rank.
  VERBENA_DEVICE uint32_t count_tiles(int32_t member) const {
    const uint32_t first = first_tile(member);
    const uint32_t left = first < tiles_ ? tiles_ - first : 0;
    return left < tensor_.count ? left : tensor_.count;
  }
  VERBENA_DEVICE uint32_t count_sent(int32_t member) const {
    const uint32_t tiles = count_tiles(member);
    return tiles == 0 ? 1 : tiles;  // FAULT(empty_coded_share_is_silent)
  }
  VERBENA_DEVICE uint32_t first_tile(int32_t member) const {
    return static_cast<uint32_t>(member) * tensor_.share_tiles + tensor_.first;
  }

  VERBENA_DEVICE uint32_t count_peers() const { return static_cast<uint32_t>(size_ - 1); }
  VERBENA_DEVICE int32_t find_peer(uint32_t turn) const {
    const int32_t member = me_ + 1 + static_cast<int32_t>(turn);
    return member < size_ ? member : member - size_;
  }
  VERBENA_DEVICE Pair find_first(uint32_t warp) const {
    if (count_peers() == 0) return {0, me_, tensor_.count};
    const uint32_t turn = warp % count_peers();
    return {turn, find_peer(turn), warp / count_peers()};
  }
  VERBENA_DEVICE Stride find_stride(uint32_t warps) const {
    if (count_peers() == 0) return {0, 0};
    return {warps % count_peers(), warps / count_peers()};
  }
  VERBENA_DEVICE Pair step(const Pair& from, const Stride& stride) const {
    const uint32_t turn = from.turn + stride.turns;
    const bool is_behind = turn >= count_peers();
    const uint32_t its_turn = is_behind ? turn - count_peers() : turn;
    return {its_turn, find_peer(its_turn), from.tile + stride.tiles + (is_behind ? 1 : 0)};
  }

  VERBENA_DEVICE bool is_before(const Pair& pair, uint32_t end) const {
    return pair.tile < end && pair.tile < tensor_.count;
  }

  VERBENA_DEVICE void poll_sums(const Pair& pair, uint32_t end,
                                typename CodedPackets<Sums>::Polled& polled) const {
    if (is_before(pair, end) && pair.tile < count_sent(pair.member))
      sums_.poll(exchange_.find_slot_of(pair.member, 1), pair.tile, polled);
  }

  VERBENA_DEVICE void load(int32_t member, uint32_t tile, RawUnit (&raw)[kTileRows]) const {
    load_tile(tensor_.input, tensor_.length_bytes, first_tile(member) + tile, raw);
  }
  VERBENA_DEVICE void load(const Pair& pair, RawUnit (&raw)[kTileRows]) const {
    if (pair.tile < count_tiles(pair.member)) load(pair.member, pair.tile, raw);
  }
  VERBENA_DEVICE void store(int32_t member, uint32_t tile, const RawUnit (&raw)[kTileRows]) const {
    store_tile(tensor_.output, tensor_.length_bytes, first_tile(member) + tile, raw);
  }
  // For stochastic rounding, each rank, block, call, message and tile has a different random sequence.
  VERBENA_DEVICE Rounding choose_rounding(uint32_t message, uint32_t tile) const {
    const uint64_t sender = (exchange_.epoch() << 4 | static_cast<uint64_t>(me_)) << 16 | exchange_.block();
    return rounding_.in_tile((sender << 5 | message) << 19 ^ tile);
  }

  const Exchange& exchange_;
  const Tensor& tensor_;
  const Rounding& rounding_;
  const int32_t me_, size_;
  const uint32_t tiles_;  // number of tiles of the tensor
  const CodedPackets<Addends> addends_;
  const CodedPackets<Sums> sums_;
};

}  // namespace detail

// Writes the sum of all ranks' `input` to `output`, which may be `input` itself.
// @param calls  a TwoShot over the workspace of `context`
// @param input, output  bfloat16 or half elements; need no alignment
// @param group  a block of up to 16 warps
template <typename Addends, typename Sums = Addends, typename Rounding = RoundToNearest, typename Calls,
          typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_quantised_two_shot(
    const SymmContext& context, Calls& calls, const char* input, char* output, uint64_t length_bytes,
    DataType type, const Rounding& rounding = {}, const Group& group = {}) {
  using Exchange = typename Calls::Exchange;
  using Shares = detail::CodedShares<Addends, Sums, Rounding, Exchange>;
  constexpr uint32_t kOfAddends = CodedPackets<Addends>::kTileBytes, kOfSums = CodedPackets<Sums>::kTileBytes;
  constexpr uint32_t kOfTile = kOfAddends > kOfSums ? kOfAddends : kOfSums;
  const uint64_t max_tiles =
      group.size() > kMaxCodedWarps * kWarpLanes ? 0 : calls.capacity_bytes() / kOfTile;
  const uint64_t tiles = (length_bytes + kTileBytes - 1) / kTileBytes;
  const auto size = static_cast<uint64_t>(context.team_size);
  const auto share_tiles = static_cast<uint32_t>((tiles + size - 1) / size);
  return calls.for_rounds(share_tiles, max_tiles, kMaxCodedWarps, group,
                          [&](const Exchange& exchange, uint64_t first, uint64_t count) {
                            const typename Shares::Tensor tensor = {input,
                                                                    output,
                                                                    length_bytes,
                                                                    share_tiles,
                                                                    static_cast<uint32_t>(first),
                                                                    static_cast<uint32_t>(count),
                                                                    type};
                            const Shares shares(context, exchange, tensor, rounding);
                            Patience patience(context);
                            const bool have_come = shares.run(group, patience);
                            return exchange.conclude(group, have_come, patience);
                          });
}

}  // namespace verbena::device

#endif
