// The reductions and broadcasts of bulk.cuh, and their codecs. In these collectives, unlike in an exchange, a
// rank sends data that depends on data that it has received.
//
// An all-reduce is two-shot: rank r sums share r of each chunk, and sends the sum to all ranks.
// bulk_slots.cuh describes slots and flags. In step s, a block does three things: it sends the addends of
// chunk s; it sums its share of chunk s-1 and sends the sums; and it stores the sums of chunk s-2. No message
// is needed to free a slot, because the flags of later chunks show that the slot is free:
//   - At rank q, the addends of chunk s overwrite the addends of chunk s-4. When a rank sends the addends of
//     chunk s, it has received q's addends of chunk s-2. Rank q sent these after it had summed chunk s-4.
//   - At rank q, the sums of chunk s overwrite the sums of chunk s-4. When a rank sends the sums of chunk s,
//     it has received q's addends of chunk s. Rank q sent these after it had stored the sums of chunk s-3.
// Some codecs have a lag (AcrossHosts). In step s, such a codec begins to reduce chunk s-1, finishes reducing
// chunk s-2 and stores the sums of chunk s-3. The slots are free in this case, too:
//   - Rank q reads the addends of chunk s-4 only when it begins to reduce the chunk. This was before q sent
//     the addends of chunk s-2.
//   - When a rank sends the sums of chunk s, it has received q's addends of chunk s+1. Rank q sent these
//     after it had stored the sums of chunk s-3.
// A broadcast uses the same steps as an all-reduce without a lag. In place of addends, the root sends a share
// to each other rank. In place of sums, each of these ranks sends its share to all other ranks.
#ifndef VERBENA_DEVICE_COLLECTIVES_BULK_REDUCE_CUH
#define VERBENA_DEVICE_COLLECTIVES_BULK_REDUCE_CUH

#include "verbena/device/collectives/bulk_slots.cuh"

namespace verbena::device {

namespace detail {

// Copies `pieces` pieces of `vectors` vectors each. All threads of a group take part, and several loads are
// in flight at a time. Calls `load(piece, offset)` and `store(piece, offset, vector)` for each vector.
template <typename Group, typename Load, typename Store>
VERBENA_DEVICE void move_vectors(const Group& group, uint32_t pieces, uint32_t vectors, const Load& load,
                                 const Store& store) {
  constexpr uint32_t kLoads = 4;
  const uint32_t all = pieces * vectors, step = group.size();
  for (uint32_t first = group.rank(); first < all; first += kLoads * step) {
    Vector16 data[kLoads];
    uint32_t piece[kLoads], offset[kLoads];
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kLoads; ++k) {
      const uint32_t index = first + k * step;
      piece[k] = index / vectors;
      offset[k] = (index - piece[k] * vectors) * kVectorBytes;
      if (index < all) data[k] = load(piece[k], offset[k]);
    }
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kLoads; ++k) {
      if (first + k * step < all) store(piece[k], offset[k], data[k]);
    }
  }
}

}  // namespace detail

// Describes a chunk to a codec. A chunk consists of up to max_bytes bytes at the same offset in each share of
// a tensor. In an all-reduce, rank r sums share r. A parameter `turn` numbers the other members, starting
// with the next rank, so that each rank starts with a different member.
struct BulkChunk {
  const SymmContext& context;
  // The block's part of the tensor. The part is split into shares of share_bytes bytes; the last shares may
  // be shorter or empty. `offset` is the start of the chunk in each share.
  const char* input;
  char* output;
  uint64_t part_bytes, share_bytes, offset;
  uint32_t max_bytes;
  // `here` is the slot in this rank's memory that member 0 writes. The slots of the other members follow at
  // distances of slot_bytes. In the memory of each member, this rank writes one slot, at an offset that is
  // the same for all members. `there` is the address at this offset in this rank's own memory.
  const char* here;
  char* there;
  uint64_t slot_bytes;
  uint64_t number;  // number of the chunk, counted across launches

  VERBENA_DEVICE int32_t find_peer(uint32_t turn) const {
    const int32_t peer = context.team_rank + 1 + static_cast<int32_t>(turn);
    return peer < context.team_size ? peer : peer - context.team_size;
  }
  VERBENA_DEVICE uint32_t count_peers() const { return static_cast<uint32_t>(context.team_size) - 1; }
  VERBENA_DEVICE uint64_t begin(int32_t share) const {
    return static_cast<uint64_t>(share) * share_bytes + offset;
  }
  VERBENA_DEVICE uint32_t length(int32_t share) const {
    const uint64_t share_end = static_cast<uint64_t>(share + 1) * share_bytes;
    const uint64_t end = share_end < part_bytes ? share_end : part_bytes, from = begin(share);
    if (from >= end) return 0;
    return end - from < max_bytes ? static_cast<uint32_t>(end - from) : max_bytes;
  }
  // Returns the number of vectors in the longest share of the chunk, which is the first share.
  VERBENA_DEVICE uint32_t count_vectors() const { return (length(0) + kVectorBytes - 1) / kVectorBytes; }
  VERBENA_DEVICE const char* slot_of(int32_t member) const {
    return here + static_cast<uint64_t>(member) * slot_bytes;
  }
  VERBENA_DEVICE char* slot_at(int32_t member) const {
    return detail::shift(there, detail::get_delta(context, member));
  }
};

// The codec that sends elements unchanged. Every codec has the functions below, and all threads of a group
// must call each function together. Other codecs encode data when they send it and decode data when they
// receive it. Slots are aligned to 128 bytes.
template <typename Reduce>
struct PlainCodec {
  Reduce reduce;
  // Number of steps from begin_reduce() to reduce_addends(). If this number is 0, the codec has no
  // begin_reduce().
  static constexpr uint32_t kLag = 0;

  // Returns the unit of chunks in bytes. Offsets of chunks in the tensor, and lengths of chunks, are
  // multiples of this unit.
  VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kVectorBytes; }
  // Returns how many bytes of the tensor fit into data_bytes bytes of a slot.
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_bytes(uint32_t data_bytes) {
    return data_bytes / kVectorBytes * kVectorBytes;
  }

  // Sends each peer the peer's share of the chunk of this rank's input.
  template <int kRanks, typename Group>
  VERBENA_DEVICE void send_addends(const BulkChunk& chunk, const Group& group) const {
    // copy_group() may also read bytes before and after the chunk. If input and output are the same, other
    // blocks write these bytes, so copy_group() must not be used.
    if (detail::offset_in_vector(chunk.input) != 0 && chunk.input != chunk.output) {
      for (uint32_t turn = 0; turn < chunk.count_peers(); ++turn) {
        const int32_t peer = chunk.find_peer(turn);
        copy_group(group, chunk.slot_at(peer), chunk.input + chunk.begin(peer), chunk.length(peer));
      }
      return;
    }
    detail::move_vectors(
        group, chunk.count_peers(), chunk.count_vectors(),
        [&](uint32_t turn, uint32_t offset) {
          const int32_t peer = chunk.find_peer(turn);
          const uint32_t length = chunk.length(peer);
          return offset < length ? detail::load_vector(chunk.input + chunk.begin(peer), offset, length)
                                 : Vector16{};
        },
        [&](uint32_t turn, uint32_t offset, Vector16 vector) {
          const int32_t peer = chunk.find_peer(turn);
          if (offset < chunk.length(peer)) detail::store_data(chunk.slot_at(peer) + offset, vector);
        });
  }

  // Reduces this rank's share of the chunk, and sends the sums to all members. The addends of all members
  // must have arrived before the call.
  // @param sums  the same chunk, but with the slots for sums
  // @return kDone. Any other status ends the collective
  template <int kRanks, typename Group>
  VERBENA_DEVICE SymmStatus reduce_addends(const BulkChunk& addends, const BulkChunk& sums,
                                           const Group& group) const {
    constexpr uint32_t kVectors = kRanks == 2 ? 4 : kRanks == 4 ? 2 : 1;
    const int32_t me = addends.context.team_rank;
    const uint32_t length = addends.length(me), step = group.size() * kVectorBytes;
    const char* const input = addends.input + addends.begin(me);
    char* const output = addends.output + addends.begin(me);
    for (uint32_t first = group.rank() * kVectorBytes; first < length; first += kVectors * step) {
      Vector16 vectors[kVectors];
      reduce_some<kRanks>(addends, input, length, first, step, vectors);
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        const uint32_t offset = first + k * step;
        if (offset >= length) break;
        for (uint32_t turn = 0; turn < sums.count_peers(); ++turn)
          detail::store_data(sums.slot_at(sums.find_peer(turn)) + offset, vectors[k]);
        detail::store_vector(output, offset, length, vectors[k]);
      }
    }
    return SymmStatus::kDone;
  }

  // Stores the sums that the other members have sent.
  template <int kRanks, typename Group>
  VERBENA_DEVICE void take_sums(const BulkChunk& chunk, const Group& group) const {
    if (detail::offset_in_vector(chunk.output) != 0) {
      for (uint32_t turn = 0; turn < chunk.count_peers(); ++turn) {
        const int32_t peer = chunk.find_peer(turn);
        copy_group(group, chunk.output + chunk.begin(peer), chunk.slot_of(peer), chunk.length(peer));
      }
      return;
    }
    detail::move_vectors(
        group, chunk.count_peers(), chunk.count_vectors(),
        [&](uint32_t turn, uint32_t offset) {
          return detail::load_data(chunk.slot_of(chunk.find_peer(turn)) + offset);
        },
        [&](uint32_t turn, uint32_t offset, Vector16 vector) {
          const int32_t peer = chunk.find_peer(turn);
          const uint32_t length = chunk.length(peer);
          if (offset < length) detail::store_vector(chunk.output + chunk.begin(peer), offset, length, vector);
        });
  }

 private:
  // Reduces several vectors. The loads of all ranks' addends are in flight at the same time.
  template <int kRanks, uint32_t kVectors>
  VERBENA_DEVICE void reduce_some(const BulkChunk& chunk, const char* own, uint32_t length, uint32_t first,
                                  uint32_t step, Vector16 (&results)[kVectors]) const {
    constexpr int32_t kAtOnce = kRanks == 0 ? 4 : kRanks;
    const int32_t size = kRanks == 0 ? chunk.context.team_size : kRanks, me = chunk.context.team_rank;
    typename Reduce::template Sums<Vector16> sums[kVectors];
    VERBENA_UNROLL_BY(1)
    for (int32_t from = 0; from < size; from += kAtOnce) {
      Vector16 addends[kVectors][kAtOnce];
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        const uint32_t offset = first + k * step;
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if (offset >= length || from + i >= size) continue;
          addends[k][i] = from + i == me ? detail::load_vector(own, offset, length)
                                         : detail::load_data(chunk.slot_of(from + i) + offset);
        }
      }
      const int32_t count = size - from < kAtOnce ? size - from : kAtOnce;
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        if (first + k * step < length) reduce.add(sums[k], addends[k], from, count);
      }
    }
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kVectors; ++k) {
      if (first + k * step < length) results[k] = reduce.template finish<Vector16>(sums[k], size);
    }
  }
};

// The codec of a broadcast. A broadcast runs like an all-reduce in which only the root has addends. Share i
// belongs to rank root + 1 + i. The root sends each rank the rank's share, and the rank sends this share to
// all other ranks.
struct PassOn {
  int32_t root;
  static constexpr uint32_t kLag = 0;

  VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kVectorBytes; }
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_bytes(uint32_t data_bytes) {
    return data_bytes / kVectorBytes * kVectorBytes;
  }

  template <int kRanks, typename Group>
  VERBENA_DEVICE void send_addends(const BulkChunk& chunk, const Group& group) const {
    if (chunk.context.team_rank != root) return;
    detail::move_vectors(
        group, chunk.count_peers(), chunk.count_vectors(),
        [&](uint32_t turn, uint32_t offset) {
          const auto share = static_cast<int32_t>(turn);
          const uint32_t length = chunk.length(share);
          return offset < length ? detail::load_vector(chunk.input + chunk.begin(share), offset, length)
                                 : Vector16{};
        },
        [&](uint32_t turn, uint32_t offset, Vector16 vector) {
          const auto share = static_cast<int32_t>(turn);
          if (offset >= chunk.length(share)) return;
          detail::store_data(chunk.slot_at(chunk.find_peer(turn)) + offset, vector);
          if (chunk.output != chunk.input) store(chunk, share, offset, vector);
        });
  }
  template <int kRanks, typename Group>
  VERBENA_DEVICE SymmStatus reduce_addends(const BulkChunk& addends, const BulkChunk& sums,
                                           const Group& group) const {
    if (addends.context.team_rank == root) return SymmStatus::kDone;
    const int32_t mine = find_share(addends);
    const uint32_t length = addends.length(mine);
    detail::move_vectors(
        group, 1, (length + kVectorBytes - 1) / kVectorBytes,
        [&](uint32_t, uint32_t offset) { return detail::load_data(addends.slot_of(root) + offset); },
        [&](uint32_t, uint32_t offset, Vector16 vector) {
          for (uint32_t turn = 0; turn < sums.count_peers(); ++turn) {
            const int32_t peer = sums.find_peer(turn);
            if (peer != root) detail::store_data(sums.slot_at(peer) + offset, vector);
          }
          store(addends, mine, offset, vector);
        });
    return SymmStatus::kDone;
  }
  template <int kRanks, typename Group>
  VERBENA_DEVICE void take_sums(const BulkChunk& chunk, const Group& group) const {
    if (chunk.context.team_rank == root) return;
    const auto shares = static_cast<int32_t>(chunk.count_peers());
    // Returns the index of another rank's share. Piece 0 is the share of the next rank.
    const auto share_of = [&](uint32_t piece) {
      const int32_t share = find_share(chunk) + 1 + static_cast<int32_t>(piece);
      return share < shares ? share : share - shares;
    };
    detail::move_vectors(
        group, chunk.count_peers() - 1, chunk.count_vectors(),
        [&](uint32_t piece, uint32_t offset) {
          const int32_t member = root + 1 + share_of(piece);
          return detail::load_data(chunk.slot_of(member <= shares ? member : member - shares - 1) + offset);
        },
        [&](uint32_t piece, uint32_t offset, Vector16 vector) {
          if (offset < chunk.length(share_of(piece))) store(chunk, share_of(piece), offset, vector);
        });
  }

 private:
  VERBENA_DEVICE int32_t find_share(const BulkChunk& chunk) const {
    const int32_t distance = chunk.context.team_rank - root - 1;
    return distance < 0 ? distance + chunk.context.team_size : distance;
  }
  VERBENA_DEVICE static void store(const BulkChunk& chunk, int32_t share, uint32_t offset, Vector16 vector) {
    detail::store_vector(chunk.output + chunk.begin(share), offset, chunk.length(share), vector);
  }
};

template <typename Context, bool kReachesFar>
class BulkReduce : public BulkSlots<Context, kReachesFar> {
  using Slots = BulkSlots<Context, kReachesFar>;

 public:
  using Slots::Slots;

  // Reduces the `input` of all ranks with the codec, and writes the result to `output`, which may be `input`
  // itself.
  template <int kRanks = 0, typename Codec, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const char* input, char* output, uint64_t length_bytes,
                                                     const Codec& codec, const Group& group = {}) {
    static_assert(!kReachesFar, "verbena: use AcrossHosts for an all-reduce across hosts");
    if (kRanks != 0 && kRanks != context_.team_size) status_ = SymmStatus::kInvalid;
    return for_shares<kRanks>(input, output, length_bytes, static_cast<uint32_t>(context_.team_size), codec,
                              group);
  }
  // Copies the root's `input` to the `output` of every rank. `input` and `output` may be the same. The team
  // must have three or more ranks. The root sends each byte of the tensor only once. In an exchange, it would
  // send each byte once per rank.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus broadcast(const char* input, char* output, uint64_t length_bytes,
                                                    int32_t root, const Group& group = {}) {
    if (root < 0 || root >= context_.team_size || context_.team_size < 3) status_ = SymmStatus::kInvalid;
    return for_shares<0>(input, output, length_bytes, static_cast<uint32_t>(context_.team_size) - 1,
                         PassOn{root}, group);
  }

 protected:
  using Slots::begin, Slots::end, Slots::find_slot, Slots::half_bytes, Slots::offset_of, Slots::signal,
      Slots::wait;
  using Slots::blocks_, Slots::block_, Slots::chunk_bytes_, Slots::context_, Slots::count_blocks_,
      Slots::number_, Slots::status_;

 private:
  template <int kRanks, typename Codec, typename Group>
  VERBENA_DEVICE SymmStatus for_shares(const char* input, char* output, uint64_t length_bytes,
                                       uint32_t shares, const Codec& codec, const Group& group) {
    const Part part = find_part(length_bytes, block_, count_blocks_, codec.unit_bytes());
    if (!begin(group) || part.length_bytes == 0) return status_;
    BulkChunk chunk{context_,
                    input + part.begin,
                    output + part.begin,
                    part.length_bytes,
                    find_part_bytes(part.length_bytes, shares, codec.unit_bytes()),
                    0,
                    fit_chunk(codec),
                    nullptr,
                    nullptr,
                    blocks_.slot_bytes,
                    0};
    if (chunk.max_bytes == 0) status_ = SymmStatus::kInvalid;  // one unit of the codec does not fit
    if (status_ != SymmStatus::kDone) return status_;
    const uint64_t chunks = (chunk.share_bytes + chunk.max_bytes - 1) / chunk.max_bytes;
    // Between hosts, a short last chunk takes almost as long as a full chunk, so all chunks have the same
    // length.
    if constexpr (Codec::kLag != 0)
      chunk.max_bytes = static_cast<uint32_t>(
          find_part_bytes(chunk.share_bytes, static_cast<uint32_t>(chunks), codec.unit_bytes()));
    const auto at = [&](uint64_t index, BulkPhase phase) {
      BulkChunk one = chunk;
      one.number = number_ + index;
      one.offset = index * chunk.max_bytes;
      one.here = find_slot(number_ + index, 0) + offset_of(phase);
      one.there = find_slot(number_ + index, context_.team_rank) + offset_of(phase);
      return one;
    };
    constexpr uint32_t kLag = Codec::kLag;
    for (uint64_t step = 0; step < chunks + 2 + kLag; ++step) {
      if (step < chunks) {
        codec.template send_addends<kRanks>(at(step, BulkPhase::kAddends), group);
        signal(number_ + step, BulkPhase::kAddends, group);
      }
      if constexpr (kLag != 0) {
        if (step >= 1 && step <= chunks) {
          if (!wait(number_ + step - 1, BulkPhase::kAddends, group)) return status_;
          status_ = codec.begin_reduce(at(step - 1, BulkPhase::kAddends), group);
          if (status_ != SymmStatus::kDone) return status_;
        }
      }
      if (step >= 1 + kLag && step <= chunks + kLag) {
        if constexpr (kLag == 0) {
          if (!wait(number_ + step - 1, BulkPhase::kAddends, group)) return status_;
        }
        status_ = codec.template reduce_addends<kRanks>(at(step - 1 - kLag, BulkPhase::kAddends),
                                                        at(step - 1 - kLag, BulkPhase::kSums), group);
        if (status_ != SymmStatus::kDone) return status_;
        signal(number_ + step - (1 + kLag), BulkPhase::kSums, group);
      }
      if (step >= 2 + kLag) {
        if (!wait(number_ + step - (2 + kLag), BulkPhase::kSums, group)) return status_;
        codec.template take_sums<kRanks>(at(step - (2 + kLag), BulkPhase::kSums), group);
      }
    }
    return end(chunks, group);
  }

  template <typename Codec>
  VERBENA_DEVICE uint32_t fit_chunk(const Codec& codec) const {
    const uint32_t most = codec.fit_bytes(static_cast<uint32_t>(half_bytes()));
    const uint32_t asked = chunk_bytes_ / codec.unit_bytes() * codec.unit_bytes();
    return asked != 0 && asked < most ? asked : most;
  }
};

}  // namespace verbena::device

#endif
