// The kernels of libverbena_ops.so that move tokens to experts and back: an image of their own, compiled
// beside the others.
#include "device/ops/run_moe.cuh"

#define VERBENA_OPS_KERNEL(name, LaunchOf, ...)                                   \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMaxThreads, 1)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::LaunchOf launch) { \
    using namespace verbena::ops;                                                 \
    __VA_ARGS__(launch);                                                          \
  }

#define VERBENA_OPS_COMBINE(name, order)                              \
  VERBENA_OPS_KERNEL(moe_combine_##name##_float16, MoeCombineLaunch,  \
                     (run_moe_combine<Half, MoeOrder::order>))        \
  VERBENA_OPS_KERNEL(moe_combine_##name##_bfloat16, MoeCombineLaunch, \
                     (run_moe_combine<Bfloat16, MoeOrder::order>))

#define VERBENA_OPS_ROWS(name, Kernel)                                                                  \
  VERBENA_OPS_KERNEL(moe_##name, MoeDispatchLaunch, (run_moe_rows<Kernel, MoeRowBytes>))                \
  VERBENA_OPS_KERNEL(moe_##name##_float16, MoeDispatchLaunch, (run_moe_rows<Kernel, MoeRowCast<Half>>)) \
  VERBENA_OPS_KERNEL(moe_##name##_bfloat16, MoeDispatchLaunch, (run_moe_rows<Kernel, MoeRowCast<Bfloat16>>))

VERBENA_OPS_ROWS(dispatch, MoeDispatchKernel)
VERBENA_OPS_ROWS(place, MoePlaceKernel)
VERBENA_OPS_COMBINE(rows, kRows)
VERBENA_OPS_COMBINE(reduced, kReduced)
VERBENA_OPS_COMBINE(exact, kExact)
