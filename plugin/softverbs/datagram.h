#pragma once

#include "softverbs/operation.h"

namespace verbena::softverbs {

// The part of prepare() for datagrams: they are lost without notice when nobody takes them.
Outcome prepare_datagram(Operation& op);

// Names op.bytes of the receive that was taken as op.remote. False when they do not fit.
bool scatter_datagram(Operation& op);

}  // namespace verbena::softverbs
