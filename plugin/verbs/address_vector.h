// The way from a port to a peer's, as a queue pair or an address handle is told it. Inside plugin/verbs only.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "verbs/device.h"
#include "verbs/types.h"

namespace verbena::verbs {

struct AddressVector {
  ibv_ah_attr attributes{};
  // Of the GID that packets come from; null: there is none, as the way has no GRH.
  const uint8_t* source_gid = nullptr;  // within `local`
};

// Both ends' ports can be joined (route.h). `traffic_class` -1: VERBENA_TC. `flow_label`: of 20 bits;
// networks choose the way by it, as far as they have several.
AddressVector make_address_vector(const Device& device, const LocalAddress& local, const PortAddress& remote,
                                  int traffic_class, uint32_t flow_label = 0);

}  // namespace verbena::verbs
