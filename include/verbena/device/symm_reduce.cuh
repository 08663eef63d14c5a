// Sums over all ranks of a team in reach of each other, by loads and stores. A group of whole warps on each
// rank takes part, for a range of its own with a barrier of its own: a grid cuts the range by blocks. Every
// rank adds in the order of ranks, so that all get the same bits; numbers of one and two bytes in float,
// rounded once (packed.cuh).
//
// One shot: each rank reads all inputs; for few bytes. Two shots: rank r sums the r-th part and writes it to
// all; in place, and each link carries every byte once.
#ifndef VERBENA_DEVICE_SYMM_REDUCE_CUH
#define VERBENA_DEVICE_SYMM_REDUCE_CUH

#include "verbena/device/reduce_copy.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

namespace detail {

// Whether a call is for the team, its size among others if the kernel has it; `*data` becomes symmetric.
template <typename T>
VERBENA_DEVICE SymmStatus check_reduction(const SymmContext& context, int ranks, T** data,
                                          uint64_t length_bytes) {
  if (context.has_remote != 0) return SymmStatus::kUnreachable;
  if (ranks != 0 && ranks != context.team_size) return SymmStatus::kInvalid;
  return find_symmetric(context, data, length_bytes) ? SymmStatus::kDone : SymmStatus::kInvalid;
}

}  // namespace detail

// `output`, memory of this GPU that is not the input, becomes the sum of all ranks' `input`, `count` elements
// at the same symmetric address. When it returns, the input may be changed. kRanks is the team's size, if it
// is known when the kernel is compiled, or 0.
template <int kRanks = 0, typename T, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_all_reduce_one_shot(const SymmContext& context, uint32_t barrier,
                                                                 T* output, const T* input, uint64_t count,
                                                                 const Group& group = {}) {
  SymmStatus status = detail::check_reduction(context, kRanks, &input, count * sizeof(T));
  if (status == SymmStatus::kDone) status = symm_lsa_barrier(context, barrier, group);
  if (status != SymmStatus::kDone) return status;
  const bool is_aligned = detail::offset_in_vector(output) == 0 && detail::offset_in_vector(input) == 0;
  reduce_copy<kRanks>(context, group, input, count, is_aligned, AsTheyAre{},
                      [&](uint64_t index, const auto& sum) { store_packed(output + index, sum.round()); });
  return symm_lsa_barrier(context, barrier, group);
}

// In place, `count` elements at the same symmetric address of every rank.
template <int kRanks = 0, typename T, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_all_reduce_two_shot(const SymmContext& context, uint32_t barrier,
                                                                 T* data, uint64_t count,
                                                                 const Group& group = {}) {
  SymmStatus status = detail::check_reduction(context, kRanks, &data, count * sizeof(T));
  if (status == SymmStatus::kDone) status = symm_lsa_barrier(context, barrier, group);
  if (status != SymmStatus::kDone) return status;
  constexpr uint64_t kLanes = kVectorBytes / sizeof(T);
  const auto size = static_cast<uint64_t>(context.team_size);
  const uint64_t part = (count + size * kLanes - 1) / (size * kLanes) * kLanes;
  const uint64_t begin = part * static_cast<uint64_t>(context.team_rank);
  const uint64_t mine = begin >= count ? 0 : (count - begin < part ? count - begin : part);
  const RankDeltas<kRanks> deltas(context);
  reduce_copy<kRanks>(
      context, group, data + begin, mine, detail::offset_in_vector(data) == 0, AsTheyAre{},
      [&](uint64_t index, const auto& sum) {
        const auto rounded = sum.round();
        deltas.for_each([&](int32_t peer) { store_packed(deltas.at(data + begin + index, peer), rounded); });
      });
  return symm_lsa_barrier(context, barrier, group);
}

}  // namespace verbena::device

#endif
