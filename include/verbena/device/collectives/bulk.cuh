// Collectives of large tensors: each rank pushes chunks into its peers' slots and sets a flag after each
// chunk, so that links carry almost nothing but data. Inputs and outputs may lie at any address.
//
//   Bulk<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, length_bytes, PlainCodec<ReduceAs<float>>{});   // or exchange
//   status = calls.finish();
//
// The workspace is separate from that of low_latency.cuh. Rules, order of sums and errors are those of
// one_shot.cuh.
//
// A slot has two halves, for addends and for sums, and ends with two flags: the numbers of the last chunks in
// the halves. Chunks are numbered consecutively across launches; chunk s uses slot s modulo kSymmTurns, which
// is four. In step s a block sends the addends of chunk s, sums chunk s-1 and sends the sums, and stores the
// sums of chunk s-2. A slot becomes free by a flag that comes later anyway:
//   Addends s overwrite addends s-4 at rank q. Their sender has got q's addends s-2, which q sent after it
//   had summed chunk s-4.
//   Sums s overwrite sums s-4 at rank q. Their sender has got q's addends s, which q sent after it had stored
//   the sums of chunk s-3.
// An exchange has addends only: in step s a block sends chunk s and stores chunk s-1, and the first rule
// holds. A broadcast has both: its addends are the root's shares, each for another rank, which passes its
// share on as a sum.
//
// Bulk<SymmContext, true> also exchanges with members that only a NIC reaches: the message is staged in the
// upper half of this rank's own slot of that member, a NIC writes it to the lower half of the peer's slot,
// and then the flag. A staged chunk s has arrived when the peer's addends s+2 come, since the peer sends them
// after its addends s+1, and those wait for ours; so staging is free as early as the slot.
#ifndef VERBENA_DEVICE_COLLECTIVES_BULK_CUH
#define VERBENA_DEVICE_COLLECTIVES_BULK_CUH

#include "verbena/device/collectives/exchange_plan.cuh"
#include "verbena/device/symm_verbena.cuh"

namespace verbena::device {

namespace detail {

// Copies vectors 0 to `vectors` of `pieces` pieces, by all threads of a group, with several loads in flight:
// `load(piece, offset)`, then `store(piece, offset, vector)`.
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

// Sends by one thread to a member that only a NIC reaches, by the block's queue, so that the flag follows the
// data. Addresses are this rank's.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult put_remote(const Context& context, int32_t peer, char* there, const char* here,
                                         uint64_t length_bytes, uint64_t* flag, uint64_t number) {
  using Network = SymmNetwork<Context>;
  WaitResult result = WaitResult::kReached;
  if (length_bytes != 0) result = Network::put(context, peer, there, here, length_bytes, {});
  return result == WaitResult::kReached ? Network::write_word(context, peer, flag, number, {}) : result;
}
// Writes two adjacent words.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult write_remote(const Context& context, int32_t peer, uint64_t* words,
                                           uint64_t first, uint64_t second) {
  using Network = SymmNetwork<Context>;
  const WaitResult result = Network::write_word(context, peer, words, first, {});
  return result == WaitResult::kReached ? Network::write_word(context, peer, words + 1, second, {}) : result;
}

}  // namespace detail

// A chunk of each share of a tensor, as a codec sees it. In an all-reduce, share r is member r's. Members are
// counted from this rank on, so that each rank begins with a different member.
struct BulkChunk {
  const SymmContext& context;
  // The block's part of the tensor. Its shares are contiguous and have the same length, except for the last
  // one that is not empty. `offset` is where in each share the chunk begins.
  const char* input;
  char* output;
  uint64_t part_bytes, share_bytes, offset;
  uint32_t max_bytes;
  // Where the data of member r arrives here, slot_bytes from one member to the next; and where this rank's
  // data goes, as an address of this rank.
  const char* here;
  char* there;
  uint64_t slot_bytes;
  uint64_t number;  // of the chunk, counted across launches

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
  // Counts the vectors of the longest share, which is the first.
  VERBENA_DEVICE uint32_t count_vectors() const { return (length(0) + kVectorBytes - 1) / kVectorBytes; }
  VERBENA_DEVICE const char* slot_of(int32_t member) const {
    return here + static_cast<uint64_t>(member) * slot_bytes;
  }
  VERBENA_DEVICE char* slot_at(int32_t member) const {
    return detail::shift(there, detail::get_delta(context, member));
  }
};

// Sends elements as they are. A codec has the functions below, each called by all threads of a group; slots
// are aligned to 128 bytes. Other codecs encode when they send and decode when they receive.
template <typename Reduce>
struct PlainCodec {
  Reduce reduce;

  // Chunks begin at multiples of it, from the start of the tensor, and have multiples of it as length.
  VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kVectorBytes; }
  // Returns the bytes of the tensor that fit into `data_bytes` of a slot.
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_bytes(uint32_t data_bytes) {
    return data_bytes / kVectorBytes * kVectorBytes;
  }

  // Sends each peer its chunk of this rank's input.
  template <int kRanks, typename Group>
  VERBENA_DEVICE void send_addends(const BulkChunk& chunk, const Group& group) const {
    // In place, other blocks write the bytes beside the chunk: do not read them.
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

  // Reduces the chunk that all members have sent, and sends the sums.
  // @param sums  the same chunk, with the slots of sums
  // @return any status but kDone ends the call
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
  // The loads of all ranks and vectors are in flight together.
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

// A broadcast, as an all-reduce in which only the root has addends: the shares of all other ranks, counted
// from the next rank on. Each rank passes its own share on to the others.
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
    // All shares but this rank's, from the next one on.
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

// Some members of a team: `count` of them, `stride` apart in the list, this rank among them. NULL: all
// members.
struct BulkMembers {
  const uint8_t* list = nullptr;
  uint32_t count = 0, stride = 1;
};

// kReachesFar: the team, or some of its members, includes ranks that only a NIC reaches; then only exchanges
// are allowed.
template <typename Context = SymmContext, bool kReachesFar = false>
class Bulk {
 public:
  // As OneShot's constructor; groups are whole warps.
  // @param chunk_bytes  maximum bytes of the tensor in a step, the same on all ranks; 0: as many as fit
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
  // Copies the root's `input` to `output` of every rank, also in place. With three ranks or more: the root
  // sends the tensor once, where an exchange sends it to each rank.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus broadcast(const char* input, char* output, uint64_t length_bytes,
                                                    int32_t root, const Group& group = {}) {
    if (root < 0 || root >= context_.team_size || context_.team_size < 3) status_ = SymmStatus::kInvalid;
    return for_shares<0>(input, output, length_bytes, static_cast<uint32_t>(context_.team_size) - 1,
                         PassOn{root}, group);
  }

  // As OneShot::exchange().
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

  // Reduces the messages from all members as exchange_reduce() does, but passes the sums before they are
  // rounded to `take(offset, sums)`, for each vector of this rank's part.
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
  static constexpr uint32_t kFlagBytes = kSymmSlotUnit;  // the end of a slot
  static constexpr uint32_t kLengthWord = 2;             // of these bytes, after the flags
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
  // Waits until all threads have read this call's slots and may read what any of them has stored.
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
    if (chunk.max_bytes == 0) status_ = SymmStatus::kInvalid;  // not even one unit of the codec fits
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
  // Counts members from this rank on.
  VERBENA_DEVICE int32_t find_member(int32_t turn) const {
    if (kReachesFar && members_.list != nullptr)
      return members_.list[(own_ + static_cast<uint32_t>(turn)) % members_.count * members_.stride];
    const int32_t member = context_.team_rank + turn;
    return member < context_.team_size ? member : member - context_.team_size;
  }

  // The last warp signals and the first one waits, so that the fence of one does not delay the other.
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

  // Both halves of a slot are for addends, unless one is for staging.
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
    uint64_t longest = 1;  // at least one chunk, which carries the lengths
    for (int32_t member = 0; member < context_.team_size; ++member) {
      const auto entry = plan(member);
      if (entry.send.length_bytes > longest) longest = entry.send.length_bytes;
      if (entry.receive.length_bytes > longest) longest = entry.receive.length_bytes;
    }
    return longest;
  }
  // If a rank knows the lengths of its own messages only, the flags of its first chunk are followed by the
  // length of its message and the chunks that it needs. All ranks run the maximum of these chunks.
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
  // Sends what send_chunk() has staged, and the flag after it; with `chunks` other than 0 also what
  // publish_lengths() would have sent. One thread for each member that only a NIC reaches.
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
  // Calls `take(offset, sums)` for each vector.
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
  uint32_t own_ = 0;     // this rank's index in the list
  uint64_t number_ = 0;  // of the next chunk
  bool has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
