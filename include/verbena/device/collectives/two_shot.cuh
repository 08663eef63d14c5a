// All-reduce in two shots by packets: rank r sums the r-th part and sends the sum to all. Each link carries
// every byte once each way, and nobody waits at a barrier: a thread that has the packets of its sums sends
// them on at once. For tensors of some 100 KiB to some MiB; larger ones do without flags in the data
// (bulk.cuh).
//
//   TwoShot<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, count);   // as often as needed, of any sizes
//   status = calls.finish();
//
// Rules, order of sums and errors are those of one_shot.cuh, and the bits of the results are the same. Calls
// of both may follow each other on one workspace, launch by launch.
#ifndef VERBENA_DEVICE_COLLECTIVES_TWO_SHOT_CUH
#define VERBENA_DEVICE_COLLECTIVES_TWO_SHOT_CUH

#include "verbena/device/collectives/exchange_plan.cuh"

namespace verbena::device {

template <typename Context = SymmContext>
class TwoShot {
 public:
  // As OneShot's.
  VERBENA_DEVICE TwoShot(const SymmWorkspace<Context>& workspace, uint32_t block, uint32_t blocks,
                         const GridStart& start = {})
      : exchange_(workspace, block),
        context_(workspace.context),
        start_(start),
        block_(block),
        blocks_(blocks) {
    if (block >= blocks || blocks > workspace.blocks.count) status_ = SymmStatus::kInvalid;
  }

  // As OneShot's, in place too.
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    return all_reduce_bytes<kRanks>(reinterpret_cast<const char*>(input), reinterpret_cast<char*>(output),
                                    count * sizeof(T), ReduceAs<T>{}, group);
  }
  template <int kRanks = 0, typename Reduce, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_bytes(const char* input, char* output,
                                                           uint64_t length_bytes, const Reduce& reduce,
                                                           const Group& group = {}) {
    if (status_ == SymmStatus::kDone && !exchange_.is_size(kRanks)) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    const auto size = static_cast<uint64_t>(context_.team_size);
    const Part part = find_part(length_bytes, block_, blocks_);
    const uint64_t room = exchange_.capacity_bytes() * size;
    const uint64_t most = room < kMostBytes ? room : kMostBytes;
    for (uint64_t at = 0; at < part.length_bytes; at += most) {
      if (!begin_messages(group)) return status_;
      const auto length = static_cast<uint32_t>(detail::cut_round(part, at, most));
      const uint64_t offset = part.begin + at;
      status_ = reduce_message<kRanks>(input + offset, output + offset, length, reduce, group);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone && has_begun_) status_ = exchange_.finish(group);
    return status_;
  }

 private:
  using Exchange = LowLatency<Context>;
  using Data = Packet::Data;
  static constexpr uint64_t kMostBytes = uint64_t{1} << 31;  // of a message: offsets have 32 bits
  static constexpr uint32_t kSums = 1;  // the call in which sums travel, behind that of the terms

  template <typename Group>
  VERBENA_DEVICE bool begin_messages(const Group& group) {
    if (!has_begun_) start_();
    status_ = has_begun_ ? exchange_.turn(group, Heard::kEverybody, 2) : exchange_.begin(group, 2);
    has_begun_ = true;
    return status_ == SymmStatus::kDone;
  }

  // A thread has the same packets of each rank's share: enough threads have one each. It sends all terms,
  // then all sums: nobody waits before everything that can be is on its way.
  template <int kRanks, typename Reduce, typename Group>
  VERBENA_DEVICE SymmStatus reduce_message(const char* input, char* output, uint32_t length_bytes,
                                           const Reduce& reduce, const Group& group) {
    const int32_t size = kRanks == 0 ? context_.team_size : kRanks, me = context_.team_rank;
    // Shares are of whole packets: all but the last that are not empty are equally long, and who has an empty
    // one sends a packet without data.
    const uint32_t packets = Packet::count(length_bytes);
    const uint32_t share = (packets + static_cast<uint32_t>(size) - 1) / static_cast<uint32_t>(size);
    const auto first_of = [&](int32_t member) { return share * static_cast<uint32_t>(member); };
    const auto count_of = [&](int32_t member) {
      const uint32_t first = first_of(member);
      return first >= packets ? 1u : packets - first < share ? packets - first : share;
    };
    const uint32_t mine = count_of(me);
    const MessageBytes from(input, length_bytes);
    const MessageBytes to(output, length_bytes);
    for (uint32_t index = group.rank(); index < share; index += group.size()) {
      VERBENA_UNROLL
      for (int32_t turn = 1; turn < size; ++turn) {
        const int32_t peer = me + turn < size ? me + turn : me + turn - size;
        if (index < count_of(peer)) exchange_.send_packet(peer, index, from.load(first_of(peer) + index));
      }
    }
    Patience patience(context_);
    const auto receive_sums = [&](const auto& index) {
      constexpr uint32_t kCount = sizeof(index) / sizeof(index[0]);
      const auto has = [&](uint32_t i, int32_t member) { return index[i] < count_of(member); };
      const auto take = [&](uint32_t i, const auto& sums) {
        VERBENA_UNROLL
        for (int32_t k = 0; k < sums.kMost; ++k) {
          const int32_t member = sums.first + k;
          if (k < sums.count && member != me && has(i, member))
            to.store(first_of(member) + index[i], sums.data[k]);
        }
      };
      const Data none[kCount] = {};
      return exchange_.template receive_several<kRanks>(index, has, patience, none, kSums, take);
    };
    const bool have_come =
        exchange_.template reduce_packets<kRanks>(
            mine, group, patience, reduce, [&](uint32_t index) { return from.load(first_of(me) + index); },
            [&](uint32_t index, const Data& sum) {
              exchange_.template send_packet_to_all<kRanks>(index, sum, kSums);
              to.store(first_of(me) + index, sum);
            }) &&
        Exchange::for_several(share, group, receive_sums);
    return exchange_.conclude(group, have_come, patience);
  }

  Exchange exchange_;
  const Context& context_;
  GridStart start_;
  uint32_t block_, blocks_;
  bool has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
