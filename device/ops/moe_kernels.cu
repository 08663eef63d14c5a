// The kernels of libverbena_ops.so that move tokens to experts and back. They form a separate image, so that
// nvcc can compile the images in parallel. mangle_moe_kernel() (moe_call.h) returns their symbols.
#include "device/ops/run_moe.cuh"

#define VERBENA_OPS_KERNEL(name, LaunchOf, ...)                                                     \
  __global__ void __launch_bounds__(kMaxThreads, 1) name(const __grid_constant__ LaunchOf launch) { \
    __VA_ARGS__(launch);                                                                            \
  }

#define VERBENA_OPS_COMBINE(order_name, order, LaunchOf)                                                 \
  VERBENA_OPS_KERNEL(combine_##order_name##_float16, LaunchOf, (run_moe_combine<Half, MoeOrder::order>)) \
  VERBENA_OPS_KERNEL(combine_##order_name##_bfloat16, LaunchOf, (run_moe_combine<Bfloat16, MoeOrder::order>))

#define VERBENA_OPS_DISPATCH(name, is_grouped, LaunchOf)                                         \
  VERBENA_OPS_KERNEL(name, LaunchOf, (run_moe_dispatch<MoeRowBytes, is_grouped>))                \
  VERBENA_OPS_KERNEL(name##_float16, LaunchOf, (run_moe_dispatch<MoeRowCast<Half>, is_grouped>)) \
  VERBENA_OPS_KERNEL(name##_bfloat16, LaunchOf, (run_moe_dispatch<MoeRowCast<Bfloat16>, is_grouped>))

namespace verbena::ops::moe {

VERBENA_OPS_DISPATCH(dispatch, false, MoeDispatchLaunch)
VERBENA_OPS_DISPATCH(dispatch_grouped, true, MoeDispatchLaunch)
VERBENA_OPS_COMBINE(rows, kRows, MoeCombineLaunch)
VERBENA_OPS_COMBINE(reduced, kReduced, MoeCombineLaunch)
VERBENA_OPS_COMBINE(exact, kExact, MoeCombineLaunch)

}  // namespace verbena::ops::moe

// The kernels for teams across hosts.
namespace verbena::ops::moe_far {

VERBENA_OPS_DISPATCH(dispatch, false, MoeFarDispatchLaunch)
VERBENA_OPS_DISPATCH(dispatch_grouped, true, MoeFarDispatchLaunch)
VERBENA_OPS_COMBINE(rows, kRows, MoeFarCombineLaunch)
VERBENA_OPS_COMBINE(reduced, kReduced, MoeFarCombineLaunch)

}  // namespace verbena::ops::moe_far
