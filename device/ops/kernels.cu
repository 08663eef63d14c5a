// The kernels of libverbena_ops.so: for teams of 2 and of 4 whose sums are the commonest ones, and for all
// others.
#include "device/ops/run_calls.cuh"

#define VERBENA_OPS_KERNEL(name, ...)                                           \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMostThreads)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::Launch launch) { \
    verbena::ops::run_calls<verbena::ops::__VA_ARGS__>(launch);                 \
  }

VERBENA_OPS_KERNEL(packets_16_of_2, ByPackets<2, verbena::device::Packet16>)
VERBENA_OPS_KERNEL(packets_16_of_4, ByPackets<4, verbena::device::Packet16>)
VERBENA_OPS_KERNEL(packets_16_of_any, ByPackets<0, verbena::device::Packet16>)
VERBENA_OPS_KERNEL(packets_64_of_2, ByPackets<2, verbena::device::Packet64>)
VERBENA_OPS_KERNEL(packets_64_of_4, ByPackets<4, verbena::device::Packet64>)
VERBENA_OPS_KERNEL(packets_64_of_any, ByPackets<0, verbena::device::Packet64>)
VERBENA_OPS_KERNEL(chunks_of_2, ByChunks<2>)
VERBENA_OPS_KERNEL(chunks_of_4, ByChunks<4>)
VERBENA_OPS_KERNEL(chunks_of_any, ByChunks<0>)

// Does nothing for a time.
extern "C" __global__ void verbena_ops_pause(uint64_t length_ns) {
  const uint64_t end_ns = verbena::device::clock_ns() + length_ns;
  while (verbena::device::clock_ns() < end_ns) verbena::device::pause(100);
}
