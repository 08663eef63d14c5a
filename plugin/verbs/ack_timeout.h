// How long a device goes on with a request that nobody acknowledges. Pure but for the parameters.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/parameters.h"

namespace verbena::verbs {

// The code of about a second in all: what a connection with another rail to go on with should lose at most.
inline constexpr int64_t kAckTimeoutBesideOthers = 15;

// All the tries of a request together, as the code says; a device may take up to four times as long.
inline int64_t compute_tries_ns(int64_t timeout_code) {
  constexpr int64_t kTimeoutUnitNs = 4096;
  return (kTimeoutUnitNs << timeout_code) * (base::parameters().retry_count + 1);
}

// Without VERBENA_ACK_TIMEOUT it is shorter where another rail can take over, and no longer than a
// VERBENA_FAILOVER_TIMEOUT_MS that was set: whoever wants the failover to be over by then wants it begun.
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
