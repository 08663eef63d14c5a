// The kernels of libverbena_ops.so: for teams of 2 and of 4, all-reduces alone and exchanges alone, those by
// chunks of sums of floats; for all others; and for teams across hosts.
#include "device/ops/run_calls.cuh"

#define VERBENA_OPS_KERNEL(name, ...)                                           \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMostThreads)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::Launch launch) { \
    verbena::ops::run_calls<verbena::ops::__VA_ARGS__>(launch);                 \
  }

#define VERBENA_OPS_KNOWN(name, content, Way) \
  VERBENA_OPS_KERNEL(name, Way, verbena::ops::Content::content, verbena::device::ReduceFloats)
#define VERBENA_OPS_KERNELS(family, Way)                        \
  VERBENA_OPS_KNOWN(family##_of_2, kAllReduces, Way<2>)         \
  VERBENA_OPS_KNOWN(family##_of_4, kAllReduces, Way<4>)         \
  VERBENA_OPS_KNOWN(family##_exchange_of_2, kExchanges, Way<2>) \
  VERBENA_OPS_KNOWN(family##_exchange_of_4, kExchanges, Way<4>) \
  VERBENA_OPS_KERNEL(family##_of_any, Way<0>)

VERBENA_OPS_KERNELS(packets, ByPackets)
VERBENA_OPS_KERNELS(chunks, ByChunks)
VERBENA_OPS_KERNEL(across_hosts, AcrossHostsByChunks)

// Does nothing for a time.
extern "C" __global__ void verbena_ops_pause(uint64_t length_ns) {
  const uint64_t end_ns = verbena::device::clock_ns() + length_ns;
  while (verbena::device::clock_ns() < end_ns) verbena::device::pause(100);
}
