// The list of primitives to check, and the frame of a check.
#pragma once

#include <cstdint>

#include "verbena/device/symm.cuh"

namespace verbena::tools::symm {

using namespace verbena::device;

enum Primitive : uint32_t {
  kTeam,
  kLsaPtr,
  kMulticastPtr,
  kSignalPtr,
  kBarrier,
  kBarrierHalves,
  kLsaBarrier,
  kLsaBarrierHalves,
  kFence,
  kPut,
  kPutSignal,
  kGet,
  kQuiet,
  kFlush,
  kSignal,
  kWaitUntil,
  kReset,
  kAllReduce,
  kUpdate,
  kPrimitives
};
inline constexpr const char* kPrimitiveNames[kPrimitives] = {"symm_team_size, _rank, _lsa_size, _lsa",
                                                             "symm_lsa_ptr",
                                                             "symm_lsa_multicast_ptr",
                                                             "symm_lsa_signal_ptr",
                                                             "symm_barrier",
                                                             "symm_barrier_arrive, _wait",
                                                             "symm_lsa_barrier",
                                                             "symm_lsa_barrier_arrive, _wait",
                                                             "symm_fence",
                                                             "symm_put_async",
                                                             "symm_put_signal_async",
                                                             "symm_get",
                                                             "symm_quiet",
                                                             "symm_flush",
                                                             "symm_signal",
                                                             "symm_signal_wait_until",
                                                             "symm_signal_reset",
                                                             "symm_all_reduce",
                                                             "symm_lsa_update"};

inline constexpr uint32_t kPrimitiveThreads = 64;
// The symmetric memory of a check. There are two: peers write to one and read from the other.
inline constexpr uint64_t kAreaBytes = 64 << 10;

// True for threads of the block that call the primitive.
template <typename Group>
__device__ inline bool takes_part(const Group& group) {
  return threadIdx.x < group.size();
}

template <typename Context, typename Group>
class PrimitiveCheck {
 public:
  // `wrong` is [kPrimitives].
  __device__ PrimitiveCheck(const Context& context, uint8_t* area, uint8_t* source, uint32_t* wrong)
      : context_(context), area_(area), source_(source), wrong_(wrong) {}

  __device__ void check_all() {
    check_team();
    check_pointers();
    check_barriers();
    check_signals();
    check_comparisons();
    check_puts();
    check_put_signals();
    check_get();
    check_sums();
    check_update();
  }

 private:
  static constexpr uint32_t kBarrierNumber = 100;
  static constexpr uint8_t kUntouched = 0xee;

  __device__ int me() const { return context_.team_rank; }
  __device__ int size() const { return context_.team_size; }
  __device__ int next() const { return (me() + 1) % size(); }
  __device__ int before() const { return (me() + size() - 1) % size(); }
  __device__ bool reaches(int peer) const { return symm_team_lsa(context_, peer); }

  __device__ void expect(Primitive primitive, bool is_right) {
    if (!is_right) atomicAdd(wrong_ + primitive, 1u);
  }
  __device__ void expect_done(Primitive primitive, SymmStatus status) {
    expect(primitive, status == SymmStatus::kDone);
  }
  // The group's threads make the call; then the block synchronises.
  template <typename Call>
  __device__ void call(Primitive primitive, const Call& make) {
    const Group group{};
    if (takes_part(group)) expect_done(primitive, make(group));
    __syncthreads();
  }
  // A barrier of all ranks, for all threads of their blocks.
  __device__ void meet() {
    expect_done(kBarrier, symm_barrier(context_, kBarrierNumber));
    __syncthreads();
  }
  // Waits for the final value of a signal.
  __device__ void expect_signal(Primitive primitive, uint32_t signal, int64_t value) {
    if (threadIdx.x == 0) {
      int64_t seen = 0;
      expect_done(primitive,
                  symm_signal_wait_until<int64_t>(context_, signal, SymmCompare::kEqual, value, &seen));
      expect(primitive, seen == value);
    }
    meet();
    if (threadIdx.x == 0)
      expect(primitive, static_cast<int64_t>(symm_signal_read(context_, signal)) == value);
    meet();
  }
  __device__ void reset(uint32_t signal) {
    call(kReset, [&](const Group& group) { return symm_signal_reset(context_, signal, group); });
    if (threadIdx.x == 0) expect(kReset, symm_signal_read(context_, signal) == 0);
    meet();
  }

  // The byte at `i` of the source of `rank`; it differs from the area's.
  __device__ static uint8_t pattern(int rank, uint64_t i) {
    return static_cast<uint8_t>((i * 13 + static_cast<uint64_t>(rank) * 29) % 151);
  }
  __device__ void prepare() {
    for (uint64_t i = threadIdx.x; i < kAreaBytes; i += blockDim.x) {
      area_[i] = kUntouched;
      source_[i] = pattern(me(), i);
    }
    __syncthreads();
    meet();
  }
  __device__ void expect_bytes(Primitive primitive, const uint8_t* bytes, uint64_t length,
                               const uint8_t* from, int rank) {
    for (uint64_t i = threadIdx.x; i < length; i += blockDim.x)
      expect(primitive, static_cast<const volatile uint8_t*>(bytes)[i] ==
                            pattern(rank, static_cast<uint64_t>(from - source_) + i));
    if (threadIdx.x == 0) expect(primitive, bytes[length] == kUntouched && bytes[-1] == kUntouched);
  }

  __device__ void check_team();
  __device__ void check_pointers();
  __device__ void check_barriers();
  __device__ void check_signals();
  __device__ void check_comparisons();
  template <typename T>
  __device__ void compare(T value);
  __device__ void check_puts();
  __device__ void check_put_signals();
  __device__ void check_get();
  __device__ void check_sums();
  __device__ void check_update();

  const Context& context_;
  uint8_t *area_, *source_;
  uint32_t* wrong_;
};

}  // namespace verbena::tools::symm
