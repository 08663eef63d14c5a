#pragma once

#include <infiniband/verbs.h>

namespace verbena::softverbs {

struct Qp;

// Both with qp.mutex held. 0 or an errno.
int check_can_post(const Qp& qp);
int append(Qp& qp, const ibv_send_wr& request);

}  // namespace verbena::softverbs
