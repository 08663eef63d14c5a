// Keeps this library loaded until the process ends, even if NCCL closes it. Call it when code of the
// library may run at any later time: a signal handler, or a thread of a connection that was never closed.
#pragma once

namespace verbena::base {

void pin_library();

}  // namespace verbena::base
