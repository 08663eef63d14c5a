// What kernels of a mixture-of-experts exchange are told, by the host.
#pragma once

#include "device/ops/call.h"
#include "verbena/device/moe/layout.cuh"

namespace verbena::ops {

struct MoeDispatchLaunch : Launch {
  device::MoeShape shape;
  device::MoeDispatch call;
};
struct MoeCombineLaunch : Launch {
  device::MoeShape shape;
  device::MoeCombine call;
};

// Of a team across hosts, which has kernels of its own. Others take the base.
template <typename MoeLaunch>
struct MoeFarLaunch : MoeLaunch {
  device::MoeHosts hosts;
};
using MoeFarDispatchLaunch = MoeFarLaunch<MoeDispatchLaunch>;
using MoeFarCombineLaunch = MoeFarLaunch<MoeCombineLaunch>;

}  // namespace verbena::ops
