#pragma once

#include "softverbs/operation.h"

// Where the requests of a queue pair meet the plan. All of it is called only where the queue pair has faults.
namespace verbena::softverbs::faults {

// Prepares a request as softverbs::prepare does, unless the plan has something else in mind.
Outcome prepare_request(Operation& op, Qp& qp, SendRequest& request);
// Whether a request may begin: it may have to wait, or fail before its peer hears of it.
Outcome check_start(Qp& qp, const SendRequest& request);
// Whether the request's failure is the other end's too.
bool fails_far_end(Qp& qp, const SendRequest& request);
// How long a request that is delayed has to wait.
uint64_t get_delay_ns(Qp& qp, const SendRequest& request);
// SUCCESS, or what is reported in its place of a request that was carried out.
ibv_wc_status get_late_failure(Qp& qp, const SendRequest& request);
bool drops_completion(Qp& qp, const SendRequest& request);
// Of an operation that prepare_request() marked as struck.
Outcome carry_datagram(Operation& op);
// Whether a queue pair's datagrams are the worker's.
bool needs_worker(const Qp& qp);
// A datagram has left, struck or not.
void note_datagram(const Operation& op);
// The queue pair has entered the error state: raises the event that goes with it.
void report_error(Qp& qp);
// All its requests are forgotten.
void forget_requests(Qp& qp);

}  // namespace verbena::softverbs::faults
