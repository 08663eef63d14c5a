// Sums over all ranks of a team in reach of each other, by loads and stores. A group of whole warps on each
// rank takes part, for a range of its own with a barrier of its own: a grid cuts the range by blocks. Every
// rank adds in the order of ranks, so that all get the same bits.
//
// One shot: each rank reads all inputs; for few bytes. Two shots: rank r sums the r-th part and writes it to
// all; in place, and each link carries every byte once.
#ifndef VERBENA_DEVICE_SYMM_REDUCE_CUH
#define VERBENA_DEVICE_SYMM_REDUCE_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/symm_barrier.cuh"

namespace verbena::device {

namespace detail {

inline constexpr int32_t kLoadsAhead = 8;  // of as many peers at once

template <typename T>
struct Lanes16 {
  T values[kVectorBytes / sizeof(T)];
};

// `Element` is T, or Lanes16<T> at a multiple of 16 bytes.
template <typename T>
VERBENA_DEVICE T add(T left, T right) {
  return left + right;
}
template <typename T>
VERBENA_DEVICE Lanes16<T> add(Lanes16<T> left, const Lanes16<T>& right) {
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kVectorBytes / sizeof(T); ++i) left.values[i] += right.values[i];
  return left;
}
template <typename T>
VERBENA_DEVICE T load_element(const T* address) {
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(address);
}
template <typename T>
VERBENA_DEVICE Lanes16<T> load_element(const Lanes16<T>* address) {
  return __builtin_bit_cast(Lanes16<T>, load_data(reinterpret_cast<const char*>(address)));
}
template <typename T>
VERBENA_DEVICE void store_element(T* address, T value) {
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(address, value);
}
template <typename T>
VERBENA_DEVICE void store_element(Lanes16<T>* address, const Lanes16<T>& value) {
  store_data(reinterpret_cast<char*>(address), __builtin_bit_cast(Vector16, value));
}

// Of one element over all ranks; the loads of several peers are under way at once.
template <typename Element>
VERBENA_DEVICE Element sum_ranks(const SymmContext& context, const Element* input) {
  Element sum{};
  for (int32_t first = 0; first < context.team_size; first += kLoadsAhead) {
    Element values[kLoadsAhead];
    VERBENA_UNROLL
    for (int32_t i = 0; i < kLoadsAhead; ++i) {
      if (first + i < context.team_size)
        values[i] = load_element(shift(input, get_delta(context, first + i)));
    }
    VERBENA_UNROLL
    for (int32_t i = 0; i < kLoadsAhead; ++i) {
      if (first + i < context.team_size) sum = first + i == 0 ? values[0] : add(sum, values[i]);
    }
  }
  return sum;
}

// Calls `body(element index)` with elements of 16 bytes where `is_aligned`, and of one T for the rest.
template <typename T, typename Group, typename Body>
VERBENA_DEVICE void for_elements(const Group& group, bool is_aligned, uint64_t count, const Body& body) {
  constexpr uint64_t kLanes = kVectorBytes / sizeof(T);
  const uint64_t vectors = is_aligned ? count / kLanes : 0;
  for (uint64_t i = group.rank(); i < vectors; i += group.size()) body(Lanes16<T>{}, i);
  for (uint64_t i = vectors * kLanes + group.rank(); i < count; i += group.size()) body(T{}, i);
}

}  // namespace detail

// `output`, memory of this GPU that is not the input, becomes the sum of all ranks' `input`, `count` elements
// at the same symmetric address. When it returns, the input may be changed.
template <typename T, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_all_reduce_one_shot(const SymmContext& context, uint32_t barrier,
                                                                 T* output, const T* input, uint64_t count,
                                                                 const Group& group = {}) {
  if (context.has_remote != 0) return SymmStatus::kUnreachable;
  if (!detail::is_in_heap(context, input, count * sizeof(T))) return SymmStatus::kInvalid;
  SymmStatus status = symm_lsa_barrier(context, barrier, group);
  if (status != SymmStatus::kDone) return status;
  const bool is_aligned = detail::offset_in_vector(output) == 0 && detail::offset_in_vector(input) == 0;
  detail::for_elements<T>(group, is_aligned, count, [&](auto kind, uint64_t i) {
    using Element = decltype(kind);
    detail::store_element(reinterpret_cast<Element*>(output) + i,
                          detail::sum_ranks(context, reinterpret_cast<const Element*>(input) + i));
  });
  return symm_lsa_barrier(context, barrier, group);
}

// In place, `count` elements at the same symmetric address of every rank.
template <typename T, typename Group = BlockGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_all_reduce_two_shot(const SymmContext& context, uint32_t barrier,
                                                                 T* data, uint64_t count,
                                                                 const Group& group = {}) {
  if (context.has_remote != 0) return SymmStatus::kUnreachable;
  if (!detail::is_in_heap(context, data, count * sizeof(T))) return SymmStatus::kInvalid;
  SymmStatus status = symm_lsa_barrier(context, barrier, group);
  if (status != SymmStatus::kDone) return status;
  constexpr uint64_t kLanes = kVectorBytes / sizeof(T);
  const auto size = static_cast<uint64_t>(context.team_size);
  const uint64_t part = (count + size * kLanes - 1) / (size * kLanes) * kLanes;
  const uint64_t begin = part * static_cast<uint64_t>(context.team_rank);
  const uint64_t mine = begin >= count ? 0 : (count - begin < part ? count - begin : part);
  detail::for_elements<T>(group, detail::offset_in_vector(data) == 0, mine, [&](auto kind, uint64_t i) {
    using Element = decltype(kind);
    Element* const place = reinterpret_cast<Element*>(data + begin) + i;
    const Element sum = detail::sum_ranks(context, place);
    for (int32_t peer = 0; peer < context.team_size; ++peer)
      detail::store_element(detail::shift(place, detail::get_delta(context, peer)), sum);
  });
  return symm_lsa_barrier(context, barrier, group);
}

}  // namespace verbena::device

#endif
