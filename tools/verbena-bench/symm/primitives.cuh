// Runs every primitive once in each scope and checks its effect on the rank that it affects. One block per
// rank.
#pragma once

#include "verbena-bench/symm/primitive_check.cuh"

namespace verbena::tools::symm {

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_team() {
  expect(kTeam, symm_team_size(context_) == context_.world_size && symm_team_rank(context_) == context_.rank);
  int in_reach = 0;
  for (int peer = 0; peer < size(); ++peer) in_reach += reaches(peer);
  expect(kTeam, symm_team_lsa_size(context_) == in_reach && reaches(me()));
  expect(kTeam, !reaches(-1) && !reaches(size()));
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_pointers() {
  prepare();
  auto* const word = reinterpret_cast<uint64_t*>(area_);
  uint64_t* const theirs = symm_lsa_ptr(context_, word, next());
  uint64_t* const signals = symm_lsa_signal_ptr(context_, next());
  expect(kLsaPtr, (theirs != nullptr) == reaches(next()) && symm_lsa_ptr(context_, word, me()) == word);
  expect(kLsaPtr, symm_lsa_ptr(context_, wrong_, me()) == nullptr);  // not symmetric
  expect(kSignalPtr, (signals != nullptr) == reaches(next()));
  expect(kMulticastPtr,
         (symm_lsa_multicast_ptr(context_, word) != nullptr) == (context_.multicast_delta != 0));
  if (threadIdx.x == 0 && theirs != nullptr) {
    *theirs = static_cast<uint64_t>(me());
    atomicAdd_system(reinterpret_cast<unsigned long long*>(signals + 1), 7ULL);
  }
  symm_fence<Scope::kSystem>();
  meet();
  if (reaches(before())) {
    expect(kLsaPtr, *static_cast<volatile uint64_t*>(word) == static_cast<uint64_t>(before()));
    expect(kSignalPtr, symm_signal_read(context_, 1) == 7);
  }
  meet();
  reset(1);
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_barriers() {
  auto* const word = reinterpret_cast<volatile uint64_t*>(area_ + 64);
  auto* const theirs =
      const_cast<uint64_t*>(symm_lsa_ptr(context_, reinterpret_cast<uint64_t*>(area_ + 64), next()));
  const bool is_seen = reaches(before());
  for (uint64_t round = 1; round <= 4; ++round) {
    const bool is_whole = round % 2 == 0, is_halved = round > 2;
    const Primitive primitive =
        is_whole ? (is_halved ? kBarrierHalves : kBarrier) : (is_halved ? kLsaBarrierHalves : kLsaBarrier);
    const uint32_t barrier = kBarrierNumber + 1;
    if (threadIdx.x == 0 && theirs != nullptr) *reinterpret_cast<volatile uint64_t*>(theirs) = round;
    __syncthreads();
    const auto by_group = [&](const auto& make) { call(primitive, make); };
    if (is_whole && is_halved) {
      by_group([&](const Group& group) { return symm_barrier_arrive(context_, barrier, group); });
      by_group([&](const Group& group) { return symm_barrier_wait(context_, barrier, group); });
    } else if (is_whole) {
      by_group([&](const Group& group) { return symm_barrier(context_, barrier, group); });
    } else if (is_halved) {
      by_group([&](const Group& group) { return symm_lsa_barrier_arrive(context_, barrier, group); });
      by_group([&](const Group& group) { return symm_lsa_barrier_wait(context_, barrier, group); });
    } else {
      by_group([&](const Group& group) { return symm_lsa_barrier(context_, barrier, group); });
    }
    if (is_seen) expect(primitive, *word == round);
    meet();
  }
  symm_fence<Scope::kBlock>();
  symm_fence<Scope::kGpu>();
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_signals() {
  const auto signal = [&](uint64_t value, SymmSignalOperation operation) {
    call(kSignal,
         [&](const Group& group) { return symm_signal(context_, 2, next(), value, operation, group); });
  };
  signal(5, SymmSignalOperation::kAdd);
  expect_signal(kSignal, 2, 5);
  signal(99, SymmSignalOperation::kIncrement);
  expect_signal(kSignal, 2, 6);
  reset(2);
  signal(42, SymmSignalOperation::kSet);
  expect_signal(kSignal, 2, 42);
  reset(2);
  if (threadIdx.x == 0) {
    expect(kSignal,
           symm_signal(context_, kSymmSignals, next(), 1, SymmSignalOperation::kAdd) == SymmStatus::kInvalid);
    expect(kSignal, symm_signal(context_, 2, size(), 1, SymmSignalOperation::kAdd) == SymmStatus::kInvalid);
  }
  __syncthreads();
}

template <typename Context, typename Group>
template <typename T>
__device__ void PrimitiveCheck<Context, Group>::compare(T value) {
  constexpr uint32_t kSignalNumber = 3;
  call(kSignal, [&](const Group& group) {
    return symm_signal(context_, kSignalNumber, next(), static_cast<uint64_t>(static_cast<int64_t>(value)),
                       SymmSignalOperation::kSet, group);
  });
  struct Case {
    SymmCompare compare;
    T wanted;
  };
  const Case cases[] = {{SymmCompare::kEqual, value},
                        {SymmCompare::kNotEqual, 0},
                        {SymmCompare::kGreater, static_cast<T>(value - 1)},
                        {SymmCompare::kGreaterEqual, value},
                        {SymmCompare::kLess, static_cast<T>(value + 1)},
                        {SymmCompare::kLessEqual, value}};
  for (const Case& one : cases) {
    // Waits first for the signal to arrive: some comparisons are true for 0.
    call(kWaitUntil, [&](const Group& group) {
      T seen{};
      return symm_signal_wait_until<T>(context_, kSignalNumber, SymmCompare::kEqual, value, &seen, group);
    });
    call(kWaitUntil, [&](const Group& group) {
      T seen{};
      const SymmStatus status =
          symm_signal_wait_until<T>(context_, kSignalNumber, one.compare, one.wanted, &seen, group);
      if (group.elect()) expect(kWaitUntil, seen == value);
      return status;
    });
  }
  meet();
  reset(kSignalNumber);
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_comparisons() {
  compare<int64_t>(-7);
  compare<int64_t>(int64_t{1} << 40);
  compare<int32_t>(-7);
  compare<int32_t>(11);
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_puts() {
  constexpr uint64_t kLengths[] = {0, 1, 7, 4096 + 3};
  prepare();
  const auto place = [&](uint32_t i) { return area_ + 64 + i * 8192 + i; };
  const auto from = [&](uint32_t i) { return source_ + i * 5; };
  for (uint32_t i = 0; i < 4; ++i) {
    call(kPut, [&](const Group& group) {
      return symm_put_async(context_, place(i), from(i), kLengths[i], next(), group);
    });
  }
  call(kQuiet, [&](const Group& group) { return symm_quiet(context_, group); });
  call(kQuiet, [&](const Group& group) { return symm_quiet(context_, next(), group); });
  call(kFlush, [&](const Group& group) { return symm_flush(context_, group); });
  meet();
  for (uint32_t i = 0; i < 4; ++i) expect_bytes(kPut, place(i), kLengths[i], from(i), before());
  if (threadIdx.x == 0)
    expect(kPut, symm_put_async(context_, wrong_, source_, 4, next()) == SymmStatus::kInvalid);
  meet();
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_put_signals() {
  struct Case {
    uint64_t length;
    uint64_t value;
    SymmSignalOperation operation;
    int64_t expected;
  };
  const Case cases[] = {{8, 3, SymmSignalOperation::kAdd, 3},
                        {4097, 50, SymmSignalOperation::kIncrement, 1},
                        {0, 1, SymmSignalOperation::kAdd, 1},
                        {16, 9, SymmSignalOperation::kSet, 9}};
  uint32_t i = 0;
  for (const Case& one : cases) {
    prepare();
    uint8_t* const place = area_ + 128 + i;
    const uint8_t* const from = source_ + i * 3;
    call(kPutSignal, [&](const Group& group) {
      return symm_put_signal_async(context_, place, from, one.length, next(), 4, one.value, one.operation,
                                   group);
    });
    // The signal alone makes the data visible, to every thread of the group that waited.
    call(kPutSignal, [&](const Group& group) {
      return symm_signal_wait_until<int64_t>(context_, 4, SymmCompare::kEqual, one.expected, nullptr, group);
    });
    expect_bytes(kPutSignal, place, one.length, from, before());
    expect_signal(kPutSignal, 4, one.expected);
    reset(4);
    ++i;
  }
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_get() {
  prepare();
  uint8_t* const place = area_ + 65;
  const uint8_t* const from = source_ + 3;
  constexpr uint64_t kLength = 4099;
  const bool is_possible = reaches(next()) || SymmNetwork<Context>::kGets;
  const Group group{};
  if (takes_part(group)) {
    const SymmStatus status = symm_get(context_, place, from, kLength, next(), group);
    expect(kGet, status == (is_possible ? SymmStatus::kDone : SymmStatus::kUnreachable));
  }
  __syncthreads();
  if (is_possible) expect_bytes(kGet, place, kLength, from, next());
  meet();
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_sums() {
  constexpr uint64_t kCount = 1001;
  auto* const input = reinterpret_cast<float*>(source_);
  auto* const output = reinterpret_cast<float*>(area_);
  for (const bool is_two_shot : {false, true}) {
    for (uint64_t i = threadIdx.x; i < kCount; i += blockDim.x) input[i] = static_cast<float>(me() * 3 + i);
    meet();
    const Group group{};
    if (takes_part(group)) {
      const SymmStatus status =
          is_two_shot ? symm_all_reduce_two_shot(context_, kBarrierNumber + 2, input, kCount, group)
                      : symm_all_reduce_one_shot(context_, kBarrierNumber + 2, output, input, kCount, group);
      expect(kAllReduce, status == (context_.has_remote != 0 ? SymmStatus::kUnreachable : SymmStatus::kDone));
    }
    __syncthreads();
    const volatile float* const sums = is_two_shot ? input : output;
    const auto ranks = static_cast<float>(size() * (size() - 1) / 2 * 3);
    for (uint64_t i = threadIdx.x; i < kCount && context_.has_remote == 0; i += blockDim.x)
      expect(kAllReduce, sums[i] == ranks + static_cast<float>(size()) * static_cast<float>(i));
    meet();
  }
}

template <typename Context, typename Group>
__device__ void PrimitiveCheck<Context, Group>::check_update() {
  auto* const word = reinterpret_cast<uint64_t*>(area_ + 1024);
  if (threadIdx.x == 0) *word = 0;
  meet();
  const Group group{};
  if (takes_part(group) && group.elect() && reaches(0)) {
    uint64_t old = UINT64_MAX;
    expect(kUpdate, symm_lsa_update<Operation::kAdd>(context_, word, 1, 0, &old) == SymmStatus::kDone &&
                        old < static_cast<uint64_t>(size()));
  }
  meet();
  if (me() == 0)
    expect(kUpdate,
           *static_cast<volatile uint64_t*>(word) == static_cast<uint64_t>(symm_team_lsa_size(context_)));
  meet();
}

template <typename Group, typename Context>
__global__ void check_primitives(const __grid_constant__ Context context, uint8_t* area, uint8_t* source,
                                 uint32_t* wrong) {
  PrimitiveCheck<Context, Group>(context, area, source, wrong).check_all();
}

}  // namespace verbena::tools::symm
