#include "transport/transport.h"

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

base::Outcome Transport::fail_other_transport() {
  const bool is_datagram = base::parameters().transport == base::Transport::kDatagram;
  return base::fail(base::Status::kInvalidUsage,
                    "connect: the transports differ (VERBENA_TRANSPORT is %s on this rank and %s on the "
                    "peer); set the same value for every rank",
                    is_datagram ? "datagram" : "connected", is_datagram ? "connected" : "datagram");
}

}  // namespace verbena::transport
