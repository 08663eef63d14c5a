#pragma once
#include <cstdint>
#include <span>

#include "nccl-perf/collective.h"

namespace verbena::tools::nccl {

// The data of a run: element `index` that `rank` sends in round `salt` is the scrambled index times a factor
// that depends on rank and round. Sums are modulo 2^32, so every order of reduction gives the same result,
// and the expected sum over many ranks costs no more than over one.
inline constexpr uint32_t scramble(uint32_t index) {
  uint32_t x = index * 0x9E3779B1U + 0x85EBCA77U;
  x ^= x >> 15;
  x *= 0x2C1B3C6DU;
  x ^= x >> 12;
  x *= 0x297A2D39U;
  return x ^ (x >> 15);
}

inline constexpr uint32_t compute_factor(uint32_t rank, uint32_t salt) {
  return scramble(rank * 0xC2B2AE3DU + salt) | 1;
}

// Fills elements from `first_index` on.
inline void fill_elements(std::span<uint32_t> elements, uint32_t first_index, uint32_t rank, uint32_t salt) {
  const uint32_t factor = compute_factor(rank, salt);
  for (uint32_t& element : elements) element = scramble(first_index++) * factor;
}

// Counts the wrong elements of a result. The expected part begins at the result's element `first`.
inline uint64_t count_wrong_elements(std::span<const uint32_t> elements, uint64_t first,
                                     const Expectation& expected, uint32_t salt) {
  uint32_t factor = 0;
  for (uint32_t i = 0; i < expected.rank_count; ++i) factor += compute_factor(expected.first_rank + i, salt);
  auto index = static_cast<uint32_t>(expected.base_index + first);
  uint64_t wrong = 0;
  for (const uint32_t element : elements) wrong += element != scramble(index++) * factor ? 1 : 0;
  return wrong;
}

}  // namespace verbena::tools::nccl
