// The kernels of libverbena_ops.so that move tokens to experts and back. They form a separate image, so that
// nvcc can compile the images in parallel. mangle_moe_kernel() (moe_call.h) returns their symbols.
#include "device/ops/run_moe.cuh"

#define VERBENA_OPS_KERNEL(name, LaunchOf, ...)                                                     \
  __global__ void __launch_bounds__(kMaxThreads, 1) name(const __grid_constant__ LaunchOf launch) { \
    __VA_ARGS__(launch);                                                                            \
  }

#define VERBENA_OPS_COMBINE(order_name, order, flow, LaunchOf)                \
  VERBENA_OPS_KERNEL(combine_##order_name##_float16, LaunchOf,                \
                     (run_moe_combine<Half, MoeOrder::order, MoeFlow::flow>)) \
  VERBENA_OPS_KERNEL(combine_##order_name##_bfloat16, LaunchOf,               \
                     (run_moe_combine<Bfloat16, MoeOrder::order, MoeFlow::flow>))

#define VERBENA_OPS_DISPATCH(name, is_grouped, flow, LaunchOf)                                   \
  VERBENA_OPS_KERNEL(name, LaunchOf, (run_moe_dispatch<MoeRowBytes, is_grouped, MoeFlow::flow>)) \
  VERBENA_OPS_KERNEL(name##_float16, LaunchOf,                                                   \
                     (run_moe_dispatch<MoeRowCast<Half>, is_grouped, MoeFlow::flow>))            \
  VERBENA_OPS_KERNEL(name##_bfloat16, LaunchOf,                                                  \
                     (run_moe_dispatch<MoeRowCast<Bfloat16>, is_grouped, MoeFlow::flow>))

#define VERBENA_OPS_FAMILY(flow, DispatchOf, CombineOf)          \
  VERBENA_OPS_DISPATCH(dispatch, false, flow, DispatchOf)        \
  VERBENA_OPS_DISPATCH(dispatch_grouped, true, flow, DispatchOf) \
  VERBENA_OPS_COMBINE(rows, kRows, flow, CombineOf)              \
  VERBENA_OPS_COMBINE(reduced, kReduced, flow, CombineOf)

namespace verbena::ops::moe {
VERBENA_OPS_FAMILY(kSendFirst, MoeDispatchLaunch, MoeCombineLaunch)
VERBENA_OPS_COMBINE(exact, kExact, kSendFirst, MoeCombineLaunch)
}  // namespace verbena::ops::moe
namespace verbena::ops::moe_in_turn {
VERBENA_OPS_FAMILY(kInTurn, MoeDispatchLaunch, MoeCombineLaunch)
VERBENA_OPS_COMBINE(exact, kExact, kInTurn, MoeCombineLaunch)
}  // namespace verbena::ops::moe_in_turn
namespace verbena::ops::moe_in_windows {
VERBENA_OPS_DISPATCH(dispatch, false, kInWindows, MoeDispatchLaunch)
VERBENA_OPS_COMBINE(rows, kRows, kInWindows, MoeCombineLaunch)
}  // namespace verbena::ops::moe_in_windows
namespace verbena::ops::moe_far {
VERBENA_OPS_FAMILY(kSendFirst, MoeFarDispatchLaunch, MoeFarCombineLaunch)
}  // namespace verbena::ops::moe_far
