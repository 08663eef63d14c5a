// What several lines about connections say alike: where it happened, and what to try.
#pragma once

#include <string>

#include "base/log.h"
#include "transport/link/link.h"

namespace verbena::transport {

// The peer did what no peer of this build does.
inline constexpr char kPeerAdvice[] =
    "; do both hosts run the same build of the plugin? If so, please report it";
inline constexpr char kLengthAdvice[] = "; do all ranks call the same operations with the same sizes?";
inline constexpr char kQueueAdvice[] = "it overran or its device is gone; see dmesg";

// `rail mlx5_0:1`, `rails mlx5_0:1 and mlx5_1:1`: where the connection's rails are not told apart.
inline std::string name_rails(Link& link) {
  std::string names = link.rails() == 1 ? "rail " : "rails ";
  for (uint32_t r = 0; r < link.rails(); ++r) {
    if (r != 0) names += " and ";
    names += link.device(r).name() + ":" + std::to_string(link.device(r).port_number());
  }
  return names;
}

}  // namespace verbena::transport
