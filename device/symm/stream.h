// Calls of symmetric memory in the order of a stream: each is a kernel of the library's own, so that an
// application needs none. Legal while the stream is captured.
#pragma once

#include "base/status.h"
#include "device/symm/stream_call.h"
#include "device/symm/team.h"

namespace verbena::symm {

// On the GPU that is current, for a member's team; `stream` is a CUstream. What kernels of the heap's network
// can do alone is refused. Any thread.
base::Outcome enqueue_call(const Team& team, const StreamCall& call, void* stream);

}  // namespace verbena::symm
