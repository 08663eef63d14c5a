// The kernels of verbena-bench symm, for contexts of any backend. `wrong` counts wrong values and statuses
// other than kDone.
#pragma once

#include <cstdint>

#include "verbena/device/low_latency.cuh"
#include "verbena/device/symm.cuh"

namespace verbena::tools::symm {

using namespace verbena::device;

__device__ inline void count_wrong(uint32_t* wrong, bool is_right) {
  if (!is_right) atomicAdd(wrong, 1U);
}
__device__ inline void expect_done(uint32_t* wrong, SymmStatus status) {
  count_wrong(wrong, status == SymmStatus::kDone);
}

// Returns a block's part of `length`; parts are multiples of `unit`.
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

// Each block writes its round number to every rank, and checks the others' numbers after a barrier. `told`
// has 64 words per block.
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

// Sends eight bytes with a signal back and forth between the first two ranks. The signal's value starts at
// `first`.
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

// Puts to the next rank; each block puts its own part.
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

// One thread per block; each block has its own queue if there are enough.
template <typename Context>
__global__ void put_many(const __grid_constant__ Context context, uint64_t* place, const uint64_t* source,
                         uint32_t count, uint32_t* wrong) {
  const int peer = (context.team_rank + 1) % context.team_size;
  for (uint32_t i = 0; i < count; ++i)
    expect_done(wrong, symm_put_async(context, place + blockIdx.x, source + blockIdx.x, 8, peer));
  expect_done(wrong, symm_quiet(context));
}

template <bool kIsTwoShot, int kRanks, typename Context>
__global__ void all_reduce(const __grid_constant__ Context context, float* output, float* data,
                           uint64_t count, uint32_t* wrong) {
  const Part mine = cut_by_block(count, 4);
  if constexpr (kIsTwoShot) {
    expect_done(wrong, symm_all_reduce_two_shot<kRanks>(context, blockIdx.x, data + mine.begin, mine.length));
  } else {
    expect_done(wrong, symm_all_reduce_one_shot<kRanks>(context, blockIdx.x, output + mine.begin,
                                                        data + mine.begin, mine.length));
  }
}

// Sends messages from all ranks to all ranks repeatedly. Each word contains the call's number and its index,
// except values that would look like an empty word of a slot. `place` and `own` have kMessageWords words for
// each block.
inline constexpr uint32_t kMessageWords = 960;
template <typename Context>
__global__ void tell_calls(const __grid_constant__ SymmWorkspace<Context> workspace, uint32_t* place,
                           uint32_t* own, uint32_t calls, uint32_t* wrong) {
  const BlockGroup block;
  LowLatency<Context> exchange(workspace, blockIdx.x);
  place += blockIdx.x * kMessageWords;
  own += blockIdx.x * kMessageWords;
  SymmStatus status = exchange.begin(block);
  for (uint32_t call = 1; call <= calls && status == SymmStatus::kDone; ++call) {
    // The length differs in each call, and is sometimes the maximum.
    const uint32_t words = call % 5 == 0 ? kMessageWords : call * 7 % kMessageWords;
    const auto word = [&](int rank, uint32_t i) {
      if ((i + call) % 97 < 2) return Packet::kSentinel ^ (call & 1);
      return static_cast<uint32_t>(exchange.epoch()) * 4096 + i + static_cast<uint32_t>(rank) * 1000000007u;
    };
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) own[i] = word(workspace.context.team_rank, i);
    __syncthreads();
    expect_done(wrong, exchange.broadcast(own, words * sizeof(uint32_t), block));
    for (int peer = 0; peer < workspace.context.team_size; ++peer) {
      if (peer == workspace.context.team_rank) continue;
      expect_done(wrong, exchange.receive(peer, place, words * sizeof(uint32_t), block));
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
        count_wrong(wrong, static_cast<volatile uint32_t*>(place)[i] == word(peer, i));
      __syncthreads();
    }
    status = call == calls ? exchange.finish(block) : exchange.turn(block);
  }
  expect_done(wrong, status);
}

// A one-shot all-reduce: each block sends its part to all ranks, and sums the parts that it receives.
template <int kRanks, typename Context>
__global__ void all_reduce_by_packets(const __grid_constant__ SymmWorkspace<Context> workspace, float* output,
                                      const float* data, uint64_t count, uint32_t* wrong) {
  const Part mine = cut_by_block(count, 4);
  LowLatency<Context> exchange(workspace, blockIdx.x);
  SymmStatus status = exchange.begin();
  if (status == SymmStatus::kDone)
    status = exchange.template broadcast<kRanks>(data + mine.begin, mine.length * sizeof(float));
  if (status == SymmStatus::kDone)
    status = exchange.template receive_reduce<kRanks>(data + mine.begin, output + mine.begin, mine.length);
  if (status == SymmStatus::kDone) status = exchange.finish();
  expect_done(wrong, status);
}

// Compares the GPU's conversions of every bit pattern and every float with arithmetic, which other tests
// check against tables.
template <typename T, typename Word>
__device__ void compare_conversions(uint32_t* wrong, uint64_t first, uint64_t step) {
  constexpr uint32_t kPerUnit = Element<T>::kPerUnit;
  constexpr uint32_t kPatterns = 1u << (8 * sizeof(T));
  for (uint64_t pattern = first; pattern < kPatterns; pattern += step) {
    const auto word = static_cast<uint32_t>(pattern * (kPerUnit == 4 ? 0x01010101u : 0x00010001u));
    float by_instruction[kPerUnit], by_arithmetic[kPerUnit];
    Element<T>::widen(word, by_instruction);
    Word::widen(word, by_arithmetic);
    for (uint32_t i = 0; i < kPerUnit; ++i) {
      const bool are_nan = by_instruction[i] != by_instruction[i] && by_arithmetic[i] != by_arithmetic[i];
      count_wrong(wrong, are_nan || __float_as_uint(by_instruction[i]) == __float_as_uint(by_arithmetic[i]));
    }
  }
  for (uint64_t bits = first * kPerUnit; bits < uint64_t{1} << 32; bits += step * kPerUnit) {
    float numbers[kPerUnit];
    for (uint32_t i = 0; i < kPerUnit; ++i) numbers[i] = __uint_as_float(static_cast<uint32_t>(bits + i));
    count_wrong(wrong, Element<T>::narrow(numbers) == Word::narrow(numbers));
  }
}
__global__ void compare_all_conversions(uint32_t* wrong) {
  const uint64_t first = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x,
                 step = gridDim.x * uint64_t{blockDim.x};
  compare_conversions<Half, detail::HalfWord>(wrong, first, step);
  compare_conversions<Bfloat16, detail::Bfloat16Word>(wrong, first, step);
  compare_conversions<E4m3, detail::E4m3Word>(wrong, first, step);
  compare_conversions<E5m2, detail::E5m2Word>(wrong, first, step);
}

// Small integers, so that their sums are exact.
__device__ inline float element(int rank, uint64_t i) {
  return static_cast<float>((i * 7 + static_cast<uint64_t>(rank) * 13) % 1021);
}
__global__ void fill(float* data, uint64_t count, int rank) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    data[i] = element(rank, i);
}
// Checks the first bytes of the data of fill(), and the byte `after` after them.
__global__ void check_bytes(const char* data, uint64_t length_bytes, int rank, char after, uint32_t* wrong) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < length_bytes; i += gridDim.x * blockDim.x) {
    const float value = element(rank, i / sizeof(float));
    count_wrong(wrong, data[i] == reinterpret_cast<const char*>(&value)[i % sizeof(float)]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) count_wrong(wrong, data[length_bytes] == after);
}
__global__ void check_sum(const float* data, uint64_t count, int ranks, uint32_t* wrong) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += element(rank, i);
    count_wrong(wrong, data[i] == sum);
  }
}

}  // namespace verbena::tools::symm
