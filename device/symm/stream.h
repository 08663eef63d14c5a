// Calls of symmetric memory on streams. Each call launches a kernel of the library, so that applications need
// no kernel of their own. May be captured in a CUDA graph.
#pragma once

#include "base/status.h"
#include "device/symm/stream_call.h"
#include "device/symm/team.h"

namespace verbena::symm {

// Enqueues a call of a member on a CUstream of the current GPU. Fails for operations that need the network of
// a borrowed heap. Any thread may call.
base::Outcome enqueue_call(const Team& team, const StreamCall& call, void* stream);
// Fails if enqueue_call() would refuse the call's arguments.
base::Outcome check_call(const Team& team, const StreamCall& call);

}  // namespace verbena::symm
