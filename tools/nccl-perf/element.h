#pragma once
#include <cstdint>

namespace verbena::tools::nccl {

// The data of a run: element `index` of what `rank` sends in the round `salt`. Sums are modulo 2^32, so every
// order of reduction gives the same. kernels.cc says the same in PTX.
inline constexpr uint32_t kRankStep = 0x85EBCA77U;
inline constexpr uint32_t kSaltStep = 0xC2B2AE3DU;

inline constexpr uint32_t compute_seed(uint32_t rank, uint32_t salt) {
  return (rank + 1) * kRankStep + salt * kSaltStep;
}

inline constexpr uint32_t compute_element(uint32_t index, uint32_t seed) {
  uint32_t x = index * 0x9E3779B1U + seed;
  x ^= x >> 15;
  x *= 0x2C1B3C6DU;
  x ^= x >> 12;
  x *= 0x297A2D39U;
  return x ^ (x >> 15);
}

}  // namespace verbena::tools::nccl
