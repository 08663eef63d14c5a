// How long a device retries a request that the peer does not acknowledge. Pure functions, except that they
// read the parameters.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/parameters.h"

namespace verbena::verbs {

// The timeout code for half a second in all, or 2.1 s on a device that takes four times as long. A connection
// that has another rail should not lose more time.
inline constexpr int64_t kAckTimeoutBesideOthers = 14;

// Returns the time of all tries of a request together. A device may take up to four times as long.
inline int64_t compute_tries_ns(int64_t timeout_code) {
  constexpr int64_t kTimeoutUnitNs = 4096;
  return (kTimeoutUnitNs << timeout_code) * (base::parameters().retry_count + 1);
}

// Returns VERBENA_ACK_TIMEOUT if it is set. Otherwise the timeout is shorter if another rail can take over.
// If VERBENA_FAILOVER_TIMEOUT_MS is set, the timeout is not longer than this limit, so that a failover can
// end within it.
inline int64_t choose_ack_timeout(bool has_other_rail) {
  const auto& parameters = base::parameters();
  const auto is_set = [](const char* name) { return base::parameter_origin(name) != base::kDefaultOrigin; };
  if (is_set("VERBENA_ACK_TIMEOUT") || !parameters.failover) return parameters.ack_timeout;
  int64_t code = has_other_rail ? kAckTimeoutBesideOthers : parameters.ack_timeout;
  if (!is_set("VERBENA_FAILOVER_TIMEOUT_MS")) return code;
  while (code > 1 && compute_tries_ns(code) > parameters.failover_timeout_ms * base::kNsPerMs) --code;
  return code;
}

}  // namespace verbena::verbs
