// All-reduce in few bits: a codec for bulk.cuh. Each rank codes the terms that it sends, a share's owner adds
// them up in float, in the order of ranks and its own as they are, and codes the sum once; every rank decodes
// the same bytes, the owner too. So the same bits on all ranks, and two quantisations, whatever the number of
// ranks: docs/quantisation.md has the bounds.
//
//   Bulk<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, length_bytes, CodedSums<Int4, Int8>{DataType::kBfloat16});
//   status = calls.finish();
#ifndef VERBENA_DEVICE_COLLECTIVES_BULK_CODEC_CUH
#define VERBENA_DEVICE_COLLECTIVES_BULK_CODEC_CUH

#include "verbena/device/collectives/bulk.cuh"
#include "verbena/device/collectives/codec_float8.cuh"
#include "verbena/device/collectives/codec_integer.cuh"

namespace verbena::device {

// Terms travel by one codec, sums by the other. Tensors are of bfloat16 or half.
template <typename Terms, typename Sums = Terms, typename Rounding = RoundToNearest>
struct CodedSums {
  DataType type;
  Rounding rounding{};

  VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kTileBytes; }
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_bytes(uint32_t room_bytes) {
    constexpr uint32_t kOfTerms = CodedTiles<Terms>::kBytes, kOfSums = CodedTiles<Sums>::kBytes;
    return room_bytes / (kOfTerms > kOfSums ? kOfTerms : kOfSums) * unit_bytes();
  }

  template <int kRanks, typename Group>
  VERBENA_DEVICE void send_terms(const BulkChunk& chunk, const Group& group) const {
    for_tiles(chunk, group, [&](int32_t peer, uint32_t tile) {
      const Rounding of_tile = choose_rounding(chunk, peer, tile);
      RawUnit raw[kTileRows];
      load(chunk, peer, tile, raw);
      typename Terms::Coded coded{};
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        float unit[kUnitNumbers];
        widen_unit(type, raw[row], unit);
        Terms::encode_row(unit, row, of_tile, coded);
      }
      CodedTiles<Terms>(chunk.slot_at(peer), count_tiles(chunk, peer)).store(tile, coded);
    });
  }

  template <int kRanks, typename Group>
  VERBENA_DEVICE SymmStatus reduce_terms(const BulkChunk& terms, const BulkChunk& sums,
                                         const Group& group) const {
    const int32_t me = sums.context.team_rank;
    const uint32_t tiles = count_tiles(terms, me);
    for (uint32_t tile = group.rank() / kWarpLanes; tile < tiles; tile += group.size() / kWarpLanes) {
      RawUnit raw[kTileRows];
      const auto coded = reduce_tile<kRanks>(terms, tile, tiles, raw);
      for (uint32_t turn = 0; turn < sums.count_peers(); ++turn)
        CodedTiles<Sums>(sums.slot_at(sums.find_peer(turn)), tiles).store(tile, coded);
      decode(coded, raw);
      // In place: lanes behind the end have loaded the last number, which another lane writes.
      sync_warp();
      store(sums, me, tile, raw);
    }
    return SymmStatus::kDone;
  }

  template <int kRanks, typename Group>
  VERBENA_DEVICE void take_sums(const BulkChunk& chunk, const Group& group) const {
    for_tiles(chunk, group, [&](int32_t peer, uint32_t tile) {
      RawUnit raw[kTileRows];
      decode(CodedTiles<Sums, const char>(chunk.slot_of(peer), count_tiles(chunk, peer)).load(tile), raw);
      store(chunk, peer, tile, raw);
    });
  }

 private:
  VERBENA_DEVICE static uint32_t count_tiles(const BulkChunk& chunk, int32_t member) {
    return (chunk.length(member) + unit_bytes() - 1) / unit_bytes();
  }
  // By warps, the peers in turn.
  template <typename Group, typename Body>
  VERBENA_DEVICE static void for_tiles(const BulkChunk& chunk, const Group& group, const Body& body) {
    // Rank 0's share is the longest.
    const uint32_t peers = chunk.count_peers(), all = count_tiles(chunk, 0) * peers;
    for (uint32_t i = group.rank() / kWarpLanes; i < all; i += group.size() / kWarpLanes) {
      const int32_t peer = chunk.find_peer(i % peers);
      const uint32_t tile = i / peers;
      if (tile < count_tiles(chunk, peer)) body(peer, tile);
    }
  }

  // Adds up a tile of this rank's share, in the order of ranks; the loads of several ranks are under way
  // together. `raw` serves for this rank's own.
  template <int kRanks>
  VERBENA_DEVICE typename Sums::Coded reduce_tile(const BulkChunk& terms, uint32_t tile, uint32_t tiles,
                                                  RawUnit (&raw)[kTileRows]) const {
    constexpr int32_t kAtOnce = kRanks == 0 ? 4 : kRanks;
    const int32_t me = terms.context.team_rank, size = kRanks == 0 ? terms.context.team_size : kRanks;
    const Rounding of_tile = choose_rounding(terms, size, tile);
    typename Sums::Coded result{};
    float sums[kTileRows][kUnitNumbers] = {};
    VERBENA_UNROLL_BY(1)
    for (int32_t first = 0; first < size; first += kAtOnce) {
      typename Terms::Coded coded[kAtOnce];
      VERBENA_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (first + i < size && first + i != me)
          coded[i] = CodedTiles<Terms, const char>(terms.slot_of(first + i), tiles).load(tile);
      }
      if (me >= first && me < first + kAtOnce) load(terms, me, tile, raw);
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if (first + i >= size) break;
          float unit[kUnitNumbers];
          if (first + i == me) {
            widen_unit(type, raw[row], unit);
          } else {
            Terms::decode_row(coded[i], row, unit);
          }
          VERBENA_UNROLL
          for (uint32_t k = 0; k < kUnitNumbers; ++k)
            sums[row][k] = first + i == 0 ? unit[k] : detail::add(sums[row][k], unit[k]);
        }
        if (first + kAtOnce >= size) Sums::encode_row(sums[row], row, of_tile, result);
      }
    }
    return result;
  }

  VERBENA_DEVICE void decode(const typename Sums::Coded& coded, RawUnit (&raw)[kTileRows]) const {
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      float unit[kUnitNumbers];
      Sums::decode_row(coded, row, unit);
      raw[row] = narrow_unit(type, unit);
    }
  }

  // By chance each rank, call, chunk and message has another sequence.
  VERBENA_DEVICE Rounding choose_rounding(const BulkChunk& chunk, int32_t message, uint32_t tile) const {
    constexpr uint64_t kMost = 2 * kMostExchangeRanks;
    const uint64_t sender = chunk.number * kMost + static_cast<uint64_t>(chunk.context.team_rank);
    return rounding.in_tile((sender * kMost + static_cast<uint64_t>(message)) << 24 | tile);
  }

  VERBENA_DEVICE static void load(const BulkChunk& chunk, int32_t member, uint32_t tile,
                                  RawUnit (&raw)[kTileRows]) {
    load_tile(chunk.input + chunk.begin(member), chunk.length(member), tile, raw);
  }
  VERBENA_DEVICE static void store(const BulkChunk& chunk, int32_t member, uint32_t tile,
                                   const RawUnit (&raw)[kTileRows]) {
    store_tile(chunk.output + chunk.begin(member), chunk.length(member), tile, raw);
  }
};

}  // namespace verbena::device

#endif
