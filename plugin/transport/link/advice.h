// Texts that several log lines about connections share: the place, and what to try.
#pragma once

#include <string>

#include "base/log.h"
#include "transport/link/link.h"

namespace verbena::transport {

// The advice after an error that no correct peer of the same build causes.
inline constexpr char kPeerAdvice[] =
    ". Check that both hosts run the same build of the plugin. If they do, please report this error";
inline constexpr char kLengthAdvice[] = ". Check that all ranks call the same operations with the same sizes";
inline constexpr char kQueueAdvice[] = "the queue overran, or the device is gone. See dmesg";

// Returns `rail mlx5_0:1`, or `rails mlx5_0:1 and mlx5_1:1`, for a line that concerns all rails of the
// connection.
inline std::string name_rails(Link& link) {
  std::string names = link.rails() == 1 ? "rail " : "rails ";
  for (uint32_t r = 0; r < link.rails(); ++r) {
    if (r != 0) names += " and ";
    names += link.device(r).name() + ":" + std::to_string(link.device(r).port_number());
  }
  return names;
}

}  // namespace verbena::transport
