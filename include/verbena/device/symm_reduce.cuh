// All-reduces (sums) for teams whose members all reach each other by loads and stores. On each rank, a group
// of whole warps makes the call. Each group has a separate range of elements and a separate barrier, so a
// grid can split a tensor over its blocks. Elements are added in rank order, so all ranks get the same bits.
// Elements of one or two bytes are converted to float, added, and rounded once (packed.cuh).
//
// One-shot: each rank reads the inputs of all ranks; best for small tensors. Two-shot: rank r sums the r-th
// part in place and writes the sum to all ranks, so each byte crosses each link only once.
#ifndef VERBENA_DEVICE_SYMM_REDUCE_CUH
#define VERBENA_DEVICE_SYMM_REDUCE_CUH

#include "verbena/device/multimem.cuh"
#include "verbena/device/reduce_copy.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

namespace detail {

// Checks that loads and stores reach all members, that the team has `ranks` members (unless `ranks` is 0),
// and that the data lies in a window. If the data is in registered memory, replaces its address with the
// symmetric address.
template <typename T>
VERBENA_DEVICE SymmStatus check_reduction(const SymmContext& context, int ranks, T** data,
                                          uint64_t length_bytes) {
  if (context.has_remote != 0) return SymmStatus::kUnreachable;
  if (ranks != 0 && ranks != context.team_size) return SymmStatus::kInvalid;
  return find_symmetric(context, data, length_bytes) ? SymmStatus::kDone : SymmStatus::kInvalid;
}

}  // namespace detail

// Writes the sum of all ranks' `input` to `output`. The caller may change the input as soon as the call
// returns.
// @tparam kRanks  size of the team, if known when the kernel is compiled; otherwise 0
// @param output   `count` elements of this GPU's memory; must not overlap `input`
// @param input    `count` elements in a window, at the same offset on all ranks
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

// Sums `data` across all ranks, in place.
// @param data  `count` elements in a window, at the same offset on all ranks
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

// Sums `data` across all ranks, in place, in the NVLink switches (multimem.cuh). Rank r makes the switches
// sum the r-th part and store the sum at all ranks. The switches choose the order of the additions.
// @param data   `count` elements of float, Half or Bfloat16 in a window, at the same offset on all ranks,
//               aligned to 16 bytes
// @param count  a multiple of the number of elements in 16 bytes
// @return kUnreachable if the team has no multicast address (symm_lsa_multicast_ptr)
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
