// Applies the fault plan to the requests of a queue pair. These functions are called only for queue pairs
// that have faults.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs::faults {

// Returns the time at which a request was posted, for a plan that delays requests.
uint64_t stamp_post();
// Prepares a request as softverbs::prepare does, unless the plan makes it fail.
StepOutcome prepare_request(Operation& op, Qp& qp, SendRequest& request);
// Returns whether a request may begin. The request may have to wait, or may fail before it reaches its peer.
StepOutcome check_start(Qp& qp, const SendRequest& request);
// Fails the other end of a connection within the host, if the plan requires this for a failed request.
// Earlier requests are complete by then.
void strike_far_end(Qp& qp, const SendRequest& request);
// Returns whether the queue pair at the other end fails if the request fails.
bool fails_far_end(Qp& qp, const SendRequest& request);
// Returns how long a delayed request has to wait.
uint64_t get_delay_ns(Qp& qp, const SendRequest& request);
// Returns the status to report for a request that was executed: SUCCESS, or the failure that the plan
// demands.
ibv_wc_status get_late_failure(Qp& qp, const SendRequest& request);
bool drops_completion(Qp& qp, const SendRequest& request);
// Takes over a datagram that prepare_request() marked as fault-injected; end_run() sends it, now or later.
StepOutcome take_datagram(Operation& op);
// Returns whether only the rail's worker may send this queue pair's datagrams and held datagrams. This is the
// case if GPU memory is involved, because only the worker has lanes for GPU memory.
bool needs_worker(const Qp& qp);
// Counts a datagram that has been sent, fault-injected or not.
void note_datagram(const Operation& op);
// Sends held datagrams that are due. Called after each run of the queue pair's requests.
void end_run(const Qp& qp);
// Raises the event that the plan demands when the queue pair has entered the error state.
void report_error(Qp& qp);
// Forgets all requests of the queue pair.
void forget_requests(Qp& qp);

}  // namespace verbena::softverbs::faults
