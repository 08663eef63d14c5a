// Memory windows: separate keys for a part of a region. Requests in a send queue bind and invalidate
// them.
#pragma once

#include <infiniband/verbs.h>

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// Behind the inline functions of verbs.h.
ibv_mw* allocate_window(ibv_pd* pd, ibv_mw_type type);
int deallocate_window(ibv_mw* window);
int bind_window(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* bind);

// Requests that have no peer: IBV_WR_BIND_MW and IBV_WR_LOCAL_INV.
bool is_local(ibv_wr_opcode opcode);
StepOutcome execute_local(Operation& op);

// IBV_WR_SEND_WITH_INV: whether the target has that key to invalidate; and the invalidation.
bool can_invalidate(const Operation& op);
void invalidate_remote(const Operation& op);

}  // namespace verbena::softverbs
