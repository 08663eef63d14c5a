// The bodies of the kernels that move tokens to experts and back. This header is also compiled for the
// emulated GPU.
#pragma once

#include "device/ops/moe_call.h"
#include "device/ops/run_calls.cuh"
#include "verbena/device/moe/combine.cuh"
#include "verbena/device/moe/dispatch.cuh"

namespace verbena::ops {

// Fills the outputs and the handle of a failed dispatch with 0xff, which is -1 in int32 and NaN in floating
// point. The counts become 0.
VERBENA_DEVICE_FAR void spoil_dispatch(const MoeDispatch& call) {
  const MoeHandleLayout& layout = call.layout;
  const uint64_t rows = call.output_rows;
  spoil(Rows::contiguous(static_cast<char*>(call.output)), rows * call.row_bytes);
  if (call.scale_bytes != 0)
    spoil(Rows::contiguous(static_cast<char*>(call.output_scales)), rows * call.output_scale_bytes);
  for (void* const rows_of : {static_cast<void*>(call.row_sources), static_cast<void*>(call.row_experts)})
    if (rows_of != nullptr) spoil(Rows::contiguous(static_cast<char*>(rows_of)), rows * sizeof(int32_t));
  spoil(Rows::contiguous(call.handle + layout.expert_begins), layout.bytes - layout.expert_begins);
  for (uint64_t i = thread_index(); i < layout.expert_begins / sizeof(int32_t); i += threads_per_block())
    store_moe<int32_t>(call.handle, i, 0);
}

// Returns the MoeOneHost or MoeFarHosts of a launch.
template <typename MoeLaunch>
struct MoeFarOf {
  using Type = MoeOneHost;
  VERBENA_DEVICE static Type find(const MoeLaunch&, MoeKind) { return {}; }
};
template <typename MoeLaunch>
struct MoeFarOf<MoeFarLaunch<MoeLaunch>> {
  using Type = MoeFarHosts;
  VERBENA_DEVICE static Type find(const MoeFarLaunch<MoeLaunch>& launch, MoeKind kind) {
    return {launch.workspace, launch.shape, launch.hosts, kind};
  }
};

// @tparam MoeLaunch  MoeDispatchLaunch, or MoeFarLaunch<MoeDispatchLaunch>
template <typename Rows, bool kIsGrouped, MoeFlow kFlow = MoeFlow::kSendFirst,
          typename MoeLaunch = MoeDispatchLaunch>
VERBENA_DEVICE void run_moe_dispatch(const MoeLaunch& launch) {
  run_grid(
      launch,
      [&] {
        start_of(launch)();
        using Far = MoeFarOf<MoeLaunch>;
        MoeDispatchKernel<Rows, kIsGrouped, typename Far::Type, kFlow> kernel(
            launch.workspace, launch.shape, launch.call, Far::find(launch, MoeKind::kDispatch));
        return kernel.run();
      },
      [&] { spoil_dispatch(launch.call); });
}
template <typename T, MoeOrder kOrder, MoeFlow kFlow = MoeFlow::kSendFirst,
          typename MoeLaunch = MoeCombineLaunch>
VERBENA_DEVICE void run_moe_combine(const MoeLaunch& launch) {
  run_grid(
      launch,
      [&] {
        start_of(launch)();
        using Far = MoeFarOf<MoeLaunch>;
        MoeCombineKernel<T, kOrder, typename Far::Type, kFlow> kernel(
            launch.workspace, launch.shape, launch.call, Far::find(launch, MoeKind::kCombine));
        return kernel.run();
      },
      [&] {
        spoil_tensor(static_cast<char*>(launch.call.output),
                     uint64_t{launch.call.tokens} * launch.call.row_bytes);
      });
}

}  // namespace verbena::ops
