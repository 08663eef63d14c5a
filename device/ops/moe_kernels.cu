// The kernels of libverbena_ops.so that move tokens to experts and back. They form a separate image, so that
// nvcc can compile the images in parallel. mangle_moe_kernel() (moe_call.h) returns their symbols.
#include "device/ops/run_moe.cuh"

#define VERBENA_OPS_KERNEL(name, LaunchOf, ...)                                                     \
  __global__ void __launch_bounds__(kMaxThreads, 1) name(const __grid_constant__ LaunchOf launch) { \
    __VA_ARGS__(launch);                                                                            \
  }

#define VERBENA_OPS_COMBINE(order_name, order, in_turn, LaunchOf)       \
  VERBENA_OPS_KERNEL(combine_##order_name##_float16, LaunchOf,          \
                     (run_moe_combine<Half, MoeOrder::order, in_turn>)) \
  VERBENA_OPS_KERNEL(combine_##order_name##_bfloat16, LaunchOf,         \
                     (run_moe_combine<Bfloat16, MoeOrder::order, in_turn>))

#define VERBENA_OPS_DISPATCH(name, is_grouped, in_turn, LaunchOf)                                         \
  VERBENA_OPS_KERNEL(name, LaunchOf, (run_moe_dispatch<MoeRowBytes, is_grouped, in_turn>))                \
  VERBENA_OPS_KERNEL(name##_float16, LaunchOf, (run_moe_dispatch<MoeRowCast<Half>, is_grouped, in_turn>)) \
  VERBENA_OPS_KERNEL(name##_bfloat16, LaunchOf, (run_moe_dispatch<MoeRowCast<Bfloat16>, is_grouped, in_turn>))

#define VERBENA_OPS_FAMILY(in_turn, DispatchOf, CombineOf)          \
  VERBENA_OPS_DISPATCH(dispatch, false, in_turn, DispatchOf)        \
  VERBENA_OPS_DISPATCH(dispatch_grouped, true, in_turn, DispatchOf) \
  VERBENA_OPS_COMBINE(rows, kRows, in_turn, CombineOf)              \
  VERBENA_OPS_COMBINE(reduced, kReduced, in_turn, CombineOf)

namespace verbena::ops::moe {
VERBENA_OPS_FAMILY(false, MoeDispatchLaunch, MoeCombineLaunch)
VERBENA_OPS_COMBINE(exact, kExact, false, MoeCombineLaunch)
}  // namespace verbena::ops::moe
namespace verbena::ops::moe_in_turn {
VERBENA_OPS_FAMILY(true, MoeDispatchLaunch, MoeCombineLaunch)
VERBENA_OPS_COMBINE(exact, kExact, true, MoeCombineLaunch)
}  // namespace verbena::ops::moe_in_turn
namespace verbena::ops::moe_far {
VERBENA_OPS_FAMILY(false, MoeFarDispatchLaunch, MoeFarCombineLaunch)
}  // namespace verbena::ops::moe_far
