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

// The kernels have the same names in each family, but each family has its own namespace: verbena::ops::moe
// for one host, moe_in_turn for one host and long batches, moe_in_windows for exchanges in windows, moe_far
// for teams across hosts. Profiling tools such as DeepEP's timer look for kernels whose names contain
// "::dispatch" and "::combine".
enum class MoeFamily : uint32_t { kOneHost, kInTurn, kInWindows, kFar };
inline constexpr uint32_t kMoeFamilies = 4;

// Returns the symbol of a family's kernel.
inline std::string mangle_moe_kernel(const std::string& name, MoeFamily family) {
  constexpr const char* kNamespaces[kMoeFamilies] = {"moe", "moe_in_turn", "moe_in_windows", "moe_far"};
  const bool is_far = family == MoeFamily::kFar;
  const auto write = [](const std::string& word) { return std::to_string(word.size()) + word; };
  const bool is_dispatch = name.rfind("dispatch", 0) == 0;
  const std::string near = "NS0_" + write(is_dispatch ? "MoeDispatchLaunch" : "MoeCombineLaunch") + "E";
  return "_ZN7verbena3ops" + write(kNamespaces[static_cast<uint32_t>(family)]) + write(name) + "E" +
         (is_far ? "NS0_" + write("MoeFarLaunch") + "I" + near + "EE" : near);
}

}  // namespace verbena::ops
