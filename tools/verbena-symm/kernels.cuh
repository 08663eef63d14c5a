// What verbena-symm launches, for contexts of any backend. `wrong` counts what is not as it must be; a status
// that is not kDone counts too.
#pragma once

#include <cstdint>

#include "verbena/device/symm.cuh"

namespace verbena::tools::symm {

using namespace verbena::device;

__device__ inline void count_wrong(uint32_t* wrong, bool is_right) {
  if (!is_right) atomicAdd(wrong, 1U);
}
__device__ inline void expect_done(uint32_t* wrong, SymmStatus status) {
  count_wrong(wrong, status == SymmStatus::kDone);
}

// A block's part of `length`, which is cut at multiples of `unit`.
struct Part {
  uint64_t begin, length;
};
__device__ inline Part cut_by_block(uint64_t length, uint64_t unit) {
  const uint64_t part = ((length + gridDim.x - 1) / gridDim.x + unit - 1) / unit * unit;
  const uint64_t begin = part * blockIdx.x < length ? part * blockIdx.x : length;
  return {begin, length - begin < part ? length - begin : part};
}

template <typename Context>
__global__ void meet(const __grid_constant__ Context context, uint32_t rounds, uint32_t* wrong) {
  for (uint32_t i = 0; i < rounds; ++i) expect_done(wrong, symm_barrier(context, blockIdx.x));
}

// Each block tells every rank its round, and sees theirs, behind a barrier of its own. `told` has 64 words a
// block.
template <typename Context>
__global__ void tell_rounds(const __grid_constant__ Context context, uint64_t* told, uint64_t* own,
                            uint64_t first, uint32_t rounds, uint32_t* wrong) {
  const uint32_t barrier = blockIdx.x;
  told += barrier * 64;
  own += barrier;
  for (uint64_t round = first; round < first + rounds; ++round) {
    if (threadIdx.x == 0) *own = round;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int peer = 0; peer < context.team_size; ++peer)
        expect_done(wrong, symm_put_async(context, told + context.team_rank, own, 8, peer));
    }
    expect_done(wrong, symm_barrier(context, barrier));
    for (int peer = 0; peer < context.team_size; ++peer)
      count_wrong(wrong, *static_cast<volatile uint64_t*>(told + peer) == round);
    expect_done(wrong, symm_barrier(context, barrier));
  }
}

// Eight bytes there and back between the first two ranks, each with its signal. The signal starts at `first`.
template <typename Context>
__global__ void bounce(const __grid_constant__ Context context, uint64_t* place, uint64_t* own,
                       uint32_t turns, int64_t first, uint32_t* wrong) {
  const int me = context.team_rank;
  if (me > 1) return;
  for (int64_t turn = first; turn < first + turns; ++turn) {
    const auto wait = [&] {
      expect_done(wrong, symm_signal_wait_until<int64_t>(context, 0, SymmCompare::kGreaterEqual, turn + 1));
      count_wrong(wrong, *static_cast<volatile uint64_t*>(place) == static_cast<uint64_t>(turn));
    };
    if (me == 1) wait();
    *static_cast<volatile uint64_t*>(own) = static_cast<uint64_t>(turn);
    expect_done(wrong, symm_put_signal_async(context, place, own, 8, 1 - me, 0, 1));
    if (me == 0) wait();
  }
}

// To the next rank, each block a part of its own.
template <typename Context>
__global__ void put_to_next(const __grid_constant__ Context context, char* place, const char* source,
                            uint64_t length_bytes, uint32_t signal, uint32_t* wrong) {
  const Part mine = cut_by_block(length_bytes, 128);
  const int peer = (context.team_rank + 1) % context.team_size;
  expect_done(wrong, symm_put_signal_async(context, place + mine.begin, source + mine.begin, mine.length,
                                           peer, signal, 1, SymmSignalOperation::kAdd, BlockGroup{}));
}
template <typename Context>
__global__ void wait_for(const __grid_constant__ Context context, uint32_t signal, int64_t value,
                         uint32_t* wrong) {
  expect_done(wrong, symm_signal_wait_until<int64_t>(context, signal, SymmCompare::kGreaterEqual, value));
}

// One thread a block; each block has a queue of its own where there are as many.
template <typename Context>
__global__ void put_many(const __grid_constant__ Context context, uint64_t* place, const uint64_t* source,
                         uint32_t count, uint32_t* wrong) {
  const int peer = (context.team_rank + 1) % context.team_size;
  for (uint32_t i = 0; i < count; ++i)
    expect_done(wrong, symm_put_async(context, place + blockIdx.x, source + blockIdx.x, 8, peer));
  expect_done(wrong, symm_quiet(context));
}

template <bool kIsTwoShot, typename Context>
__global__ void all_reduce(const __grid_constant__ Context context, float* output, float* data,
                           uint64_t count, uint32_t* wrong) {
  const Part mine = cut_by_block(count, 4);
  if constexpr (kIsTwoShot) {
    expect_done(wrong, symm_all_reduce_two_shot(context, blockIdx.x, data + mine.begin, mine.length));
  } else {
    expect_done(wrong, symm_all_reduce_one_shot(context, blockIdx.x, output + mine.begin, data + mine.begin,
                                                mine.length));
  }
}

// Small whole numbers: their sums have no rounding.
__device__ inline float element(int rank, uint64_t i) {
  return static_cast<float>((i * 7 + static_cast<uint64_t>(rank) * 13) % 1021);
}
__global__ void fill(float* data, uint64_t count, int rank) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    data[i] = element(rank, i);
}
// The first bytes of what fill() made, and behind them the byte `behind`.
__global__ void check_bytes(const char* data, uint64_t length_bytes, int rank, char behind, uint32_t* wrong) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < length_bytes; i += gridDim.x * blockDim.x) {
    const float value = element(rank, i / sizeof(float));
    count_wrong(wrong, data[i] == reinterpret_cast<const char*>(&value)[i % sizeof(float)]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) count_wrong(wrong, data[length_bytes] == behind);
}
__global__ void check_sum(const float* data, uint64_t count, int ranks, uint32_t* wrong) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += element(rank, i);
    count_wrong(wrong, data[i] == sum);
  }
}

}  // namespace verbena::tools::symm
