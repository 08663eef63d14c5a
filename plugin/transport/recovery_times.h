// The times of protocol/recovery.h, from the parameters.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/parameters.h"
#include "protocol/recovery.h"

namespace verbena::transport {

inline constexpr int64_t kMostRetryMs = 60'000;
inline constexpr int64_t kTrialMs = 1000;     // a write of no bytes, there and back
inline constexpr int64_t kDrainMs = 100;      // devices that do not say that a queue pair is drained
inline constexpr int kMostRecords = 64;       // in one go; each queue pair needs a few in its life
inline constexpr int64_t kServicePollMs = 1;  // between looks at what nobody reports

// All the tries of a request together. A device may take four times the timeout that it was given for each.
inline int64_t find_tries_ns() {
  const auto& parameters = base::parameters();
  constexpr int64_t kMostOfATimeout = 4, kTimeoutUnitNs = 4096;
  return kMostOfATimeout * (kTimeoutUnitNs << parameters.ack_timeout) * (parameters.retry_count + 1);
}

// After which a device that has not said what became of a request will not say it any more; and the failover
// has had its time, twice.
inline int64_t find_device_patience_ns() {
  return std::max(find_tries_ns(), 2 * base::parameters().failover_timeout_ms * base::kNsPerMs);
}

// The same where the port is known to be down.
inline int64_t find_down_patience_ns() {
  const auto& parameters = base::parameters();
  const int64_t tries_ns = find_tries_ns();
  return parameters.failover ? std::min(tries_ns, parameters.failover_timeout_ms * base::kNsPerMs) : tries_ns;
}

inline protocol::RecoveryTimes read_recovery_times() {
  const auto& parameters = base::parameters();
  return {.retry_ns = parameters.rail_retry_ms * base::kNsPerMs,
          .most_retry_ns = kMostRetryMs * base::kNsPerMs,
          .trial_ns = kTrialMs * base::kNsPerMs,
          .limit_ns = parameters.failover_timeout_ms * base::kNsPerMs};
}

}  // namespace verbena::transport
