// Computes the times of protocol/recovery.h from the parameters.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/parameters.h"
#include "protocol/recovery.h"
#include "verbs/ack_timeout.h"

namespace verbena::transport {

inline constexpr int64_t kMaxRetryMs = 60'000;
// The test of a new queue pair: a write of no bytes and its acknowledgement.
inline constexpr int64_t kTrialMs = 1000;
inline constexpr int64_t kDrainMs = 100;      // for devices that do not report when a queue pair is drained
inline constexpr int64_t kServicePollMs = 1;  // between checks of events that no notification reports

// Returns the time that a device may need for all tries of a request. A device may take four times the
// timeout that it was given for each try.
inline int64_t find_tries_ns() {
  constexpr int64_t kMaxTimeoutFactor = 4;
  return kMaxTimeoutFactor * verbs::compute_tries_ns(verbs::choose_ack_timeout(false));
}

// Returns the time after which a device that has not completed a request will never complete it. It covers
// all tries, and at least twice the failover timeout.
inline int64_t find_device_patience_ns() {
  return std::max(find_tries_ns(), 2 * base::parameters().failover_timeout_ms * base::kNsPerMs);
}

// Returns this time for a port that is known to be down.
inline int64_t find_down_patience_ns() {
  const auto& parameters = base::parameters();
  const int64_t tries_ns = find_tries_ns();
  return parameters.failover ? std::min(tries_ns, parameters.failover_timeout_ms * base::kNsPerMs) : tries_ns;
}

inline protocol::RecoveryTimes read_recovery_times() {
  const auto& parameters = base::parameters();
  return {.retry_ns = parameters.rail_retry_ms * base::kNsPerMs,
          .max_retry_ns = kMaxRetryMs * base::kNsPerMs,
          .trial_ns = kTrialMs * base::kNsPerMs,
          .limit_ns = parameters.failover_timeout_ms * base::kNsPerMs,
          .poll_ns = kServicePollMs * base::kNsPerMs};
}

}  // namespace verbena::transport
