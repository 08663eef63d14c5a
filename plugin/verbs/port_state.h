// Names of the states of a port. Pure.
#pragma once

#include <infiniband/verbs.h>

namespace verbena::verbs {

constexpr const char* describe_port_state(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initializing";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "active, deferred";
    default:
      return "unknown";
  }
}

}  // namespace verbena::verbs
