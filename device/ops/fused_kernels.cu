// The kernels of libverbena_ops.so that do more than move and sum: an image of their own, compiled beside the
// other.
#include "device/ops/run_fused.cuh"

#define VERBENA_OPS_KERNEL(name, ...)                                           \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMostThreads)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::Launch launch) { \
    verbena::ops::__VA_ARGS__(launch);                                          \
  }
#define VERBENA_OPS_CODED(name, ...)                                                                 \
  VERBENA_OPS_KERNEL(coded_##name,                                                                   \
                     run_calls<verbena::ops::ByCodec<__VA_ARGS__, verbena::device::RoundToNearest>>) \
  VERBENA_OPS_KERNEL(coded_##name##_by_chance,                                                       \
                     run_calls<verbena::ops::ByCodec<__VA_ARGS__, verbena::device::RoundByChance>>)

VERBENA_OPS_CODED(float8, verbena::device::Float8, verbena::device::Float8)
VERBENA_OPS_CODED(int8, verbena::device::Int8, verbena::device::Int8)
VERBENA_OPS_CODED(int6, verbena::device::Int6, verbena::device::Int6)
VERBENA_OPS_CODED(int4, verbena::device::Int4, verbena::device::Int4)
VERBENA_OPS_CODED(mx_float8, verbena::device::MxFloat8, verbena::device::MxFloat8)
VERBENA_OPS_CODED(float8_int8, verbena::device::Float8, verbena::device::Int8)
VERBENA_OPS_CODED(int4_int8, verbena::device::Int4, verbena::device::Int8)

VERBENA_OPS_KERNEL(norm, run_norm)
VERBENA_OPS_KERNEL(norm_packets_16_of_2, run_all_reduce_norm<2, verbena::device::Packet16>)
VERBENA_OPS_KERNEL(norm_packets_16_of_4, run_all_reduce_norm<4, verbena::device::Packet16>)
VERBENA_OPS_KERNEL(norm_packets_16_of_any, run_all_reduce_norm<0, verbena::device::Packet16>)
VERBENA_OPS_KERNEL(norm_packets_128_of_2, run_all_reduce_norm<2, verbena::device::Packet128>)
VERBENA_OPS_KERNEL(norm_packets_128_of_4, run_all_reduce_norm<4, verbena::device::Packet128>)
VERBENA_OPS_KERNEL(norm_packets_128_of_any, run_all_reduce_norm<0, verbena::device::Packet128>)
VERBENA_OPS_KERNEL(sharded_norm_packets_16,
                   run_sharded_norm<verbena::device::OneShot<verbena::device::Packet16>>)
VERBENA_OPS_KERNEL(sharded_norm_packets_128,
                   run_sharded_norm<verbena::device::OneShot<verbena::device::Packet128>>)
VERBENA_OPS_KERNEL(sharded_norm_chunks, run_sharded_norm<verbena::device::Bulk<>>)
