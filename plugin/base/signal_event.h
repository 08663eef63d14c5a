// A signal of the process as a call on the event thread (event_loop.h). A signal that somebody handles or
// ignores is not taken, and a handler that came after ours is left alone.
#pragma once

#include "base/event_loop.h"
#include "base/status.h"

namespace verbena::base {

// One signal at a time. From here on `callback` runs on the event thread after each signal, once for several
// that come together. The library stays loaded from here on: a thread may be in the handler.
Outcome take_signal(int signal, EventLoop::Callback callback, void* context);
// Harmless without a signal. When it returns, the callback is not running and never runs again.
void release_signal();

}  // namespace verbena::base
