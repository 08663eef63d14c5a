// Creation, states and attributes of queue pairs: what ibv_create_qp and ibv_modify_qp check and do.
#pragma once

#include <infiniband/verbs.h>

namespace verbena::softverbs {

struct Qp;

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init);  // also behind create_qp_ex

// Moves the queue pair to RESET. Waits until no thread works for the queue pair, and no peer accesses its
// memory.
void stop_queue_pair(Qp& qp);

// Checks that the state machine allows the change, and that `mask` has all required attributes and no
// forbidden ones. Returns 0 or EINVAL.
int check_transition(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

// Checks that the attributes named by `mask` are in range. Returns 0 or EINVAL.
int check_attributes(const ibv_qp_attr& attributes, int mask);

}  // namespace verbena::softverbs
