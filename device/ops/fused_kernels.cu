// The kernels of libverbena_ops.so that do more than move and sum: an image of their own, compiled beside the
// other.
#include "device/ops/run_fused.cuh"

#define VERBENA_OPS_KERNEL(name, ...)                                           \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMostThreads)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::Launch launch) { \
    using namespace verbena::ops;                                               \
    __VA_ARGS__(launch);                                                        \
  }
#define VERBENA_OPS_CODED(name, ...)                                                                        \
  VERBENA_OPS_KERNEL(coded_##name, (run_calls<ByCodec<__VA_ARGS__, RoundToNearest>, Content::kAllReduces>)) \
  VERBENA_OPS_KERNEL(coded_##name##_by_chance,                                                              \
                     (run_calls<ByCodec<__VA_ARGS__, RoundByChance>, Content::kAllReduces>))

VERBENA_OPS_CODED(float8, Float8, Float8)
VERBENA_OPS_CODED(int8, Int8, Int8)
VERBENA_OPS_CODED(int6, Int6, Int6)
VERBENA_OPS_CODED(int4, Int4, Int4)
VERBENA_OPS_CODED(mx_float8, MxFloat8, MxFloat8)
VERBENA_OPS_CODED(float8_int8, Float8, Int8)
VERBENA_OPS_CODED(int4_int8, Int4, Int8)

VERBENA_OPS_KERNEL(norm, run_norm)
VERBENA_OPS_KERNEL(norm_packets_16_of_2, run_all_reduce_norm<2, Packet16>)
VERBENA_OPS_KERNEL(norm_packets_16_of_4, run_all_reduce_norm<4, Packet16>)
VERBENA_OPS_KERNEL(norm_packets_16_of_any, run_all_reduce_norm<0, Packet16>)
VERBENA_OPS_KERNEL(norm_packets_64_of_2, run_all_reduce_norm<2, Packet64>)
VERBENA_OPS_KERNEL(norm_packets_64_of_4, run_all_reduce_norm<4, Packet64>)
VERBENA_OPS_KERNEL(norm_packets_64_of_any, run_all_reduce_norm<0, Packet64>)
VERBENA_OPS_KERNEL(sharded_norm_packets, run_sharded_norm<OneShot<Packet64>>)
VERBENA_OPS_KERNEL(sharded_norm_chunks, run_sharded_norm<Bulk<>>)
