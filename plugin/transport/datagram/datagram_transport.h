// The transport over datagrams: Listener and Connector of meeting.h behind the interface of transport.h.
#pragma once

#include "transport/transport.h"

namespace verbena::transport::datagram {

const Transport& datagram_transport();

}  // namespace verbena::transport::datagram
