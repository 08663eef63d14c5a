// Steps of a queue pair's runner that its two forms share: send_runner.cc carries requests out in the
// order posted, shuffled_writes.cc lets WRITEs overtake each other. For the thread that executes the
// queue pair's requests.
#pragma once

#include "softverbs/engine/queue_pair.h"

namespace verbena::softverbs {

// Why a run ended: nothing is left; the peer is not ready; a worker must continue; copies are under way;
// writes are held until Shuffle::held_until_ns; a failure.
enum class Stop { kAtEnd, kWaiting, kNeedsWorker, kFlying, kHeld, kFailed };

// Finishes the oldest request, which has its outcome. `is_flushed`: even if it succeeded at its target, the
// requester has stopped, so its completion reports a flush.
Step conclude(Qp& qp, Operation& op, bool is_flushed = false);
// Prepares the next request, unless it is prepared already. False while it has to wait.
bool prepare_next(Qp& qp);
// Abandons prepared requests that will not begin. Otherwise both sides could wait for the other's mark to be
// cleared.
void drop_next(Qp& qp);
// No memory is left for the next request. All earlier requests must be complete.
Stop fail_next(Qp& qp);
StepOutcome execute(Operation& op);
// Copies the next request. All earlier requests must be complete.
Step run_alone(Qp& qp);

}  // namespace verbena::softverbs
