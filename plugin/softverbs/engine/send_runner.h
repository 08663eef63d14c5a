// Steps that the two runners of queue pairs share: send_runner.cc executes requests in the order posted, and
// shuffled_writes.cc reorders WRITEs. Only the thread that executes the queue pair's requests calls these
// functions.
#pragma once

#include "softverbs/engine/queue_pair.h"

namespace verbena::softverbs {

// Why a run ended: no request is left; the peer is not ready; a worker must continue; copies are outstanding;
// writes are held until Shuffle::held_until_ns; a failure.
enum class Stop { kAtEnd, kWaiting, kNeedsWorker, kFlying, kHeld, kFailed };

// Finishes the oldest request, whose outcome is known. If `is_flushed` is true, the requester has stopped, so
// the completion reports a flush even if the request succeeded at its target.
Step conclude(Qp& qp, Operation& op, bool is_flushed = false);
// Prepares the next request, unless it is already prepared. Returns false while the request has to wait.
bool prepare_next(Qp& qp);
// Abandons prepared requests that will not begin. Otherwise, each side could wait for the other side to clear
// its mark.
void drop_next(Qp& qp);
// Fails the next request because no memory is left. All earlier requests must be complete.
Stop fail_next(Qp& qp);
StepOutcome execute(Operation& op);
// Copies the next request. All earlier requests must be complete.
Step run_alone(Qp& qp);

}  // namespace verbena::softverbs
