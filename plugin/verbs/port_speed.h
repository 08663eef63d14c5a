// Computes the speed of a port's link from its codes for the number of lanes and the rate of a lane. Pure.
#pragma once

#include <cstdint>

namespace verbena::verbs {

// Returns 0 if either code is unknown.
constexpr uint32_t compute_speed_mbps(uint8_t width_code, uint32_t speed_code) {
  uint32_t lanes = 0, lane_mbps = 0;
  switch (width_code) {
    case 1:
      lanes = 1;
      break;
    case 2:
      lanes = 4;
      break;
    case 4:
      lanes = 8;
      break;
    case 8:
      lanes = 12;
      break;
    case 16:
      lanes = 2;
      break;
    default:
      break;
  }
  switch (speed_code) {
    case 1:
      lane_mbps = 2500;
      break;  // SDR
    case 2:
      lane_mbps = 5000;
      break;  // DDR
    case 4:
    case 8:
      lane_mbps = 10000;
      break;  // QDR, FDR10
    case 16:
      lane_mbps = 14000;
      break;  // FDR
    case 32:
      lane_mbps = 25000;
      break;  // EDR
    case 64:
      lane_mbps = 50000;
      break;  // HDR
    case 128:
      lane_mbps = 100000;
      break;  // NDR
    case 256:
      lane_mbps = 200000;
      break;  // XDR
    default:
      break;
  }
  return lanes * lane_mbps;
}

}  // namespace verbena::verbs
