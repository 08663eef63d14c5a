// The wire's state for a queue pair: outstanding requests to another host, and requests arriving from there.
#pragma once

#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"

namespace verbena::softverbs::wire {

// The wire's state for a queue pair.
struct End {
  Outbound outbound;
  Inbound inbound;
};

}  // namespace verbena::softverbs::wire
