#pragma once

#include "softverbs/operation.h"

namespace verbena::softverbs {

// A compare-and-swap or fetch-and-add on eight aligned bytes of the peer; the value before goes to op.local.
Outcome execute_atomic(Operation& op);

}  // namespace verbena::softverbs
