#include "device/proxy/proxy.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <ctime>
#include <system_error>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "device/proxy/queue_drain.h"

namespace verbena::symm {

namespace {

constexpr uint32_t kRoundsBeforeYield = 64, kRoundsPerLook = 256;
constexpr long kFirstSleep_ns = 1'000, kLongestSleep_ns = 50'000;
constexpr long kQuietLook_ns = 20'000;
constexpr unsigned long kTimerSlack_ns = 1'000;  // the default timer slack makes sleeps 50 us longer

void sleep_ns(long duration_ns) {
  const timespec duration{0, duration_ns};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
}

// The behaviour of the thread when it has no work. It first polls, later yields between polls, and finally
// sleeps for increasing times.
class Idleness {
 public:
  explicit Idleness(int64_t spin_ns) : spin_ns_(spin_ns) {}

  void end() { rounds_ = 0; }
  // Returns whether it slept.
  bool rest() {
    if (++rounds_ == 1) {
      since_ns_ = base::monotonic_ns();
      sleep_ns_ = kFirstSleep_ns;
    }
    if (rounds_ < kRoundsBeforeYield) return false;
    if (base::monotonic_ns() - since_ns_ < spin_ns_) {
      sched_yield();
      return false;
    }
    sleep_ns(sleep_ns_);
    sleep_ns_ = std::min(2 * sleep_ns_, kLongestSleep_ns);
    return true;
  }

 private:
  const int64_t spin_ns_;
  int64_t since_ns_ = 0;
  uint64_t rounds_ = 0;
  long sleep_ns_ = kFirstSleep_ns;
};

}  // namespace

Proxy::Proxy(Endpoint& endpoint, PutQueue& queues, AbortWord& abort, const ProxyOptions& options)
    : endpoint_(endpoint),
      abort_(abort),
      spin_ns_((options.spin_us >= 0 ? options.spin_us : base::parameters().proxy_spin_us) * 1000),
      timeout_ns_((options.timeout_ms >= 0 ? options.timeout_ms : base::parameters().symm_timeout_ms) *
                  base::kNsPerMs),
      standstills_(queues.count()) {
  for (uint32_t index = 0; index < queues.count(); ++index) {
    drains_.push_back(
        std::make_unique<QueueDrain>(queues, index, endpoint, windows_, options.count_ranks, drains_));
  }
}

Proxy::~Proxy() {
  stop();
}

base::Outcome Proxy::add_window(uint64_t heap_offset, uint64_t bytes, uint32_t region) {
  return windows_.add({heap_offset, bytes, region});
}

void Proxy::remove_window(uint64_t heap_offset) {
  windows_.remove(heap_offset);
}

void Proxy::fail(const std::string& cause) {
  end(SymmAbort::kNetworkFailed, cause);
}

// Set the text before the flag: a reader that sees the flag must see the text.
void Proxy::end(SymmAbort reason, const std::string& text) {
  const std::lock_guard lock(error_mutex_);
  if (has_failed_.load(std::memory_order_relaxed)) return;
  error_ = text;
  base::log_warn("proxy: %s", text.c_str());
  has_failed_.store(true, std::memory_order_release);
  abort_.raise(reason);
}

std::string Proxy::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

ProxyCounts Proxy::counts() const {
  return {descriptors_.load(std::memory_order_relaxed), rounds_.load(std::memory_order_relaxed),
          sleeps_.load(std::memory_order_relaxed)};
}

bool Proxy::poll() {
  const uint32_t count = endpoint_.poll(polled_);
  for (const EndpointCompletion& told : std::span(polled_).first(count)) {
    if (told.has_failed) {
      end(SymmAbort::kNetworkFailed, endpoint_.error(told.peer));
    } else if (told.lane < drains_.size()) {
      drains_[told.lane]->note_done(told.peer, told.count_done);
      if (told.cookie != 0) drains_[told.lane]->note_value(told.cookie, told.value);
    }
  }
  return count != 0;
}

// A NIC usually reports a dead peer after its retries. This check is for a NIC that reports nothing.
void Proxy::give_up_late_peers() {
  const int64_t now_ns = base::monotonic_ns();
  for (size_t index = 0; index < drains_.size(); ++index) {
    Standstill& standstill = standstills_[index];
    const auto peer = drains_[index]->awaited_peer();
    if (!peer || drains_[index]->count_completed() != standstill.count_completed) {
      standstill = {drains_[index]->count_completed(), now_ns};
    } else if (now_ns - standstill.since_ns >= timeout_ns_) {
      std::string cause;
      base::append(cause, "put queue %zu: descriptor %llu did not complete in time (VERBENA_SYMM_TIMEOUT_MS)",
                   index, static_cast<unsigned long long>(standstill.count_completed));
      endpoint_.give_up(*peer, cause);
    }
  }
}

void Proxy::take_up_quiet() {
  const uint64_t asked = quiets_asked_.load(std::memory_order_acquire);
  if (asked == quiets_marked_ || quiets_marked_ != quiets_answered_.load(std::memory_order_relaxed)) return;
  quiets_marked_ = asked;
  for (const auto& drain : drains_) drain->mark();
}

// The release makes the effects of the completions visible to the caller before the caller continues.
void Proxy::answer_quiet() {
  if (quiets_marked_ == quiets_answered_.load(std::memory_order_relaxed)) return;
  const bool is_quiet =
      std::all_of(drains_.begin(), drains_.end(), [](const auto& drain) { return drain->is_quiet(); });
  if (is_quiet) quiets_answered_.store(quiets_marked_, std::memory_order_release);
}

base::Outcome Proxy::quiet() {
  const uint64_t number = quiets_asked_.fetch_add(1, std::memory_order_acq_rel) + 1;
  while (quiets_answered_.load(std::memory_order_acquire) < number) {
    if (has_failed_.load(std::memory_order_acquire)) {
      return base::fail(base::Status::kRemote, "proxy: outstanding operations did not complete: %s",
                        error().c_str());
    }
    if (is_stopping()) {
      return base::fail(base::Status::kInvalidUsage,
                        "proxy: outstanding operations did not complete: the proxy has stopped");
    }
    sleep_ns(kQuietLook_ns);
  }
  return {};
}

// Slots are released only after ring(), when their operations have been passed to the NIC.
bool Proxy::work() {
  uint32_t count = 0;
  windows_.take_up();
  take_up_quiet();
  for (const auto& drain : drains_) {
    count += has_failed_.load(std::memory_order_relaxed) ? drain->drop() : drain->drain();
    if (drain->failure().reason != SymmAbort::kNone) end(drain->failure().reason, drain->failure().text);
  }
  endpoint_.ring();
  const bool was_told = poll();
  windows_.let_go();
  const bool has_failed = has_failed_.load(std::memory_order_relaxed);
  for (const auto& drain : drains_) {
    drain->publish_consumed();
    if (!has_failed) drain->publish_completed();
  }
  if (!has_failed) answer_quiet();
  const uint64_t round = rounds_.fetch_add(1, std::memory_order_relaxed);
  if (round % kRoundsPerLook == 0 && !has_failed) give_up_late_peers();
  descriptors_.fetch_add(count, std::memory_order_relaxed);
  return count != 0 || was_told;
}

void Proxy::run() {
  pthread_setname_np(pthread_self(), "verbena-proxy");
  prctl(PR_SET_TIMERSLACK, kTimerSlack_ns);
  endpoint_.bind_thread();
  Idleness idleness(spin_ns_);
  while (!is_stopping_.load(std::memory_order_relaxed)) {
    if (work()) {
      idleness.end();
    } else if (idleness.rest()) {
      sleeps_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

base::Outcome Proxy::start() {
  const base::BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return base::fail_errno(base::Status::kSystem, error.code().value(),
                            "proxy: cannot start the proxy thread");
  }
  return {};
}

void Proxy::stop() {
  is_stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

}  // namespace verbena::symm
