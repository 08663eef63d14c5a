// The library behind the faulty one. Inside only.
#pragma once

#include <infiniband/verbs.h>

#include "faulty_ibverbs.h"

#undef ibv_query_port
#undef ibv_reg_mr

namespace verbena::verbs::faulty {

#define FAULTY_VERBS(X) \
  X(get_device_list)    \
  X(free_device_list)   \
  X(get_device_name)    \
  X(open_device)        \
  X(close_device)       \
  X(query_device)       \
  X(query_port)         \
  X(query_gid)          \
  X(query_pkey)         \
  X(alloc_pd)           \
  X(dealloc_pd)         \
  X(reg_mr)             \
  X(reg_mr_iova2)       \
  X(reg_dmabuf_mr)      \
  X(dereg_mr)           \
  X(create_cq)          \
  X(destroy_cq)         \
  X(create_srq)         \
  X(destroy_srq)        \
  X(create_ah)          \
  X(destroy_ah)         \
  X(create_qp)          \
  X(modify_qp)          \
  X(destroy_qp)         \
  X(query_ece)          \
  X(set_ece)            \
  X(get_async_event)    \
  X(ack_async_event)    \
  X(event_type_str)     \
  X(wc_status_str)

struct Target {
#define FAULTY_MEMBER(name) decltype(&::ibv_##name) name = nullptr;
  FAULTY_VERBS(FAULTY_MEMBER)
#undef FAULTY_MEMBER
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
};

// Loaded at the first call; ends the process if it cannot be.
const Target& target();

Hooks& hooks();
// Counts the call; true if it is to fail. errno is set then.
bool refuse(const char* name);
// Also where the device has failed, or fails by this call.
bool refuse_on(const ibv_context* context, const char* name);
void end_device(int number);
// Counts the datagrams of a queue pair that was told its port of a bond.
void note_datagrams(const ibv_qp* pair, const ibv_send_wr* first);
// Whether its failure is the next of its events.
bool take_death(const ibv_context* context);
// Those that a failure of their device flushes.
void note_pair(ibv_qp* pair);
void forget_pair(ibv_qp* pair);

// What `Hooks::reaches` answers.
bool reaches_region(const ibv_pd* domain, uint32_t remote_key, const void* address, size_t length_bytes);

// Puts our post, poll and query_port into a context of the other library.
void take_over(ibv_context* context);
// As the context's own, of a context that was taken over.
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes);
// True, with errno set: there is to be no queue pair like that. What it sends inline, as
// Hooks::most_inline_bytes has it, whatever the other library grants.
bool refuses_pair(const ibv_context* context, const ibv_qp_cap& asked);
void limit_inline(ibv_qp_cap* granted);
// The last digit of its name.
int find_number(const ibv_device* device);
// This queue is not polled any more.
void forget(ibv_cq* queue);

}  // namespace verbena::verbs::faulty
