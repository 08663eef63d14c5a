// Decides by the fault plan what happens to each request, and executes the faults of rails and queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "softverbs/faults/held_datagrams.h"
#include "softverbs/faults/rails.h"
#include "softverbs/faults/request_count.h"
#include "softverbs/faults/schedule.h"
#include "softverbs/faults/setup.h"

namespace verbena::softverbs {
struct Qp;
struct SendRequest;
}  // namespace verbena::softverbs

namespace verbena::softverbs::faults {

// The decision of the plan for one request.
struct Fate {
  uint64_t number = 0;  // of the request in its queue
  uint64_t due_ns = 0;  // it does not begin before this time
  ibv_wc_status failure = IBV_WC_SUCCESS;
  bool is_after_work = false;
  bool fails_far = false;       // the queue pair at the other end fails too
  bool is_dropped = false;      // the completion is dropped
  bool is_queue_fatal = false;  // raise IBV_EVENT_QP_FATAL with the failure
  // For a datagram:
  bool is_lost = false;
  uint32_t copies = 0;      // number of additional copies
  uint32_t overtakers = 0;  // number of datagrams that are sent before it
  uint32_t wrong_bytes = 0;
  uint64_t draw = 0;  // selects the bytes to change
  bool is_changed() const { return is_lost || copies != 0 || overtakers != 0 || wrong_bytes != 0; }
};

// The plan's state for a queue pair; exists only if there is a plan. Used only by the thread that executes
// the requests.
struct QueueFaults {
  uint64_t ordinal = 0;  // the number of the queue pair among those made on the rail, from 1
  std::unique_ptr<RequestCount[]> counts;  // by rule
  std::deque<Fate> fates;                  // of requests that have begun, in order
  std::atomic<bool> owes_fatal_event{false};
};

// Decides by the plan what happens to requests. A decision depends only on the plan, its seed, and the number
// of earlier requests.
class Injector {
 public:
  Injector(const FaultPlan& plan, Rails& rails, Schedule& schedule);
  void start();  // starts the plan's timed faults

  void add(Qp& qp);
  void remove(Qp& qp);  // call before it is destroyed

  // Returns the fate of a request, which is decided at the first call. Fates of completed requests are
  // forgotten.
  const Fate& get_fate(Qp& qp, const SendRequest& request);
  HeldDatagrams& held() { return held_; }
  // Returns whether the plan requires that the worker sends all datagrams.
  bool strikes_datagrams() const { return strikes_datagrams_; }
  bool has_delays() const { return has_delays_; }

 private:
  Fate decide(Qp& qp, const SendRequest& request);
  void apply(const Rule& rule, uint64_t draw, Qp& qp, const SendRequest& request, Fate& fate);
  uint64_t take_bandwidth(const Rule& rule, uint32_t rail, const SendRequest& request);
  void take_down(const Rule& rule, uint32_t rail, uint64_t flaps);
  void hold_down(const Rule& rule, uint32_t rail, bool is_held);
  void raise(const Rule& rule, uint32_t rail);
  void end_device(uint32_t rail);

  using RailCounts = std::array<RequestCount, kMaxDevices>;
  const FaultPlan& plan_;
  Rails& rails_;
  Schedule& schedule_;
  std::vector<RailCounts> counts_;  // by rule
  std::vector<std::array<uint64_t, kMaxDevices>>
      free_ns_;  // by rule: when a limited rail has sent everything so far
  std::mutex bandwidth_mutex_;
  std::atomic<uint64_t> ordinals_[kMaxDevices] = {};
  // The number of rules that hold a path of a rail down.
  std::array<std::array<std::atomic<uint32_t>, kPaths>, kMaxDevices> path_holds_{};
  HeldDatagrams held_{schedule_};
  bool strikes_datagrams_, has_delays_;
  std::mutex queues_mutex_;
  std::set<Qp*> queues_;
};

}  // namespace verbena::softverbs::faults
