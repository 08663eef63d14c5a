// All-reduce of tensors that lie in windows, at the same offset on all ranks. Rank r reads the r-th part of
// the inputs of all ranks in place, and writes the sum to the outputs of all ranks. Nothing is copied to a
// workspace. A barrier at the start ensures that all inputs are ready and that all outputs may be written. A
// barrier at the end ensures that all outputs are complete.
//
// The order of additions and the errors are the same as in one_shot.cuh. Block b uses LSA barrier b
// (symm_barrier.cuh).
#ifndef VERBENA_DEVICE_COLLECTIVES_DIRECT_CUH
#define VERBENA_DEVICE_COLLECTIVES_DIRECT_CUH

#include "verbena/device/collectives/exchange_plan.cuh"
#include "verbena/device/reduce_copy.cuh"

namespace verbena::device {

// Reduces this block's part of the tensor. The tensor is split over `blocks` blocks. `reduce` is a reduction
// of reduction.cuh.
// @param output  may be `input` itself; both are in windows and aligned to 16 bytes
// @tparam kRanks  size of the team, if known at compile time; otherwise 0
template <int kRanks = 0, typename Reduce, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_in_windows(const SymmContext& context, uint32_t block,
                                                              uint32_t blocks, const char* input,
                                                              char* output, uint64_t length_bytes,
                                                              const Reduce& reduce, const Group& group = {}) {
  constexpr int32_t kAtOnce = kRanks == 0 ? 4 : kRanks;
  constexpr uint32_t kVectors = kRanks == 2 ? 4 : kRanks == 4 ? 2 : 1;
  const bool is_right = (kRanks == 0 || kRanks == context.team_size) &&
                        detail::is_in_heap(context, input, length_bytes) &&
                        detail::is_in_heap(context, output, length_bytes) &&
                        detail::offset_in_vector(input) == 0 && detail::offset_in_vector(output) == 0;
  if (context.has_remote != 0) return SymmStatus::kUnreachable;
  if (!is_right) return SymmStatus::kInvalid;
  SymmStatus status = detail::begin_in_step(context, group);
  // FAULT(direct_begins_alone)
  if (status == SymmStatus::kDone) status = symm_lsa_barrier(context, block, group);
  if (status != SymmStatus::kDone) return status;
  const int32_t size = kRanks == 0 ? context.team_size : kRanks;
  const Part share =
      find_part(length_bytes, static_cast<uint32_t>(context.team_rank), static_cast<uint32_t>(size));
  const Part part = find_part(share.length_bytes, block, blocks);
  const char* const from = input + share.begin + part.begin;
  char* const to = output + share.begin + part.begin;
  const RankDeltas<kRanks> deltas(context);
  const uint64_t step = group.size() * uint64_t{kVectorBytes};
  // The last bytes of the tensor may not fill a vector.
  const auto load_some = [&](int32_t rank, uint64_t offset) {
    const char* const theirs = deltas.at(from, rank) + offset;
    const uint64_t left = part.length_bytes - offset;
    if (left >= kVectorBytes) return detail::load_data(theirs);
    return detail::load_vector(theirs, 0, static_cast<uint32_t>(left));
  };
  for (uint64_t first = group.rank() * uint64_t{kVectorBytes}; first < part.length_bytes;
       first += kVectors * step) {
    typename Reduce::template Sums<Vector16> sums[kVectors];
    VERBENA_UNROLL_BY(1)
    for (int32_t begin = 0; begin < size; begin += kAtOnce) {
      Vector16 addends[kVectors][kAtOnce];
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        VERBENA_UNROLL
        for (int32_t i = 0; i < kAtOnce; ++i) {
          if (first + k * step < part.length_bytes && begin + i < size)
            addends[k][i] = load_some(begin + i, first + k * step);
        }
      }
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kVectors; ++k) {
        if (first + k * step < part.length_bytes)
          reduce.add(sums[k], addends[k], begin, size - begin < kAtOnce ? size - begin : kAtOnce);
      }
    }
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kVectors; ++k) {
      const uint64_t offset = first + k * step;
      if (offset >= part.length_bytes) break;
      const Vector16 sum = reduce.template finish<Vector16>(sums[k], size);
      const uint64_t left = part.length_bytes - offset;
      deltas.for_each([&](int32_t rank) {
        detail::store_vector(deltas.at(to, rank) + offset, 0,
                             static_cast<uint32_t>(left < kVectorBytes ? left : kVectorBytes), sum);
      });
    }
  }
  return symm_lsa_barrier(context, block, group);  // FAULT(direct_ends_alone)
}

}  // namespace verbena::device

#endif
