#include "softverbs/faults/injector.h"

#include <algorithm>

#include "softverbs/engine/memory_window.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/engine/queue_pair_state.h"
#include "softverbs/shared/clock.h"

namespace verbena::softverbs::faults {
namespace {

uint32_t get_path(const SendRequest& request) {
  return reinterpret_cast<const Ah*>(request.address_handle)->attributes.grh.flow_label % kPaths;
}

bool is_about_kind(const Rule& rule, const Qp& qp, const SendRequest& request) {
  if (!is_of_datagrams(rule.action) && rule.path == kEveryPath) return true;
  return qp.base.qp_type == IBV_QPT_UD && (rule.path == kEveryPath || rule.path == get_path(request));
}

bool is_about(const Rule& rule, const Qp& qp, const SendRequest& request) {
  return (rule.rail == kEveryRail || rule.rail == qp.device) &&
         (rule.queue_pair == 0 || rule.queue_pair == qp.faults->ordinal) &&
         (rule.opcodes >> request.opcode & 1) != 0 && !is_local(request.opcode) &&
         rule.trigger != Trigger::kTime && is_about_kind(rule, qp, request);
}

// A responder that rejects a request moves its own queue pair to the error state, as on a real device.
bool fails_far(const Rule& rule) {
  PeerFailure failure{};
  return rule.far == Far::kAsStatus ? find_peer_failure(rule.status, failure) : rule.far == Far::kError;
}

const char* get_name(Action action) {
  constexpr const char* kNames[] = {"fail",  "error", "drop",      "delay",   "limit",  "down",
                                    "event", "lose",  "duplicate", "reorder", "corrupt"};
  return kNames[static_cast<size_t>(action)];
}

template <typename Function>
void for_each_rail(const Rule& rule, const Function& function) {
  for (uint32_t rail = 0; rail < kMaxDevices; ++rail) {
    if (rule.rail == kEveryRail || rule.rail == rail) function(rail);
  }
}

}  // namespace

Injector::Injector(const FaultPlan& plan, Rails& rails, Schedule& schedule)
    : plan_(plan),
      rails_(rails),
      schedule_(schedule),
      counts_(plan.rules.size()),
      free_ns_(plan.rules.size()),
      strikes_datagrams_(std::ranges::any_of(
          plan.rules,
          [](const Rule& rule) { return is_of_datagrams(rule.action) || rule.path != kEveryPath; })),
      has_delays_(std::ranges::any_of(plan.rules, [](const Rule& rule) {
        return rule.action == Action::kDelay || rule.action == Action::kLimit;
      })) {}

void Injector::start() {
  const uint64_t now_ns = read_clock_ns();
  for (const Rule& rule : plan_.rules) {
    if (rule.trigger != Trigger::kTime) continue;
    for_each_rail(rule, [&](uint32_t rail) {
      schedule_.add(now_ns + rule.at_ns, [this, &rule, rail] {
        if (rule.action == Action::kDown) take_down(rule, rail, rule.flaps);
        if (rule.action == Action::kEvent) raise(rule, rail);
      });
    });
  }
}

void Injector::add(Qp& qp) {
  qp.faults = std::make_unique<QueueFaults>();
  qp.faults->ordinal = ordinals_[qp.device].fetch_add(1) + 1;
  qp.faults->counts = std::make_unique<RequestCount[]>(plan_.rules.size());
  const std::lock_guard lock(queues_mutex_);
  queues_.insert(&qp);
}

void Injector::remove(Qp& qp) {
  held_.forget(qp);
  const std::lock_guard lock(queues_mutex_);
  queues_.erase(&qp);
}

const Fate& Injector::get_fate(Qp& qp, const SendRequest& request) {
  std::deque<Fate>& fates = qp.faults->fates;
  while (!fates.empty() && fates.front().number < qp.send_queue.executed) fates.pop_front();
  const auto known = std::find_if(fates.begin(), fates.end(),
                                  [&](const Fate& fate) { return fate.number == request.number; });
  return known != fates.end() ? *known : fates.emplace_back(decide(qp, request));
}

Fate Injector::decide(Qp& qp, const SendRequest& request) {
  Fate fate;
  fate.number = request.number;
  fate.is_lost = qp.base.qp_type == IBV_QPT_UD && path_holds_[qp.device][get_path(request)].load() != 0;
  for (size_t i = 0; i < plan_.rules.size(); ++i) {
    const Rule& rule = plan_.rules[i];
    if (!is_about(rule, qp, request)) continue;
    const uint64_t ordinal = rule.counts_by_queue_pair ? qp.faults->ordinal : 0;
    RequestCount& counted = ordinal != 0 ? qp.faults->counts[i] : counts_[i][qp.device];
    const uint64_t key = mix(mix(mix(plan_.seed, i), qp.device), ordinal);
    const Strike strike = count(rule, counted, key);
    if (!strike.is_hit) continue;
    if (plan_.is_logged && rule.action != Action::kLimit)
      warn("fault: line %u: %s: rail %u, queue pair %u, request %llu", rule.line, get_name(rule.action),
           qp.device, qp.base.qp_num, static_cast<unsigned long long>(request.number));
    apply(rule, strike.draw, qp, request, fate);
  }
  return fate;
}

void Injector::apply(const Rule& rule, uint64_t draw, Qp& qp, const SendRequest& request, Fate& fate) {
  switch (rule.action) {
    case Action::kFail:
    case Action::kError:
      if (fate.failure != IBV_WC_SUCCESS) return;  // the first rule that makes the request fail decides
      fate.failure = rule.status;
      fate.is_after_work = rule.is_after_work;
      fate.fails_far = !rule.is_after_work && qp.base.qp_type == IBV_QPT_RC && fails_far(rule);
      return;
    case Action::kDrop:
      fate.is_dropped = true;
      return;
    case Action::kDelay: {
      const uint64_t span_ns = rule.delay_high_ns - rule.delay_low_ns + 1;
      fate.due_ns = std::max(fate.due_ns, request.posted_ns + rule.delay_low_ns + draw % span_ns);
      return;
    }
    case Action::kLimit:
      fate.due_ns = std::max(fate.due_ns, take_bandwidth(rule, qp.device, request));
      return;
    case Action::kDown:
      fate.is_lost |= rule.path != kEveryPath;
      return take_down(rule, qp.device, rule.flaps);
    case Action::kLose:
      fate.is_lost = true;
      return;
    case Action::kDuplicate:
      ++fate.copies;
      return;
    case Action::kReorder:
      fate.overtakers = std::max(fate.overtakers, 1 + static_cast<uint32_t>(draw % rule.packets));
      return;
    case Action::kCorrupt:
      fate.wrong_bytes = static_cast<uint32_t>(rule.bytes);
      fate.draw = draw;
      return;
    case Action::kEvent:
      if (rule.event == IBV_EVENT_PORT_ERR || rule.event == IBV_EVENT_PORT_ACTIVE)
        return raise(rule, qp.device);
      if (rule.event == IBV_EVENT_DEVICE_FATAL) raise(rule, qp.device);
      fate.is_queue_fatal = rule.event == IBV_EVENT_QP_FATAL;
      if (fate.failure == IBV_WC_SUCCESS) fate.failure = IBV_WC_WR_FLUSH_ERR;
      return;
  }
}

// Returns the time at which the request's last byte has been sent, if the rail sends one request after the
// other. A request starts when it is posted, not when a thread processes it, so that a delayed thread does
// not reduce the rate.
uint64_t Injector::take_bandwidth(const Rule& rule, uint32_t rail, const SendRequest& request) {
  const std::lock_guard lock(bandwidth_mutex_);
  uint64_t& free_ns = free_ns_[static_cast<size_t>(&rule - plan_.rules.data())][rail];
  const double duration_ns =
      static_cast<double>(request.length) * 1e9 / static_cast<double>(rule.bytes_per_second);
  free_ns = std::max(free_ns, request.posted_ns) + static_cast<uint64_t>(duration_ns);
  return free_ns;
}

void Injector::take_down(const Rule& rule, uint32_t rail, uint64_t flaps) {
  hold_down(rule, rail, true);
  if (rule.down_ns == kUnlimited) return;
  schedule_.add(read_clock_ns() + rule.down_ns, [this, &rule, rail, flaps] {
    hold_down(rule, rail, false);
    if (flaps <= 1) return;
    schedule_.add(read_clock_ns() + rule.up_ns,
                  [this, &rule, rail, flaps] { take_down(rule, rail, flaps - 1); });
  });
}

// Takes the rail, or one of its paths, down or up.
void Injector::hold_down(const Rule& rule, uint32_t rail, bool is_held) {
  if (rule.path != kEveryPath) {
    path_holds_[rail][rule.path].fetch_add(is_held ? 1 : UINT32_MAX);
  } else {
    is_held ? rails_.hold_down(rail) : rails_.release(rail);
  }
}

// Runs as a separate task, because ending a device waits for its queue pairs, and the current thread may be
// executing one of their requests.
void Injector::raise(const Rule& rule, uint32_t rail) {
  rails_.raise(rail, rule.event);
  if (rule.event == IBV_EVENT_DEVICE_FATAL)
    schedule_.add(read_clock_ns(), [this, rail] { end_device(rail); });
}

void Injector::end_device(uint32_t rail) {
  const std::lock_guard lock(queues_mutex_);
  for (Qp* qp : queues_) {
    const bool is_dead = qp->device == rail && get_context(qp->base.context).is_dead.load();
    const ibv_qp_state state = get_state(*qp->shared);
    if (is_dead && state != IBV_QPS_RESET && state != IBV_QPS_INIT) fail_queue_pair(*qp);
  }
}

}  // namespace verbena::softverbs::faults
