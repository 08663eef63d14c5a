#pragma once

#include <infiniband/verbs.h>

#include "softverbs/operation.h"

// Memory windows: keys of their own for a part of a region, which requests in a send queue give and take.
namespace verbena::softverbs {

// Behind the inline functions of verbs.h.
ibv_mw* allocate_window(ibv_pd* pd, ibv_mw_type type);
int deallocate_window(ibv_mw* window);
int bind_window(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* bind);

// Requests that have no peer: IBV_WR_BIND_MW and IBV_WR_LOCAL_INV.
bool is_local(ibv_wr_opcode opcode);
Outcome execute_local(Operation& op);

// Whether the target of IBV_WR_SEND_WITH_INV has that key to give up; then, doing it.
bool can_invalidate(const Operation& op);
void invalidate_remote(const Operation& op);

}  // namespace verbena::softverbs
