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

#define VERBENA_OPS_DISPATCH(name, is_grouped)                                                   \
  VERBENA_OPS_KERNEL(moe_##name, MoeDispatchLaunch, (run_moe_dispatch<MoeRowBytes, is_grouped>)) \
  VERBENA_OPS_KERNEL(moe_##name##_float16, MoeDispatchLaunch,                                    \
                     (run_moe_dispatch<MoeRowCast<Half>, is_grouped>))                           \
  VERBENA_OPS_KERNEL(moe_##name##_bfloat16, MoeDispatchLaunch,                                   \
                     (run_moe_dispatch<MoeRowCast<Bfloat16>, is_grouped>))

// Of teams across hosts.
#define VERBENA_OPS_FAR_COMBINE(name, order)                                 \
  VERBENA_OPS_KERNEL(moe_far_combine_##name##_float16, MoeFarCombineLaunch,  \
                     (run_moe_combine<Half, MoeOrder::order>))               \
  VERBENA_OPS_KERNEL(moe_far_combine_##name##_bfloat16, MoeFarCombineLaunch, \
                     (run_moe_combine<Bfloat16, MoeOrder::order>))

#define VERBENA_OPS_FAR_DISPATCH(name, is_grouped)                                                      \
  VERBENA_OPS_KERNEL(moe_far_##name, MoeFarDispatchLaunch, (run_moe_dispatch<MoeRowBytes, is_grouped>)) \
  VERBENA_OPS_KERNEL(moe_far_##name##_float16, MoeFarDispatchLaunch,                                    \
                     (run_moe_dispatch<MoeRowCast<Half>, is_grouped>))                                  \
  VERBENA_OPS_KERNEL(moe_far_##name##_bfloat16, MoeFarDispatchLaunch,                                   \
                     (run_moe_dispatch<MoeRowCast<Bfloat16>, is_grouped>))

VERBENA_OPS_DISPATCH(dispatch, false)
VERBENA_OPS_DISPATCH(dispatch_grouped, true)
VERBENA_OPS_COMBINE(rows, kRows)
VERBENA_OPS_COMBINE(reduced, kReduced)
VERBENA_OPS_COMBINE(exact, kExact)
VERBENA_OPS_FAR_DISPATCH(dispatch, false)
VERBENA_OPS_FAR_DISPATCH(dispatch_grouped, true)
VERBENA_OPS_FAR_COMBINE(rows, kRows)
VERBENA_OPS_FAR_COMBINE(reduced, kReduced)
