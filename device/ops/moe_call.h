// The arguments of the kernels of a mixture-of-experts exchange.
#pragma once

#include <string>

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

// The arguments of the kernels for teams across hosts. The kernels for teams on one host take the base class.
template <typename MoeLaunch>
struct MoeFarLaunch : MoeLaunch {
  device::MoeHosts hosts;
};
using MoeFarDispatchLaunch = MoeFarLaunch<MoeDispatchLaunch>;
using MoeFarCombineLaunch = MoeFarLaunch<MoeCombineLaunch>;

// Returns the symbol of the kernel verbena::ops::moe::`name` or, for teams across hosts,
// verbena::ops::moe_far::`name`. The kernels are in a namespace, because profiling tools such as DeepEP's
// timer look for kernels whose names contain "::dispatch" and "::combine".
inline std::string mangle_moe_kernel(const std::string& name, bool is_far = false) {
  const auto write = [](const std::string& word) { return std::to_string(word.size()) + word; };
  const bool is_dispatch = name.rfind("dispatch", 0) == 0;
  const std::string near = "NS0_" + write(is_dispatch ? "MoeDispatchLaunch" : "MoeCombineLaunch") + "E";
  return "_ZN7verbena3ops" + write(is_far ? "moe_far" : "moe") + write(name) + "E" +
         (is_far ? "NS0_" + write("MoeFarLaunch") + "I" + near + "EE" : near);
}

}  // namespace verbena::ops
