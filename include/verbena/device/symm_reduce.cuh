// Sums across the ranks of a team that loads and stores reach. A group of whole warps on each rank takes
// part, with its own range and barrier: a grid splits the range by blocks. Every rank adds in the order of
// ranks, so all get the same bits. Elements of one and two bytes are added in float and rounded once
// (packed.cuh).
//
// One-shot: each rank reads all inputs; for small tensors. Two-shot: rank r sums the r-th part and writes the
// sum to all ranks; in place, and each link carries every byte once.
#ifndef VERBENA_DEVICE_SYMM_REDUCE_CUH
#define VERBENA_DEVICE_SYMM_REDUCE_CUH

#include "verbena/device/multimem.cuh"
#include "verbena/device/reduce_copy.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

namespace detail {

// Checks a call's team, and its size if the kernel was compiled for one; sets `*data` to the symmetric
// address.
template <typename T>
VERBENA_DEVICE SymmStatus check_reduction(const SymmContext& context, int ranks, T** data,
                                          uint64_t length_bytes) {
  if (context.has_remote != 0) return SymmStatus::kUnreachable;
  if (ranks != 0 && ranks != context.team_size) return SymmStatus::kInvalid;
  return find_symmetric(context, data, length_bytes) ? SymmStatus::kDone : SymmStatus::kInvalid;
}

}  // namespace detail

// Writes the sum of all ranks' `input`, `count` elements at the same symmetric address, to `output`: other
// memory of this GPU. The input may be changed when the call returns. kRanks is the team's size if it is
// known when the kernel is compiled, or 0.
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

// Sums in place `count` elements at the same symmetric address of every rank.
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

// Sums in place by NVLink's switches (multimem.cuh): rank r lets them sum the r-th part and store it at all
// ranks. `count` elements of float, Half or Bfloat16, aligned to 16 bytes, in whole vectors of 16 bytes. The
// switches choose the order of the sum. kUnreachable if the team has no multicast address: see
// symm_lsa_multicast_ptr().
template <typename T, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_all_reduce_multicast(const SymmContext& context,
                                                                  uint32_t barrier, T* data, uint64_t count,
                                                                  const Group& group = {}) {
  constexpr uint64_t kLanes = kVectorBytes / sizeof(T);
  SymmStatus status = detail::check_reduction(context, 0, &data, count * sizeof(T));
  if (status == SymmStatus::kDone && (count % kLanes != 0 || detail::offset_in_vector(data) != 0))
    status = SymmStatus::kInvalid;
  if (status == SymmStatus::kDone && context.multicast_delta == 0) status = SymmStatus::kUnreachable;
  if (status != SymmStatus::kDone) return status;
  T* const everywhere = symm_lsa_multicast_ptr(context, data);
  fence_multicast();
  status = symm_lsa_barrier(context, barrier, group);
  if (status != SymmStatus::kDone) return status;
  fence_multicast();
  const auto size = static_cast<uint64_t>(context.team_size);
  const uint64_t vectors = count / kLanes, part = (vectors + size - 1) / size;
  const uint64_t begin = part * static_cast<uint64_t>(context.team_rank);
  const uint64_t end = begin + part < vectors ? begin + part : vectors;
  for (uint64_t i = begin + group.rank(); i < end; i += group.size())
    multimem_store_packed(everywhere + i * kLanes, multimem_load_sum(everywhere + i * kLanes));
  fence_multicast();
  status = symm_lsa_barrier(context, barrier, group);
  fence_multicast();
  return status;
}

}  // namespace verbena::device

#endif
