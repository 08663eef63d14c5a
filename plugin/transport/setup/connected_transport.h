// The transport over connected queue pairs: Listener and Connector behind the interface of transport.h.
#pragma once

#include "transport/transport.h"

namespace verbena::transport {

const Transport& connected_transport();

}  // namespace verbena::transport
