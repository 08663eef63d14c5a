// The sending half of a queue pair whose peer is on another host: outstanding requests, acknowledgements,
// retries.
#pragma once

#include <deque>
#include <mutex>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/wire/process_link.h"

namespace verbena::softverbs::wire {

// A request that was passed to the link and is not complete.
struct Flying {
  uint64_t number;
  std::shared_ptr<Transfer> response;  // of READs and atomics
  bool is_answered = false;            // the response is complete
};

// The outstanding requests of a queue pair. Guarded by the queue pair's mutex.
struct Outbound {
  std::shared_ptr<ProcessLink> link;
  uint64_t session = 0;
  uint32_t round = 0;
  uint64_t acknowledged = 0;  // all requests before this one
  uint64_t locals = 0;        // requests without a peer, all executed: sequences do not count them
  uint32_t answers_owed = 0;
  std::deque<Flying> flying;
  uint64_t since_ns = 0;    // since when this request has been the oldest
  bool is_waiting = false;  // waits until the peer is ready
  // The request that the peer refused; it fails when all requests before it are complete.
  uint64_t refused = UINT64_MAX;
  bool has_failed = false;  // the oldest request failed; the worker handles it
  uint64_t report_ns = 0;   // when it does so
  bool is_reported = false;
  ibv_wc_status failure = IBV_WC_SUCCESS;
};

// Sends posted requests that may start. The caller holds the queue pair's mutex.
void run_requests(Qp& qp, Runner runner, std::unique_lock<std::mutex>& lock);
// Steps of run_requests(), with the mutex held. start_all() passes the requests that may start to the link.
// call_worker() lets the worker run the queue pair. fail_oldest() lets the worker fail the oldest request and
// the queue pair, because this may wait for loops. fail_late() does so after wait_for_timeout().
void start_all(Qp& qp);
void call_worker(Qp& qp, uint64_t delay_ns);
void fail_oldest(Qp& qp, ibv_wc_status status, uint64_t delay_ns = 0);
void fail_late(Qp& qp);
// For the state RESET: forgets all requests.
void forget_requests(Qp& qp);

// Called by a loop, with the turn.
Verdict begin_response(ProcessLink& link, const Header& header, std::shared_ptr<Transfer>& transfer);
void end_response(Stream& stream, const Header& header, const std::shared_ptr<Transfer>& transfer);
void take_acknowledgement(ProcessLink& link, const Header& header);
void take_refusal(ProcessLink& link, const Header& header);
void fail_request(ProcessLink& link, const Header& request,
                  ibv_wc_status status);  // the payload of the request cannot be read
void fail_requests(ProcessLink& link);
void flush_soon(Qp& qp);  // for a queue pair in the state ERR
// Fails requests of peers that have disappeared.
void check_deadlines(Port& port);

// Sends a datagram to another host; it may be lost.
void send_datagram(Operation& op);

}  // namespace verbena::softverbs::wire
