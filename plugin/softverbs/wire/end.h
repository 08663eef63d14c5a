// The state of a queue pair for connections to other hosts: outstanding requests to another host, and
// requests arriving from there.
#pragma once

#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"

namespace verbena::softverbs::wire {

// The state of a queue pair for connections to other hosts.
struct End {
  Outbound outbound;
  Inbound inbound;
};

}  // namespace verbena::softverbs::wire
