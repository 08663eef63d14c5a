// Collectives for large tensors. Each rank pushes chunks into its peers' slots and sets a flag after each
// chunk, so links carry almost only data. Inputs and outputs may have any address.
//
//   Bulk<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, length_bytes, PlainCodec<ReduceAs<float>>{});   // or exchange
//   status = calls.finish();
//
// Use a separate workspace, not that of low_latency.cuh. The rules for blocks, the order of additions and the
// errors are those of one_shot.cuh.
//
// An all-reduce is two-shot: rank r sums share r of each chunk, and sends the sum to all. A slot has two
// halves, for addends and for sums, and ends with two flags, which are the numbers of the last chunks in the
// halves. Chunks are numbered consecutively across launches; chunk s uses slot s % 4 (kSymmTurns). In step s,
// a block sends the addends of chunk s, sums chunk s-1 and sends the sums, and stores the sums of chunk s-2.
// No message is needed to free a slot, because flags of later chunks show that it is free:
//   Addends s overwrite addends s-4 at rank q. Their sender has received q's addends s-2, which q sent after
//   it had summed chunk s-4.
//   Sums s overwrite sums s-4 at rank q. Their sender has received q's addends s, which q sent after it had
//   stored the sums of chunk s-3.
// An exchange only has addends: in step s, a block sends chunk s and stores chunk s-1, and the first rule
// holds. A broadcast has both: the root sends each other rank its share as an addend, and that rank sends the
// share to the others as a sum.
//
// Bulk<SymmContext, true> also exchanges with members that only a NIC reaches. The message is staged in the
// upper half of this rank's slot for that member. A NIC writes it to the lower half of the peer's slot, and
// then the flag. A staged chunk s has been delivered when the peer's chunk s+2 arrives, because the peer
// sends that after it has waited for our chunk s. So the staging memory is free as early as the slot.
#ifndef VERBENA_DEVICE_COLLECTIVES_BULK_CUH
#define VERBENA_DEVICE_COLLECTIVES_BULK_CUH

#include "verbena/device/collectives/exchange_plan.cuh"
#include "verbena/device/symm_verbena.cuh"

namespace verbena::device {

namespace detail {

// Copies `pieces` pieces of `vectors` vectors each, with all threads of a group and several loads in flight.
// Calls `load(piece, offset)` and `store(piece, offset, vector)` for each vector.
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

// Sends data and then a flag to a member that only a NIC reaches. Called by one thread. Uses the block's put
// queue, so that the flag follows the data. `there` and `flag` are this rank's addresses of the peer's
// memory.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult put_remote(const Context& context, int32_t peer, char* there, const char* here,
                                         uint64_t length_bytes, uint64_t* flag, uint64_t number) {
  using Network = SymmNetwork<Context>;
  WaitResult result = WaitResult::kReached;
  if (length_bytes != 0) result = Network::put(context, peer, there, here, length_bytes, {});
  return result == WaitResult::kReached ? Network::write_word(context, peer, flag, number, {}) : result;
}
// Writes two adjacent words of a member that only a NIC reaches. Called by one thread.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult write_remote(const Context& context, int32_t peer, uint64_t* words,
                                           uint64_t first, uint64_t second) {
  using Network = SymmNetwork<Context>;
  const WaitResult result = Network::write_word(context, peer, words, first, {});
  return result == WaitResult::kReached ? Network::write_word(context, peer, words + 1, second, {}) : result;
}

}  // namespace detail

// A chunk, passed to a codec: up to max_bytes bytes at the same offset of each share of a tensor. In an
// all-reduce, rank r sums share r. Functions with a `turn` count members from the next rank on, so that each
// rank starts with a different member.
struct BulkChunk {
  const SymmContext& context;
  // The block's part of the tensor, which is split into shares of share_bytes; the last ones may be shorter
  // or empty. `offset` is the start of the chunk in each share.
  const char* input;
  char* output;
  uint64_t part_bytes, share_bytes, offset;
  uint32_t max_bytes;
  // `here` is the slot of this rank that member 0 writes; the slots of the other members follow, slot_bytes
  // apart. `there` is the slot that this rank writes at each member, as an address of this rank.
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
  // Returns the number of vectors in the longest share of the chunk, which is the first.
  VERBENA_DEVICE uint32_t count_vectors() const { return (length(0) + kVectorBytes - 1) / kVectorBytes; }
  VERBENA_DEVICE const char* slot_of(int32_t member) const {
    return here + static_cast<uint64_t>(member) * slot_bytes;
  }
  VERBENA_DEVICE char* slot_at(int32_t member) const {
    return detail::shift(there, detail::get_delta(context, member));
  }
};

// The codec that sends elements unchanged. Every codec has the functions below, which all threads of a group
// call. Other codecs encode when they send and decode when they receive. Slots are aligned to 128 bytes.
template <typename Reduce>
struct PlainCodec {
  Reduce reduce;

  // Returns the unit of chunks: offsets in the tensor and lengths of chunks are multiples of it.
  VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kVectorBytes; }
  // Returns the number of bytes of the tensor that fit into data_bytes bytes of a slot.
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_bytes(uint32_t data_bytes) {
    return data_bytes / kVectorBytes * kVectorBytes;
  }

  // Sends each peer its chunk of this rank's input.
  template <int kRanks, typename Group>
  VERBENA_DEVICE void send_addends(const BulkChunk& chunk, const Group& group) const {
    // copy_group() may read bytes next to the chunk. Not allowed in place, where other blocks write these
    // bytes.
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

  // Reduces this rank's share of the chunk, which all members have sent, and sends the sums to all.
  // @param sums  the same chunk, with the slots of sums
  // @return any status but kDone ends the collective
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
  // Reduces several vectors, with the loads of all ranks in flight together.
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

// The codec of a broadcast, which is an all-reduce in which only the root has addends. Share i belongs to
// rank root + 1 + i. The root sends each other rank its share, and that rank sends the share to the others.
struct PassOn {
  int32_t root;

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
    // Returns the other ranks' shares, starting with the one after this rank's.
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

// A subset of a team that includes this rank: the `count` entries 0, stride, 2 * stride, and so on of the
// list. A list that is null stands for all members.
struct BulkMembers {
  const uint8_t* list = nullptr;
  uint32_t count = 0, stride = 1;
};

// @tparam kReachesFar  true: some members can only be reached by a NIC; only exchanges are allowed
template <typename Context = SymmContext, bool kReachesFar = false>
class Bulk {
 public:
  // The parameters are those of OneShot's constructor. Groups must consist of whole warps.
  // @param chunk_bytes  max length of a chunk in bytes of the tensor, the same on all ranks; 0: as many as
  //                     fit in a slot
  VERBENA_DEVICE Bulk(const SymmWorkspace<Context>& workspace, uint32_t block, uint32_t blocks,
                      uint32_t chunk_bytes = 0, const GridStart& start = {}, const BulkMembers& members = {})
      : context_(workspace.context),
        blocks_(workspace.blocks),
        start_(start),
        block_(block),
        count_blocks_(blocks),
        chunk_bytes_(chunk_bytes),
        members_(members) {
    if (kReachesFar && members_.list != nullptr) {
      while (members_.list[own_ * members_.stride] != context_.team_rank) ++own_;
    }
    if (block >= blocks || blocks > blocks_.count || blocks_.slot_bytes <= kFlagBytes)
      status_ = SymmStatus::kInvalid;
    if (context_.has_remote != 0 && !kReachesFar) status_ = SymmStatus::kUnreachable;
  }

  // Writes the codec's reduction of all ranks' `input` to `output`, which may be `input`.
  template <int kRanks = 0, typename Codec, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const char* input, char* output, uint64_t length_bytes,
                                                     const Codec& codec, const Group& group = {}) {
    static_assert(!kReachesFar, "verbena: across hosts an all-reduce is AcrossHosts'");
    if (kRanks != 0 && kRanks != context_.team_size) status_ = SymmStatus::kInvalid;
    return for_shares<kRanks>(input, output, length_bytes, static_cast<uint32_t>(context_.team_size), codec,
                              group);
  }
  // Copies the root's `input` to `output` of every rank, also in place. Needs three ranks or more. Unlike in
  // an exchange, the root sends the tensor only once in total.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus broadcast(const char* input, char* output, uint64_t length_bytes,
                                                    int32_t root, const Group& group = {}) {
    if (root < 0 || root >= context_.team_size || context_.team_size < 3) status_ = SymmStatus::kInvalid;
    return for_shares<0>(input, output, length_bytes, static_cast<uint32_t>(context_.team_size) - 1,
                         PassOn{root}, group);
  }

  // Exchanges messages, like OneShot::exchange().
  template <typename Plan, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange(const Plan& plan, uint64_t max_bytes,
                                                   const Group& group = {}) {
    return for_chunks(plan, max_bytes, group, [&](uint64_t number, uint64_t at, uint32_t most) {
      for (int32_t turn = 0; turn < count_members(); ++turn) {
        const int32_t member = find_member(turn);
        const auto entry = plan(member);
        const uint64_t length = detail::cut_round(entry.receive, at, most);
        const Rows from = member == context_.team_rank ? entry.source.from(entry.receive.begin + at)
                                                       : Rows::contiguous(find_slot(number, member));
        detail::copy_rows(group, entry.destination.from(entry.receive.begin + at), from, length);
      }
    });
  }
  template <int kRanks = 0, typename Plan, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange_reduce(const Plan& plan, uint64_t max_bytes,
                                                          const Reduce& reduce, const Group& group = {}) {
    if (kRanks != 0 && kRanks != context_.team_size) status_ = SymmStatus::kInvalid;
    return for_chunks(plan, max_bytes, group, [&](uint64_t number, uint64_t at, uint32_t most) {
      const auto entry = plan(context_.team_rank);
      const auto length = static_cast<uint32_t>(detail::cut_round(entry.receive, at, most));
      reduce_chunk<kRanks>(entry.source.from(entry.receive.begin + at),
                           entry.destination.from(entry.receive.begin + at), length, number, reduce, group);
    });
  }

  // Reduces the messages from all members like exchange_reduce(), but calls `take(offset, sums)` with the
  // unrounded sums for each vector of this rank's part.
  // @param take  `offset` is in bytes from the start of the part
  template <typename Plan, typename Reduce, typename Take, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus exchange_sums(const Plan& plan, uint64_t max_bytes,
                                                        const Reduce& reduce, const Take& take,
                                                        const Group& group = {}) {
    return for_chunks(plan, max_bytes, group, [&](uint64_t number, uint64_t at, uint32_t most) {
      const auto entry = plan(context_.team_rank);
      const auto length = static_cast<uint32_t>(detail::cut_round(entry.receive, at, most));
      add_chunk<0>(entry.source.from(entry.receive.begin + at), length, number, reduce, group,
                   [&](uint32_t offset, auto& sums) { take(at + offset, sums); });
    });
  }

  // Ends the last call of a kernel.
  // @return the first error of the calls, or kDone
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone && has_begun_ && group.elect())
      store_relaxed<Scope::kGpu>(blocks_.epochs + block_, number_ - 1);
    return status_;
  }

 private:
  enum Phase : uint32_t { kAddends = 0, kSums = 1 };
  static constexpr uint32_t kFlagBytes = kSymmSlotUnit;  // bytes at the end of a slot, for flags and lengths
  static constexpr uint32_t kLengthWord = 2;             // index of the length among the words of these bytes
  static constexpr uint64_t kMaxHalfBytes = uint64_t{1} << 30;

  template <typename Group>
  VERBENA_DEVICE bool begin(const Group& group) {
    if (status_ == SymmStatus::kDone && group.size() % kWarpLanes != 0) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone || has_begun_) return status_ == SymmStatus::kDone;
    start_();
    number_ = load_relaxed<Scope::kGpu>(blocks_.epochs + block_) + 1;
    has_begun_ = true;
    status_ = detail::begin_in_step(context_, group);
    return status_ == SymmStatus::kDone;
  }
  // Waits until all threads have read the slots of this call. The threads may then read everything that any
  // of them has stored.
  template <typename Group>
  VERBENA_DEVICE SymmStatus end(uint64_t chunks, const Group& group) {
    number_ += chunks;
    group.sync();
    return SymmStatus::kDone;
  }

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
    const auto at = [&](uint64_t index, Phase phase) {
      BulkChunk one = chunk;
      one.number = number_ + index;
      one.offset = index * chunk.max_bytes;
      one.here = find_slot(number_ + index, 0) + offset_of(phase);
      one.there = find_slot(number_ + index, context_.team_rank) + offset_of(phase);
      return one;
    };
    for (uint64_t step = 0; step < chunks + 2; ++step) {
      if (step < chunks) {
        codec.template send_addends<kRanks>(at(step, kAddends), group);
        signal(number_ + step, kAddends, group);
      }
      if (step >= 1 && step <= chunks) {
        if (!wait(number_ + step - 1, kAddends, group)) return status_;
        status_ = codec.template reduce_addends<kRanks>(at(step - 1, kAddends), at(step - 1, kSums), group);
        if (status_ != SymmStatus::kDone) return status_;
        signal(number_ + step - 1, kSums, group);
      }
      if (step >= 2) {
        if (!wait(number_ + step - 2, kSums, group)) return status_;
        codec.template take_sums<kRanks>(at(step - 2, kSums), group);
      }
    }
    return end(chunks, group);
  }

  VERBENA_DEVICE uint64_t half_bytes() const {
    const uint64_t half = (blocks_.slot_bytes - kFlagBytes) / 2 / kSymmSlotUnit * kSymmSlotUnit;
    return half < kMaxHalfBytes ? half : kMaxHalfBytes;
  }
  VERBENA_DEVICE uint64_t offset_of(Phase phase) const { return phase == kSums ? half_bytes() : 0; }
  template <typename Codec>
  VERBENA_DEVICE uint32_t fit_chunk(const Codec& codec) const {
    const uint32_t most = codec.fit_bytes(static_cast<uint32_t>(half_bytes()));
    const uint32_t asked = chunk_bytes_ / codec.unit_bytes() * codec.unit_bytes();
    return asked != 0 && asked < most ? asked : most;
  }
  // Returns the slot of this rank that `source` writes.
  VERBENA_DEVICE char* find_slot(uint64_t number, int32_t source) const {
    const auto size = static_cast<uint64_t>(context_.team_size);
    const uint64_t copy = block_ * uint64_t{kSymmTurns} + number % kSymmTurns;
    return blocks_.slots + (copy * size + static_cast<uint64_t>(source)) * blocks_.slot_bytes;
  }
  VERBENA_DEVICE uint64_t* find_flag(uint64_t number, int32_t source, Phase phase) const {
    return reinterpret_cast<uint64_t*>(find_slot(number, source) + blocks_.slot_bytes - kFlagBytes) + phase;
  }
  VERBENA_DEVICE int32_t count_members() const {
    if (kReachesFar && members_.list != nullptr) return static_cast<int32_t>(members_.count);
    return context_.team_size;
  }
  // Returns a member, counted from this rank on.
  VERBENA_DEVICE int32_t find_member(int32_t turn) const {
    if (kReachesFar && members_.list != nullptr)
      return members_.list[(own_ + static_cast<uint32_t>(turn)) % members_.count * members_.stride];
    const int32_t member = context_.team_rank + turn;
    return member < context_.team_size ? member : member - context_.team_size;
  }

  // The last warp signals and the first warp waits, so that the fence of one does not delay the other.
  template <typename Group>
  VERBENA_DEVICE void signal(uint64_t number, Phase phase, const Group& group) const {
    group.sync();
    const auto peers = static_cast<uint32_t>(count_members()) - 1;
    for (uint32_t i = group.size() - 1 - group.rank(); i < peers; i += group.size()) {
      uint64_t* const flag = find_flag(number, context_.team_rank, phase);
      const int64_t delta = detail::get_delta(context_, find_member(static_cast<int32_t>(i) + 1));
      if (kReachesFar && delta == kSymmOutOfReach) continue;
      store_release<Scope::kSystem>(detail::shift(flag, delta), number);
    }
  }
  template <typename Group>
  VERBENA_DEVICE bool wait(uint64_t number, Phase phase, const Group& group) {
    const auto peers = static_cast<uint32_t>(count_members()) - 1;
    Patience patience(context_);
    WaitResult mine = WaitResult::kReached;
    int32_t late = 0;
    for (uint32_t i = group.rank(); i < peers && mine == WaitResult::kReached; i += group.size()) {
      late = find_member(static_cast<int32_t>(i) + 1);
      const uint64_t* const flag = find_flag(number, late, phase);
      for (uint32_t spins = 1; load_acquire<Scope::kSystem>(flag) < number; ++spins) {
        if (spins % kDefaultSpinsPerCheck != 0) continue;
        mine = patience.check();
        if (mine != WaitResult::kReached) break;
      }
    }
    status_ =
        detail::conclude(context_, group, mine, {SymmWait::kPacket, block_, static_cast<uint32_t>(late)});
    return status_ == SymmStatus::kDone;
  }

  // Runs an exchange. Both halves of a slot are for addends, unless one is used for staging.
  template <typename Plan, typename Group, typename Take>
  VERBENA_DEVICE SymmStatus for_chunks(const Plan& plan, uint64_t max_bytes, const Group& group,
                                       const Take& take) {
    if (!begin(group) || max_bytes == 0) return status_;
    const uint64_t room = (kReachesFar ? 1 : 2) * half_bytes();
    const auto most = static_cast<uint32_t>(chunk_bytes_ >= kVectorBytes && chunk_bytes_ < room
                                                // FAULT(chunks_split_elements)
                                                ? chunk_bytes_ / kVectorBytes * kVectorBytes
                                                : room);
    const bool is_known = max_bytes != kUnknownLength;
    uint64_t chunks = ((is_known ? max_bytes : find_longest(plan)) + most - 1) / most;
    if (!is_known) {
      send_chunk(plan, number_, 0, most, group);
      publish_lengths(plan, chunks, group);
      if (!send_remote(plan, number_, 0, most, chunks, group)) return status_;
      signal(number_, kAddends, group);
      if (!wait(number_, kAddends, group) || !read_lengths(plan, chunks, group)) return status_;
    }
    for (uint64_t step = is_known ? 0 : 1; step < chunks + 1; ++step) {
      if (step < chunks) {
        send_chunk(plan, number_ + step, step * most, most, group);
        if (!send_remote(plan, number_ + step, step * most, most, 0, group)) return status_;
        signal(number_ + step, kAddends, group);
      }
      if (step == 0) continue;
      if (!wait(number_ + step - 1, kAddends, group)) return status_;
      take(number_ + step - 1, (step - 1) * most, most);
    }
    return end(chunks, group);
  }

  template <typename Plan>
  VERBENA_DEVICE uint64_t find_longest(const Plan& plan) const {
    uint64_t longest = 1;  // at least one chunk is needed, which carries the lengths
    for (int32_t member = 0; member < context_.team_size; ++member) {
      const auto entry = plan(member);
      if (entry.send.length_bytes > longest) longest = entry.send.length_bytes;
      if (entry.receive.length_bytes > longest) longest = entry.receive.length_bytes;
    }
    return longest;
  }
  // Used if each rank knows only the lengths of its own messages. The flags of the first chunk are then
  // followed by the length of the message and the number of chunks that the sender needs. All ranks run the
  // maximum number of chunks.
  template <typename Plan, typename Group>
  VERBENA_DEVICE void publish_lengths(const Plan& plan, uint64_t chunks, const Group& group) const {
    const auto peers = static_cast<uint32_t>(count_members()) - 1;
    for (uint32_t i = group.rank(); i < peers; i += group.size()) {
      const int32_t peer = find_member(static_cast<int32_t>(i) + 1);
      const int64_t delta = detail::get_delta(context_, peer);
      if (kReachesFar && delta == kSymmOutOfReach) continue;
      uint64_t* const told =
          detail::shift(find_flag(number_, context_.team_rank, kAddends) + kLengthWord, delta);
      store<Order::kWeak, Scope::kThreads>(told, plan(peer).send.length_bytes);
      store<Order::kWeak, Scope::kThreads>(told + 1, chunks);
    }
  }
  template <typename Plan, typename Group>
  VERBENA_DEVICE bool read_lengths(const Plan& plan, uint64_t& chunks, const Group& group) {
    bool is_wrong = false;
    for (int32_t turn = 1; turn < context_.team_size; ++turn) {
      const int32_t peer = find_member(turn);
      const uint64_t* const told = find_flag(number_, peer, kAddends) + kLengthWord;
      is_wrong = is_wrong || load<Order::kWeak, Scope::kThreads>(told) != plan(peer).receive.length_bytes;
      const auto theirs = load<Order::kWeak, Scope::kThreads>(told + 1);
      if (theirs > chunks) chunks = theirs;
    }
    if (group.any(is_wrong)) status_ = SymmStatus::kInvalid;
    return status_ == SymmStatus::kDone;
  }
  template <typename Plan, typename Group>
  VERBENA_DEVICE void send_chunk(const Plan& plan, uint64_t number, uint64_t at, uint32_t most,
                                 const Group& group) const {
    char* const there = find_slot(number, context_.team_rank);
    const auto mine = plan(context_.team_rank);
    // FAULT(exchange_in_place_reads_beside)
    const bool is_in_place = mine.source.find(0) == mine.destination.find(0);
    for (int32_t turn = 1; turn < count_members(); ++turn) {
      const int32_t peer = find_member(turn);
      const auto entry = plan(peer);
      const int64_t delta = detail::get_delta(context_, peer);
      char* const to =
          kReachesFar && delta == kSymmOutOfReach ? find_staging(number, peer) : detail::shift(there, delta);
      detail::copy_rows(group, Rows::contiguous(to), entry.source.from(entry.send.begin + at),
                        detail::cut_round(entry.send, at, most), is_in_place);
    }
  }
  VERBENA_DEVICE char* find_staging(uint64_t number, int32_t peer) const {
    return find_slot(number, peer) + half_bytes();
  }
  // Sends the data that send_chunk() has staged, then the flag, to the members that only a NIC reaches, with
  // one thread per member. If `chunks` is not 0, also sends the lengths, like publish_lengths().
  template <typename Plan, typename Group>
  VERBENA_DEVICE bool send_remote(const Plan& plan, uint64_t number, uint64_t at, uint32_t most,
                                  uint64_t chunks, const Group& group) {
    if constexpr (kReachesFar) {
      group.sync();
      const auto peers = static_cast<uint32_t>(count_members()) - 1;
      WaitResult mine = WaitResult::kReached;
      int32_t peer = 0;
      for (uint32_t i = group.rank(); i < peers && mine == WaitResult::kReached; i += group.size()) {
        peer = find_member(static_cast<int32_t>(i) + 1);
        if (detail::get_delta(context_, peer) != kSymmOutOfReach) continue;
        const auto entry = plan(peer);
        uint64_t* const flag = find_flag(number, context_.team_rank, kAddends);
        if (chunks != 0)
          mine = detail::write_remote(context_, peer, flag + kLengthWord, entry.send.length_bytes, chunks);
        if (mine == WaitResult::kReached)
          mine = detail::put_remote(context_, peer, find_slot(number, context_.team_rank),
                                    find_staging(number, peer), detail::cut_round(entry.send, at, most), flag,
                                    number);
      }
      status_ =
          detail::conclude(context_, group, mine, {SymmWait::kRequest, block_, static_cast<uint32_t>(peer)});
    }
    return status_ == SymmStatus::kDone;
  }
  template <int kRanks, typename Reduce, typename Group>
  VERBENA_DEVICE void reduce_chunk(const Rows& source, const Rows& destination, uint32_t length,
                                   uint64_t number, const Reduce& reduce, const Group& group) const {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks;
    const bool is_flat = destination.is_contiguous();
    char* const to = destination.find(0);
    add_chunk<kRanks>(source, length, number, reduce, group, [&](uint32_t offset, auto& sums) {
      const Vector16 sum = reduce.template finish<Vector16>(sums, size);
      if (is_flat) {
        detail::store_vector(to, offset, length, sum);
      } else {
        detail::store_vector(destination, offset, length, sum);
      }
    });
  }
  // Reduces a chunk, and calls `take(offset, sums)` for each vector.
  template <int kRanks, typename Reduce, typename Group, typename Take>
  VERBENA_DEVICE void add_chunk(const Rows& source, uint32_t length, uint64_t number, const Reduce& reduce,
                                const Group& group, const Take& take) const {
    constexpr int32_t kAtOnce = kRanks == 0 ? 4 : kRanks;
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks, me = context_.team_rank;
    const bool is_flat = source.is_contiguous();
    const char* const from = source.find(0);
    for (uint32_t offset = group.rank() * kVectorBytes; offset < length;
         offset += group.size() * kVectorBytes) {
      typename Reduce::template Sums<Vector16> sums;
      VERBENA_UNROLL_BY(1)
      for (int32_t first = 0; first < size; first += kAtOnce) {
        Vector16 addends[kAtOnce];
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if (first + i >= size) continue;
          if (first + i != me) {
            addends[i] = detail::load_data(find_slot(number, first + i) + offset);
          } else if (is_flat) {
            addends[i] = detail::load_vector(from, offset, length);
          } else {
            addends[i] = __builtin_bit_cast(
                Vector16, detail::Halves{detail::load_part<uint64_t>(source, offset, length),
                                         detail::load_part<uint64_t>(source, offset + 8, length)});
          }
        }
        reduce.add(sums, addends, first, size - first < kAtOnce ? size - first : kAtOnce);
      }
      take(offset, sums);
    }
  }

  const Context& context_;
  const SymmBlocks& blocks_;
  GridStart start_;
  uint32_t block_, count_blocks_, chunk_bytes_;
  BulkMembers members_;
  uint32_t own_ = 0;     // this rank's index among the members
  uint64_t number_ = 0;  // number of the next chunk
  bool has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
