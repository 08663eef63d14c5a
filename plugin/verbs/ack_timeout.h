// How long a device retries a request that the peer does not acknowledge. Pure except for the parameters.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/parameters.h"

namespace verbena::verbs {

// The code for half a second in all, 2.1 s on a device that takes four times as long: the most time that a
// connection with another rail should lose.
inline constexpr int64_t kAckTimeoutBesideOthers = 14;

// The time of all tries of a request together, by the code; a device may take up to four times as long.
inline int64_t compute_tries_ns(int64_t timeout_code) {
  constexpr int64_t kTimeoutUnitNs = 4096;
  return (kTimeoutUnitNs << timeout_code) * (base::parameters().retry_count + 1);
}

// If VERBENA_ACK_TIMEOUT is not set, it is shorter where another rail can take over, and no longer than a
// VERBENA_FAILOVER_TIMEOUT_MS that was set: a failover that must end by then must begin before.
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
