#pragma once

#include "softverbs/queue_pair.h"

namespace verbena::softverbs {

enum class Step { kDone, kWait, kFail };

struct Outcome {
  Step step;
  ibv_wc_status status = IBV_WC_SUCCESS;  // of a failure
  Wait wait = Wait::kNone;
  uint64_t budget_ns = UINT64_MAX;  // how long to wait before that is a failure with `status`
};

// Executes one request of a connected queue pair to its end: checks, copies, the peer's completion. Its own
// completion is the caller's. Never waits: a request that cannot go yet leaves everything as it was.
Outcome execute(Qp& qp, SendRequest& request);

}  // namespace verbena::softverbs
