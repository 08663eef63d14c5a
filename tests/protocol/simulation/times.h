// How long things take in the simulation. The limit is long enough for every fault that passes, also several
// of them in a row.
#pragma once

#include "protocol/recovery.h"

namespace verbena::protocol::simulation {

inline constexpr int64_t kStepNs = 1000;
inline constexpr RecoveryTimes kRecoveryTimes = {.retry_ns = 30 * kStepNs,
                                                 .max_retry_ns = 300 * kStepNs,
                                                 .trial_ns = 200 * kStepNs,
                                                 .limit_ns = 6000 * kStepNs,
                                                 .poll_ns = kStepNs};
inline constexpr int64_t kGraceNs = 100 * kStepNs;  // for a peer that has closed

}  // namespace verbena::protocol::simulation
