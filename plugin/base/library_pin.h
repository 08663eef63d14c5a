// Keeps this library loaded until the process ends, even if NCCL closes it. Needed once its code may run at
// any time: a signal handler, or a thread for a connection that was never closed.
#pragma once

namespace verbena::base {

void pin_library();

}  // namespace verbena::base
