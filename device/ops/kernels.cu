// The kernels of libverbena_ops.so: for teams of 2 and of 4, all-reduces alone and exchanges alone, those by
// chunks of sums of floats; for all others; and for teams across hosts.
#include "device/ops/run_calls.cuh"

#define VERBENA_OPS_KERNEL(name, ...)                                           \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMostThreads)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::Launch launch) { \
    verbena::ops::run_calls<verbena::ops::__VA_ARGS__>(launch);                 \
  }

#define VERBENA_OPS_KNOWN(name, content, Reduce, ...) \
  VERBENA_OPS_KERNEL(name, __VA_ARGS__, verbena::ops::Content::content, verbena::device::Reduce)
#define VERBENA_OPS_KERNELS(family, Reduce, Way, ...)                               \
  VERBENA_OPS_KNOWN(family##_of_2, kAllReduces, Reduce, Way<2 __VA_ARGS__>)         \
  VERBENA_OPS_KNOWN(family##_of_4, kAllReduces, Reduce, Way<4 __VA_ARGS__>)         \
  VERBENA_OPS_KNOWN(family##_exchange_of_2, kExchanges, Reduce, Way<2 __VA_ARGS__>) \
  VERBENA_OPS_KNOWN(family##_exchange_of_4, kExchanges, Reduce, Way<4 __VA_ARGS__>) \
  VERBENA_OPS_KERNEL(family##_of_any, Way<0 __VA_ARGS__>)

VERBENA_OPS_KERNELS(packets_16, ReduceFloats, ByPackets, , verbena::device::Packet16)
VERBENA_OPS_KERNELS(packets_64, ReduceFloats, ByPackets, , verbena::device::Packet64)
VERBENA_OPS_KERNELS(chunks, ReduceFloats, ByChunks)
VERBENA_OPS_KERNEL(across_hosts, AcrossHostsByChunks)

// Does nothing for a time.
extern "C" __global__ void verbena_ops_pause(uint64_t length_ns) {
  const uint64_t end_ns = verbena::device::clock_ns() + length_ns;
  while (verbena::device::clock_ns() < end_ns) verbena::device::pause(100);
}
