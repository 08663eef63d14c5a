// The route from a port to a peer's port, in the form that a queue pair or an address handle needs. Only for
// use in plugin/verbs.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "verbs/device.h"
#include "verbs/types.h"

namespace verbena::verbs {

struct AddressVector {
  ibv_ah_attr attributes{};
  // The GID from which packets are sent; null if the route has no GRH.
  const uint8_t* source_gid = nullptr;  // points into `local`
};

// The two ports must be compatible (route.h). A `traffic_class` of -1 selects VERBENA_TC. `flow_label` has 20
// bits; a network with several paths chooses the path by it.
AddressVector make_address_vector(const Device& device, const LocalAddress& local, const PortAddress& remote,
                                  int traffic_class, uint32_t flow_label = 0);

}  // namespace verbena::verbs
