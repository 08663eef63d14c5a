// Two-shot all-reduce in packets, for tensors of about 100 KiB to a few MiB. Rank r sums the r-th part of the
// tensor and sends the sum to all ranks. For any number of ranks, a rank sends less than twice the length of
// the tensor. There is no barrier: a thread sends a sum as soon as it has received the packets with the
// addends. For larger tensors, use bulk.cuh.
//
//   TwoShot<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, count);   // any number of times, with any sizes
//   status = calls.finish();
//
// The rules for blocks, the order of additions, the errors and the bits of the results are the same as in
// one_shot.cuh. Kernels that make one-shot calls and kernels that make two-shot calls may use the same
// workspace, one after the other.
#ifndef VERBENA_DEVICE_COLLECTIVES_TWO_SHOT_CUH
#define VERBENA_DEVICE_COLLECTIVES_TWO_SHOT_CUH

#include "verbena/device/collectives/packet_calls.cuh"

namespace verbena::device {

template <typename Context = SymmContext>
class TwoShot : public PacketCalls<Context, TwoShot<Context>> {
  using Calls = PacketCalls<Context, TwoShot>;

 public:
  using Calls::Calls;
  using typename Calls::Exchange;

  template <int kRanks = 0, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_bytes(const char* input, char* output,
                                                           uint64_t length_bytes, const Reduce& reduce,
                                                           const Group& group = {}) {
    if (status_ == SymmStatus::kDone && !exchange_.is_size(kRanks)) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const auto size = static_cast<uint32_t>(context_.team_size);
    const uint64_t share_bytes = find_part_bytes(length_bytes, size);
    const Part part = find_part(share_bytes, block_, blocks_);
    const uint64_t most = find_round_bytes(part);
    for (uint64_t at = 0; at < part.length_bytes; at += most) {
      if (!has_begun_) start_();
      if (!begin_in_step(group, 2)) return status_;
      const Round round{length_bytes, share_bytes, part.begin + at, detail::cut_round(part, at, most)};
      status_ = reduce_message<kRanks>(input, output, round, reduce, group);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

  // Does the same as OneShot::all_reduce_vectors(). The number of vectors must be a multiple of kRanks.
  template <int kRanks, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_vectors(const char* input, char* output,
                                                             uint64_t length_bytes, const Reduce& reduce,
                                                             const Group& threads = {}) {
    const KeptGroup<Group> group(threads);
    const uint64_t share_bytes = length_bytes / kRanks;
    const Part part = find_part(share_bytes, block_, blocks_, kVectorBytes);
    if (!exchange_.is_size(kRanks) || detail::offset_in_vector(input) != 0 ||
        detail::offset_in_vector(output) != 0 || length_bytes % (kRanks * kVectorBytes) != 0)
      status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone || part.length_bytes == 0) return status_;
    const auto peers = exchange_.template find_peers<kRanks>();
    Shares<kRanks> shares;
    shares.own = keep(static_cast<uint32_t>(context_.team_rank) * share_bytes + part.begin);
    VERBENA_UNROLL
    for (uint32_t k = 0; k < peers.kCount; ++k)
      shares.of_peer[k] = keep(static_cast<uint32_t>(peers.member[k]) * share_bytes + part.begin);
    if (!has_begun_) start_();
    const uint64_t most = find_round_bytes(part);
    for (uint64_t at = 0; at < part.length_bytes && status_ == SymmStatus::kDone; at += most) {
      const auto count = static_cast<uint32_t>(detail::cut_round(part, at, most) / kVectorBytes);
      status_ = reduce_vectors<kRanks>(input + at, output + at, count, shares, peers, reduce, group);
    }
    return status_;
  }

  // Splits the block's part of a share of `units` units into rounds, and calls `body` for each round.
  // @param most  max units of a round
  // @param at_once  number of units that the largest group processes at a time, the same on all ranks
  // @param body  body(exchange, first, count) sends and receives the addends, and then the sums, of `count`
  //              units of each share, packet by packet. `body` uses two calls that are in flight at the same
  //              time
  template <typename Group, typename Body>
  [[nodiscard]] VERBENA_DEVICE SymmStatus for_rounds(uint64_t units, uint64_t most, uint64_t at_once,
                                                     const Group& group, const Body& body) {
    if (most == 0) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const Part part = find_part(units, block_, blocks_, 1);
    most = detail::even_rounds(part.length_bytes, most, at_once);
    for (uint64_t at = 0; at < part.length_bytes; at += most) {
      if (!has_begun_) start_();
      if (!begin_in_step(group, 2)) return status_;
      status_ = body(exchange_, part.begin + at, detail::cut_round(part, at, most));
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

 private:
  using Calls::begin_in_step, Calls::begin_message;
  using Calls::block_, Calls::blocks_, Calls::context_, Calls::exchange_, Calls::has_begun_, Calls::start_,
      Calls::status_;
  using Data = Packet::Data;
  static constexpr uint32_t kSums = 1;  // the call in flight in which sums are sent; addends are sent in call
                                        // 0

  // The offsets of the shares, in bytes.
  template <int kRanks>
  struct Shares {
    uint64_t own, of_peer[kRanks - 1];
  };
  // Runs a round. Each thread first sends its packets of every peer's share. Then it sums its packets of this
  // rank's share and sends the sums. Finally it receives the peers' sums. So a thread waits only after it has
  // sent everything that it can send.
  template <int kRanks, typename Peers, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_vectors(const char* input, char* output, uint32_t count,
                                           const Shares<kRanks>& shares, const Peers& peers,
                                           const Reduce& reduce, const Group& group) {
    constexpr uint32_t kPeers = kRanks - 1;
    const auto load = [&](uint64_t share, uint32_t index) {
      return detail::load_data(input + share + Packet::offset(index));
    };
    const auto store = [&](uint64_t share, uint32_t index, const Data& data) {
      detail::store_data(output + share + Packet::offset(index), data);
    };
    // The loads of the first packets overlap with the load of the epoch.
    Data first[kPeers] = {};
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kPeers; ++k) {
      if (group.rank() < count) first[k] = load(shares.of_peer[k], group.rank());
    }
    if (!begin_message(group, 2)) return status_;
    typename Exchange::Trouble trouble = exchange_.trouble();
    if (trouble != 0) count = 0;
    (void)Exchange::for_several(count, group, [&](const auto& index) {
      constexpr uint32_t kCount = sizeof(index) / sizeof(index[0]);
      Data addends[kCount][kPeers];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kPeers; ++k)
          addends[i][k] = index[i] == group.rank() ? first[k] : load(shares.of_peer[k], index[i]);
      }
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kPeers; ++k) exchange_.send_to_peer(peers, k, index[i], addends[i][k], 0);
      }
      return true;
    });
    const auto sum = [&](const auto& index) {
      constexpr uint32_t kCount = sizeof(index) / sizeof(index[0]);
      Data own[kCount], theirs[kCount][kPeers];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) own[i] = load(shares.own, index[i]);
      trouble = exchange_.receive_from_peers(peers, index, 0, theirs);
      if (trouble != 0) return false;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        Data addends[kRanks];
        order_addends<kRanks>(own[i], theirs[i], addends);
        typename Reduce::template Sums<Data> sums;
        reduce.add(sums, addends, 0, kRanks);
        const Data result = reduce.template finish<Data>(sums, kRanks);
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kPeers; ++k) exchange_.send_to_peer(peers, k, index[i], result, kSums);
        store(shares.own, index[i], result);
      }
      return true;
    };
    const auto place = [&](const auto& index) {
      constexpr uint32_t kCount = sizeof(index) / sizeof(index[0]);
      Data sums[kCount][kPeers];
      trouble = exchange_.receive_from_peers(peers, index, kSums, sums);
      if (trouble != 0) return false;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kCount; ++i) {
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kPeers; ++k) store(shares.of_peer[k], index[i], sums[i][k]);
      }
      return true;
    };
    if (Exchange::for_several(count, group, sum)) (void)Exchange::for_several(count, group, place);
    return exchange_.conclude(group, trouble);
  }
  // Sorts the addends by rank. `theirs` starts with the addend of the next rank. The function uses
  // selections, because registers cannot be indexed at run time.
  template <int kRanks>
  VERBENA_DEVICE void order_addends(const Data& own, const Data (&theirs)[kRanks - 1],
                                    Data (&addends)[kRanks]) const {
    static_assert((kRanks & (kRanks - 1)) == 0, "verbena: kRanks must be a power of two");
    const uint32_t turns = static_cast<uint32_t>(context_.team_rank) + 1;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kRanks; ++i) addends[i] = i + 1 < kRanks ? theirs[i] : own;
    VERBENA_UNROLL
    for (uint32_t by = 1; by < kRanks; by *= 2) {
      Data turned[kRanks];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kRanks; ++i)
        turned[i] = (turns & by) != 0 ? addends[(i + kRanks - by) % kRanks] : addends[i];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kRanks; ++i) addends[i] = turned[i];
    }
  }

  // A round of a block. In a round, a block processes a part of every rank's share, in two calls that are in
  // flight at the same time.
  struct Round {
    uint64_t length_bytes, share_bytes;  // lengths of the tensor and of a share
    uint64_t begin, max_bytes;           // offset in each share, and max length

    VERBENA_DEVICE uint64_t offset(int32_t member) const {
      return static_cast<uint32_t>(member) * share_bytes + begin;
    }
    // The shares at the end of the tensor may be shorter, or empty.
    VERBENA_DEVICE uint32_t length(int32_t member) const {
      const uint64_t from = offset(member);
      if (from >= length_bytes) return 0;
      return static_cast<uint32_t>(length_bytes - from < max_bytes ? length_bytes - from : max_bytes);
    }
  };
  // Returns the length of a round. Each rank chooses all_reduce_bytes() or all_reduce_vectors() by the
  // alignment of its own tensors, so both functions must split a tensor in the same way. The tensor is split
  // into shares, each share is split into parts (one for each block), and each part is split into rounds. The
  // length of a round depends only on the length of a part and on the size of a slot.
  VERBENA_DEVICE uint64_t find_round_bytes(const Part& part) const {
    constexpr uint64_t kUnitBytes = 512 * kVectorBytes;  // one vector per thread of the largest block
    return detail::even_rounds(part.length_bytes, exchange_.capacity_bytes(), kUnitBytes);
  }

  // Runs a round for tensors of any alignment. A thread processes the packets with the same indices in all
  // shares; if there are enough threads, a thread has a single packet per share. A thread sends all addends
  // and then all sums, so it waits only after it has sent everything that it can send. For an empty share, a
  // packet without data is sent.
  template <int kRanks, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_message(const char* input, char* output, const Round& round,
                                           const Reduce& reduce, const Group& group) {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks, me = context_.team_rank;
    // FAULT(empty_share_is_silent)
    const auto count_of = [&](int32_t member) { return Packet::count(round.length(member)); };
    const auto share_of = [&](auto* tensor, int32_t member) {
      auto* const begin = const_cast<char*>(tensor) + round.offset(member);
      return MessageBytes(begin, round.length(member));
    };
    const uint32_t longest = count_of(0);
    for (uint32_t index = group.rank(); index < longest; index += group.size()) {
      VERBENA_UNROLL
      for (int32_t turn = 1; turn < size; ++turn) {
        const int32_t peer = me + turn < size ? me + turn : me + turn - size;
        if (index < count_of(peer)) exchange_.send_packet(peer, index, share_of(input, peer).load(index));
      }
    }
    Patience patience(context_);
    const auto receive_sums = [&](const auto& index) {
      constexpr uint32_t kCount = sizeof(index) / sizeof(index[0]);
      const auto has = [&](uint32_t i, int32_t member) {
        return member != me && index[i] < count_of(member);
      };
      const auto take = [&](uint32_t i, const auto& sums) {
        VERBENA_UNROLL
        for (int32_t k = 0; k < sums.kMaxCount; ++k) {
          const int32_t member = sums.first + k;
          if (k < sums.count && has(i, member)) share_of(output, member).store(index[i], sums.data[k]);
        }
      };
      const Data none[kCount] = {};
      return exchange_.template receive_several<kRanks>(index, has, patience, none, kSums, take);
    };
    const MessageBytes from = share_of(input, me), to = share_of(output, me);
    const bool have_come =
        exchange_.template reduce_packets<kRanks>(
            count_of(me), group, patience, reduce, [&](uint32_t index) { return from.load(index); },
            [&](uint32_t index, const Data& sum) {
              exchange_.template send_packet_to_all<kRanks>(index, sum, kSums);
              to.store(index, sum);
            }) &&
        Exchange::for_several(longest, group, receive_sums);
    return exchange_.conclude(group, have_come, patience);
  }
};

}  // namespace verbena::device

#endif
