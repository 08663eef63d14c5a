// The quantised kernels and the kernels with a norm. They form a separate image, so that nvcc can compile the
// images in parallel.
#include "device/ops/run_fused.cuh"

#define VERBENA_OPS_KERNEL(name, LaunchOf, ...)                                   \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMaxThreads)         \
      verbena_ops_##name(const __grid_constant__ verbena::ops::LaunchOf launch) { \
    using namespace verbena::ops;                                                 \
    __VA_ARGS__(launch);                                                          \
  }
#define VERBENA_OPS_CODED(name, Way, ...)                                                                  \
  VERBENA_OPS_KERNEL(name, CallLaunch, (run_call<Way<__VA_ARGS__, RoundToNearest>, Content::kAllReduces>)) \
  VERBENA_OPS_KERNEL(name##_stochastic, CallLaunch,                                                        \
                     (run_call<Way<__VA_ARGS__, RoundStochastically>, Content::kAllReduces>))
#define VERBENA_OPS_NORM_OF(name, LaunchOf, ranks, ...)                                                 \
  VERBENA_OPS_KERNEL(name##_float16_1, LaunchOf, run_all_reduce_norm<ranks, Half, 1, __VA_ARGS__>)      \
  VERBENA_OPS_KERNEL(name##_float16_2, LaunchOf, run_all_reduce_norm<ranks, Half, 2, __VA_ARGS__>)      \
  VERBENA_OPS_KERNEL(name##_bfloat16_1, LaunchOf, run_all_reduce_norm<ranks, Bfloat16, 1, __VA_ARGS__>) \
  VERBENA_OPS_KERNEL(name##_bfloat16_2, LaunchOf, run_all_reduce_norm<ranks, Bfloat16, 2, __VA_ARGS__>)
#define VERBENA_OPS_NORM(size, ranks, is_several)                               \
  VERBENA_OPS_NORM_OF(all_reduce_norm_of_##size, NormLaunch, ranks, is_several) \
  VERBENA_OPS_NORM_OF(finalize_norm_of_##size, FinalizeLaunch, ranks, is_several)

VERBENA_OPS_CODED(coded_two_shot_float8, ByCodedTwoShots, Float8, Float8)
VERBENA_OPS_CODED(coded_two_shot_int8, ByCodedTwoShots, Int8, Int8)
VERBENA_OPS_CODED(coded_two_shot_int6, ByCodedTwoShots, Int6, Int6)
VERBENA_OPS_CODED(coded_two_shot_int4, ByCodedTwoShots, Int4, Int4)
VERBENA_OPS_CODED(coded_two_shot_mx_float8, ByCodedTwoShots, MxFloat8, MxFloat8)
VERBENA_OPS_CODED(coded_two_shot_float8_int8, ByCodedTwoShots, Float8, Int8)
VERBENA_OPS_CODED(coded_two_shot_int4_int8, ByCodedTwoShots, Int4, Int8)
VERBENA_OPS_CODED(coded_one_shot_float8, ByCodedOneShot, Float8)
VERBENA_OPS_CODED(coded_one_shot_int8, ByCodedOneShot, Int8)
VERBENA_OPS_CODED(coded_one_shot_int6, ByCodedOneShot, Int6)
VERBENA_OPS_CODED(coded_one_shot_int4, ByCodedOneShot, Int4)
VERBENA_OPS_CODED(coded_one_shot_mx_float8, ByCodedOneShot, MxFloat8)
VERBENA_OPS_CODED(coded_across_hosts_float8, ByCodedHostSums, Float8)
VERBENA_OPS_CODED(coded_across_hosts_int8, ByCodedHostSums, Int8)
VERBENA_OPS_CODED(coded_across_hosts_int6, ByCodedHostSums, Int6)
VERBENA_OPS_CODED(coded_across_hosts_int4, ByCodedHostSums, Int4)
VERBENA_OPS_CODED(coded_across_hosts_mx_float8, ByCodedHostSums, MxFloat8)

VERBENA_OPS_KERNEL(norm, NormLaunch, run_norm)
VERBENA_OPS_KERNEL(finalize_float16, FinalizeLaunch, run_finalize<Half>)
VERBENA_OPS_KERNEL(finalize_bfloat16, FinalizeLaunch, run_finalize<Bfloat16>)
VERBENA_OPS_NORM(2, 2, false)
VERBENA_OPS_NORM(4, 4, false)
VERBENA_OPS_NORM(8, 8, false)
VERBENA_OPS_NORM(any, 0, false)
VERBENA_OPS_NORM(2_several, 2, true)
VERBENA_OPS_KERNEL(sharded_norm_packets, NormLaunch, run_sharded_norm<OneShot<>>)
VERBENA_OPS_KERNEL(sharded_norm_chunks, NormLaunch, run_sharded_norm<Bulk<>>)
