#pragma once

#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"

namespace verbena::softverbs::wire {

// What a queue pair has for the wire.
struct End {
  Outbound outbound;
  Inbound inbound;
};

}  // namespace verbena::softverbs::wire
