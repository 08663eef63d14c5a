// Converts a signal of the process to a call on the event thread (event_loop.h). Does not replace a handler
// of the application, and does not remove a handler that the application installs later.
#pragma once

#include "base/event_loop.h"
#include "base/status.h"

namespace verbena::base {

// One signal at a time. `callback` runs on the event thread after each signal, once for several signals at
// the same time. From this call on the library stays loaded, because a thread may be in the handler.
Outcome take_signal(int signal, EventLoop::Callback callback, void* context);
// When it returns, the callback is not running and never runs again. Does nothing if no signal was taken.
void release_signal();

}  // namespace verbena::base
