// The fake's objects: what ibv_open_device and the create calls hand out.
#pragma once

#include "fake_ibverbs.h"

namespace verbena::verbs::fake {

Hooks& hooks();

// Counts the call; true if the script wants it to fail. errno is set then.
bool refuse();

struct FakeDevice {
  ibv_device device{};
  Device description;
};

struct FakeContext {
  verbs_context verbs{};
  const Device* description = nullptr;
  int event_pipe[2] = {-1, -1};
  bool is_broken = false;
  int children = 0;
};

inline FakeContext* to_fake(ibv_context* context) {
  verbs_context* verbs =
      reinterpret_cast<verbs_context*>(reinterpret_cast<char*>(context) - offsetof(verbs_context, context));
  return reinterpret_cast<FakeContext*>(verbs);
}

struct FakeDomain {
  ibv_pd pd{};
  int children = 0;
};

struct FakePair {
  ibv_qp pair{};
  uint32_t ece_options = 0;
};

inline FakeDomain* to_fake(ibv_pd* pd) {
  return reinterpret_cast<FakeDomain*>(pd);
}

// ibv_context::ops
int poll_cq(ibv_cq* queue, int count, ibv_wc* entries);
int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** rejected);
int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** rejected);
int post_srq_recv(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** rejected);

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes);
int query_port(ibv_context* context, uint8_t port_number, ibv_port_attr* attributes, size_t length_bytes);

void raise_event(const char* device_name, ibv_event_type type, int port_number, void* element);
void break_events(const char* device_name);
void note_open(FakeContext* context);
void note_closed(FakeContext* context);

}  // namespace verbena::verbs::fake
