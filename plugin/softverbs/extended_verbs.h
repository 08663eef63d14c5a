#pragma once

#include <infiniband/verbs.h>

namespace verbena::softverbs {

struct Qp;

// Behind ibv_create_qp_ex.
ibv_qp* create_qp_extended(ibv_context* context, ibv_qp_init_attr_ex* init);

// Fills the function pointers of the ibv_wr_* calls.
void install_extended_posts(Qp& qp);

}  // namespace verbena::softverbs
