#pragma once

#include "softverbs/operation.h"

namespace verbena::softverbs {

// The part of prepare() for datagrams: they are lost without notice when nobody takes them.
Outcome prepare_datagram(Operation& op);

}  // namespace verbena::softverbs
