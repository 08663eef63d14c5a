// Creation, states and attributes of queue pairs: what ibv_create_qp and ibv_modify_qp check and do.
#pragma once

#include <infiniband/verbs.h>

namespace verbena::softverbs {

struct Qp;

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init);  // also behind create_qp_ex

// Moves the queue pair to RESET and waits until no thread or peer works for it or on its memory.
void stop_queue_pair(Qp& qp);

// Whether the state machine allows the change, and `mask` has exactly the attributes that it needs or
// permits. 0 or EINVAL.
int check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

// Whether the attributes named by `mask` are in range. 0 or EINVAL.
int check_attributes(const ibv_qp_attr& attributes, int mask);

}  // namespace verbena::softverbs
