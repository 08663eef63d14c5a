// Calls of symmetric memory on streams. Each call launches a kernel of the library, so that applications need
// no kernels. The calls may be captured in a CUDA graph.
#pragma once

#include <span>

#include "base/status.h"
#include "device/symm/stream_call.h"
#include "device/symm/team.h"

namespace verbena::symm {

// Enqueues calls of a team's member on a CUstream of the current GPU. If any call is invalid, enqueues no
// call. Returns an error for operations that need the network of a borrowed heap. Any thread may call this
// function.
base::Outcome enqueue_calls(const Team& team, std::span<const StreamCall> calls, void* stream);

}  // namespace verbena::symm
