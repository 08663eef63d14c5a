// The newer verbs, which are not exported symbols: inline functions of verbs.h call them through the context.
#pragma once

#include <infiniband/verbs.h>

namespace verbena::softverbs {

struct Qp;

ibv_qp* create_qp_extended(ibv_context* context, ibv_qp_init_attr_ex* init);
// Fills the function pointers of the ibv_wr_* calls.
void install_extended_posts(Qp& qp);

// In completion_extended.cc.
ibv_cq_ex* create_cq_extended(ibv_context* context, ibv_cq_init_attr_ex* init);

// In protection_domain.cc.
ibv_td* allocate_thread_domain(ibv_context* context, ibv_td_init_attr* init);
int deallocate_thread_domain(ibv_td* domain);
ibv_pd* allocate_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* init);

// In device_memory.cc.
ibv_dm* allocate_device_memory(ibv_context* context, ibv_alloc_dm_attr* init);
int free_device_memory(ibv_dm* memory);
ibv_mr* register_device_memory(ibv_pd* pd, ibv_dm* memory, uint64_t offset, size_t length, unsigned access);

// In memory_change.cc.
int advise_memory(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* pieces, uint32_t count);

// In query.cc.
int query_clock(ibv_context* context, ibv_values_ex* values);

}  // namespace verbena::softverbs
