// Sums a range of elements across the ranks of a team that reach each other by loads and stores. A group of
// threads keeps the loads of several ranks and vectors in flight. The caller passes two functions: the
// prologue transforms each rank's elements before they are added, and the epilogue receives the sums.
//
// If the team's size is known at compile time, pass it as kRanks; otherwise pass 0. With a known size, the
// ranks' addresses stay in registers, and the loops over ranks contain no branches. No function here waits,
// so the caller must synchronise the ranks by barriers, signals or flags.
#ifndef VERBENA_DEVICE_REDUCE_COPY_CUH
#define VERBENA_DEVICE_REDUCE_COPY_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/packed.cuh"
#include "verbena/device/symm_team.cuh"

namespace verbena::device {

// The deltas (SymmContext::inline_deltas) of all ranks. at() returns the address of a rank's memory at the
// same offset; for_each() calls `body(rank)` for each rank.
template <int kRanks>
class RankDeltas {
 public:
  VERBENA_DEVICE explicit RankDeltas(const SymmContext& context) {
    VERBENA_UNROLL
    for (int32_t rank = 0; rank < kRanks; ++rank) bytes_[rank] = detail::get_delta(context, rank);
  }
  VERBENA_DEVICE static constexpr int32_t size() { return kRanks; }
  template <typename T>
  VERBENA_DEVICE T* at(T* symmetric, int32_t rank) const {
    return detail::shift(symmetric, bytes_[rank]);
  }
  template <typename Body>
  VERBENA_DEVICE static void for_each(const Body& body) {
    VERBENA_UNROLL
    for (int32_t rank = 0; rank < kRanks; ++rank) body(rank);
  }

 private:
  int64_t bytes_[kRanks];
};
// Specialisation for teams whose size is not known at compile time. Reads the deltas from the context
// each time.
template <>
class RankDeltas<0> {
 public:
  VERBENA_DEVICE explicit RankDeltas(const SymmContext& context) : context_(context) {}
  VERBENA_DEVICE int32_t size() const { return context_.team_size; }
  template <typename T>
  VERBENA_DEVICE T* at(T* symmetric, int32_t rank) const {
    return detail::shift(symmetric, detail::get_delta(context_, rank));
  }
  template <typename Body>
  VERBENA_DEVICE void for_each(const Body& body) const {
    for (int32_t rank = 0; rank < context_.team_size; ++rank) body(rank);
  }

 private:
  const SymmContext& context_;
};

// A prologue that leaves a rank's elements unchanged.
struct AsTheyAre {
  template <typename Elements>
  VERBENA_DEVICE const Elements& operator()(int32_t, const Elements& numbers) const {
    return numbers;
  }
};

namespace detail {

inline constexpr uint32_t kLoadsInFlight = 8;  // loads per thread, of 16 bytes each

// Sums the first `count` vectors of at most kVectors. The vectors are `step` elements apart.
template <int kRanks, uint32_t kBytes, uint32_t kVectors, typename T, typename Prologue, typename Epilogue>
VERBENA_DEVICE void reduce_places(const RankDeltas<kRanks>& deltas, const T* input, uint64_t first,
                                  uint64_t step, uint32_t count, const Prologue& prologue,
                                  const Epilogue& epilogue) {
  constexpr int32_t kAtOnce = kRanks == 0 ? static_cast<int32_t>(kLoadsInFlight) : kRanks;
  PackedSum<T, kBytes> sums[kVectors];
  for (int32_t begin = 0; begin < deltas.size(); begin += kAtOnce) {
    Packed<T, kBytes> numbers[kVectors][kAtOnce];
    VERBENA_UNROLL
    for (uint32_t vector = 0; vector < kVectors; ++vector) {
      VERBENA_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (vector < count && (kRanks != 0 || begin + i < deltas.size()))
          numbers[vector][i] = load_packed<kBytes>(deltas.at(input + first + vector * step, begin + i));
      }
    }
    VERBENA_UNROLL
    for (uint32_t vector = 0; vector < kVectors; ++vector) {
      VERBENA_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (vector >= count || (kRanks == 0 && begin + i >= deltas.size())) continue;
        if (begin + i == 0) {
          sums[vector].begin(prologue(0, numbers[vector][i]));
        } else {
          sums[vector].add(prologue(begin + i, numbers[vector][i]));
        }
      }
    }
  }
  VERBENA_UNROLL
  for (uint32_t vector = 0; vector < kVectors; ++vector) {
    if (vector < count) epilogue(first + vector * step, sums[vector]);
  }
}

// Sums elements from `begin` up to `end`, in vectors of kBytes.
template <int kRanks, uint32_t kBytes, typename T, typename Group, typename Prologue, typename Epilogue>
VERBENA_DEVICE void reduce_range(const RankDeltas<kRanks>& deltas, const Group& group, const T* input,
                                 uint64_t begin, uint64_t end, const Prologue& prologue,
                                 const Epilogue& epilogue) {
  constexpr uint32_t kVectors = kRanks == 0 || kRanks >= static_cast<int>(kLoadsInFlight)
                                    ? 1
                                    : kLoadsInFlight / (kRanks == 0 ? 1 : kRanks);
  constexpr uint64_t kCount = kBytes / sizeof(T);
  const uint64_t step = group.size() * kCount;
  for (uint64_t first = begin + group.rank() * kCount; first < end; first += kVectors * step) {
    const uint64_t there = (end - first + step - 1) / step;
    reduce_places<kRanks, kBytes, kVectors>(deltas, input, first, step,
                                            there < kVectors ? static_cast<uint32_t>(there) : kVectors,
                                            prologue, epilogue);
  }
}

}  // namespace detail

// Sums `count` elements at `input` across all ranks, and calls `epilogue(index, sum)` for each vector of
// sums.
// @param input  address of this rank's elements; it must lie in a window, at the same offset on all ranks
// @param is_aligned  true if all addresses are multiples of 16, so that elements can be processed in 16-byte
//                    vectors; if false, elements are processed one by one
// @param prologue  prologue(rank, elements) returns the Packed elements to add for a rank
// @param epilogue  `sum` is a PackedSum (packed.cuh) of the elements that start at `index`; the ranks'
//                  elements are added in rank order. sum.round() rounds and packs the sums
template <int kRanks = 0, typename T, typename Group, typename Prologue, typename Epilogue>
VERBENA_DEVICE void reduce_copy(const SymmContext& context, const Group& group, const T* input,
                                uint64_t count, bool is_aligned, const Prologue& prologue,
                                const Epilogue& epilogue) {
  constexpr uint64_t kLanes = kVectorBytes / sizeof(T);
  const RankDeltas<kRanks> deltas(context);
  const uint64_t in_vectors = is_aligned ? count / kLanes * kLanes : 0;
  detail::reduce_range<kRanks, kVectorBytes>(deltas, group, input, 0, in_vectors, prologue, epilogue);
  detail::reduce_range<kRanks, sizeof(T)>(deltas, group, input, in_vectors, count, prologue, epilogue);
}

}  // namespace verbena::device

#endif
