#include "transport/transport.h"

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

base::Outcome Transport::fail_other_transport() {
  const bool is_datagram = base::parameters().transport == base::Transport::kDatagram;
  return base::fail(
      base::Status::kInvalidUsage,
      "connect: VERBENA_TRANSPORT is %s on this rank but %s on the peer. Set the same value for every rank",
      is_datagram ? "datagram" : "connected", is_datagram ? "connected" : "datagram");
}

}  // namespace verbena::transport
