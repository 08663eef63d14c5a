// Memory windows: separate keys for a part of a region. Requests in a send queue bind windows and invalidate
// their keys.
#pragma once

#include <infiniband/verbs.h>

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// The functions that verbs.h's inline functions call.
ibv_mw* allocate_window(ibv_pd* pd, ibv_mw_type type);
int deallocate_window(ibv_mw* window);
int bind_window(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* bind);

// Requests that have no peer: IBV_WR_BIND_MW and IBV_WR_LOCAL_INV.
bool is_local(ibv_wr_opcode opcode);
StepOutcome execute_local(Operation& op);

// For IBV_WR_SEND_WITH_INV: checks that the target has the key, and invalidates it.
bool can_invalidate(const Operation& op);
void invalidate_remote(const Operation& op);

}  // namespace verbena::softverbs
