// What kernels of a mixture-of-experts exchange are told, by the host.
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

// The symbol of the kernel verbena::ops::moe::`name`, or verbena::ops::moe_far::`name` of teams across hosts.
// The kernels are members of a namespace because timers of profiles, such as DeepEP's, look for kernels by
// "::dispatch" and "::combine".
inline std::string mangle_moe_kernel(const std::string& name, bool is_far = false) {
  const auto write = [](const std::string& word) { return std::to_string(word.size()) + word; };
  const bool is_dispatch = name.rfind("dispatch", 0) == 0;
  const std::string near = "NS0_" + write(is_dispatch ? "MoeDispatchLaunch" : "MoeCombineLaunch") + "E";
  return "_ZN7verbena3ops" + write(is_far ? "moe_far" : "moe") + write(name) + "E" +
         (is_far ? "NS0_" + write("MoeFarLaunch") + "I" + near + "EE" : near);
}

}  // namespace verbena::ops
