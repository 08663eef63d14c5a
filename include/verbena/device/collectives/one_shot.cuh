// Collectives in one shot by packets (low_latency.cuh): each rank sends what it has to all others, and who
// polls a flag has the data. No barrier, no fence before the first packet; for small tensors, since each rank
// sends its tensor to every other one.
//
//   OneShot<> calls(workspace, block_index(), blocks);
//   status = calls.all_reduce(input, output, count);   // or all_gather; as often as needed, of any sizes
//   status = calls.finish();
//
// `blocks` blocks of each rank share out every tensor: block b of a rank meets the blocks b of the others and
// no other block, so blocks need not run at the same time. All ranks make the same calls in the same order,
// with the same counts, types and `blocks`; threads may differ. A kernel goes on where the one before it on
// this workspace ended: one launch follows the other, in one stream.
//
// Every rank adds in the order of ranks, in float (packed.cuh) and rounded once: the same bits on all of
// them, and neither the count nor `blocks` changes an element's order. Every wait ends by the context's
// limits. After an error, which says more in SymmContext::failure, all further calls return it until the
// hosts have reset the workspace (verbena_workspace_reset).
#ifndef VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CUH
#define VERBENA_DEVICE_COLLECTIVES_ONE_SHOT_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/low_latency.cuh"

namespace verbena::device {

namespace detail {

// A block's part of `count` elements. Parts begin at a multiple of kVectorBytes from the first element, so
// that each is aligned as the whole is; all but the last are equally long.
struct BlockPart {
  uint64_t begin, count;
};
template <typename T>
VERBENA_DEVICE BlockPart find_part(uint64_t count, uint32_t block, uint32_t blocks) {
  constexpr uint64_t kLanes = kVectorBytes / sizeof(T);
  const uint64_t vectors = (count + kLanes - 1) / kLanes;
  const uint64_t part = (vectors + blocks - 1) / blocks * kLanes, begin = part * block;
  if (begin >= count) return {count, 0};
  return {begin, count - begin < part ? count - begin : part};
}

// int32 wraps round: it is added as what has the same bits and is allowed to.
template <typename T>
struct SummedAs {
  using Type = T;
};
template <>
struct SummedAs<int32_t> {
  using Type = uint32_t;
};

}  // namespace detail

template <typename Packet = Packet16, typename Context = SymmContext>
class OneShot {
 public:
  // By all threads of the group that makes the calls. The workspace has at least `blocks` blocks; `block` is
  // below that. The workspace outlives this.
  VERBENA_DEVICE OneShot(const SymmWorkspace<Context>& workspace, uint32_t block, uint32_t blocks)
      : exchange_(workspace, block),
        team_rank_(workspace.context.team_rank),
        team_size_(workspace.context.team_size),
        block_(block),
        blocks_(blocks) {
    if (block >= blocks || blocks > workspace.blocks.count) status_ = SymmStatus::kInvalid;
  }

  // `output` becomes the sum of all ranks' `input`, `count` numbers of float, Half, Bfloat16 or int32_t, both
  // at any address of this GPU. `output` may be `input`; they do not overlap in another way. When it returns,
  // this block's part of the output is there for the group's threads, and of the input may be changed. kRanks
  // is the team's size if that is known when the kernel is compiled, or 0.
  template <int kRanks = 0, typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    using Number = typename detail::SummedAs<T>::Type;
    if (status_ != SymmStatus::kDone) return status_;
    const detail::BlockPart part = detail::find_part<T>(count, block_, blocks_);
    const auto* const from = reinterpret_cast<const Number*>(input) + part.begin;
    auto* const to = reinterpret_cast<Number*>(output) + part.begin;
    const uint64_t most = exchange_.capacity_bytes() / kVectorBytes * (kVectorBytes / sizeof(T));
    // A block without a part has nothing to say on any rank, and its peers do not wait for it.
    for (uint64_t at = 0; at < part.count; at += most) {
      if (!begin_message(group)) return status_;
      const uint64_t length = part.count - at < most ? part.count - at : most;
      status_ = exchange_.template broadcast<kRanks>(from + at, length * sizeof(T), group);
      if (status_ != SymmStatus::kDone) return status_;
      status_ = exchange_.template receive_reduce<kRanks>(from + at, to + at, length, group);
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

  // `output` becomes all ranks' `input`, `count` elements each, in the order of ranks: team_size * count
  // elements of any type. `input` may be this rank's part of the output; they do not overlap in another way.
  // Otherwise as all_reduce().
  template <typename T, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_gather(const T* input, T* output, uint64_t count,
                                                     const Group& group = {}) {
    if (status_ != SymmStatus::kDone) return status_;
    const detail::BlockPart part = detail::find_part<T>(count, block_, blocks_);
    const uint64_t most = exchange_.capacity_bytes() / kVectorBytes * (kVectorBytes / sizeof(T));
    T* const own = output + static_cast<uint64_t>(team_rank_) * count + part.begin;
    for (uint64_t at = 0; at < part.count; at += most) {
      if (!begin_message(group)) return status_;
      const T* const from = input + part.begin + at;
      const uint64_t length_bytes = (part.count - at < most ? part.count - at : most) * sizeof(T);
      status_ = exchange_.broadcast(from, length_bytes, group);
      if (from != own + at) copy_group(group, own + at, from, length_bytes);
      // Each rank begins with the one whose packets were sent to it first.
      for (int32_t step = 1; step < team_size_ && status_ == SymmStatus::kDone; ++step) {
        const int32_t peer = (team_rank_ - step + team_size_) % team_size_;
        T* const to = output + static_cast<uint64_t>(peer) * count + part.begin + at;
        status_ = exchange_.receive(peer, to, length_bytes, group);
      }
      if (status_ != SymmStatus::kDone) return status_;
    }
    return SymmStatus::kDone;
  }

  // Behind the last call of a kernel. The first error of the calls, if there was one.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone && has_begun_) status_ = exchange_.finish(group);
    return status_;
  }

 private:
  // Turns are taken before a message and not behind it, as nobody knows which is a kernel's last.
  template <typename Group>
  VERBENA_DEVICE bool begin_message(const Group& group) {
    status_ = has_begun_ ? exchange_.turn(group) : exchange_.begin(group);
    has_begun_ = true;
    return status_ == SymmStatus::kDone;
  }

  LowLatency<Packet, Context> exchange_;
  int32_t team_rank_, team_size_;
  uint32_t block_, blocks_;
  bool has_begun_ = false;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
