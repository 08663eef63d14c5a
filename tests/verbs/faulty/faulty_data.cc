// Post and poll, and the events that a slow device would send late.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "target.h"

namespace verbena::verbs::faulty {
namespace {

// The same for all contexts of one library.
ibv_context_ops own_ops;
int (*own_query_port)(ibv_context*, uint8_t, ibv_port_attr*, size_t) = nullptr;
ibv_qp* (*own_create_qp_ex)(ibv_context*, ibv_qp_init_attr_ex*) = nullptr;

struct HeldCompletion {
  ibv_cq* queue;
  ibv_wc entry;
};
std::mutex held_mutex;
std::vector<HeldCompletion> held_completions;

// The plugin's cookies of pages have it: a failed completion does not say what it was for.
bool is_receive(const ibv_wc& entry) {
  return (entry.wr_id & uint64_t{1} << 63) != 0;
}

int take_held(ibv_cq* queue, int count, ibv_wc* entries) {
  const std::lock_guard lock(held_mutex);
  int taken = 0;
  std::erase_if(held_completions, [&](const HeldCompletion& held) {
    if (held.queue != queue || taken == count) return false;
    entries[taken++] = held.entry;
    return true;
  });
  return taken;
}

// Moves receives out of `entries`; how many stay.
int hold(ibv_cq* queue, int count, ibv_wc* entries) {
  const std::lock_guard lock(held_mutex);
  ibv_wc* const end =
      std::stable_partition(entries, entries + count, [](const ibv_wc& entry) { return !is_receive(entry); });
  for (ibv_wc* entry = end; entry != entries + count; ++entry) held_completions.push_back({queue, *entry});
  return static_cast<int>(end - entries);
}

int poll_cq(ibv_cq* queue, int count, ibv_wc* entries) {
  if (++hooks().polls == hooks().failing_poll) {
    hooks().failed = "poll_cq";
    return -1;
  }
  if (hooks().holds_receives) return hold(queue, own_ops.poll_cq(queue, count, entries), entries);
  const int taken = take_held(queue, count, entries);
  return taken != 0 ? taken : own_ops.poll_cq(queue, count, entries);
}

bool exceeds_inline(const ibv_send_wr* first) {
  for (const ibv_send_wr* request = first; request != nullptr; request = request->next) {
    if ((request->send_flags & IBV_SEND_INLINE) != 0 && request->num_sge != 0 &&
        request->sg_list->length > static_cast<uint32_t>(hooks().most_inline_bytes))
      return true;
  }
  return false;
}

int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** rejected) {
  *rejected = first;
  if (refuse("post_send")) return errno;
  if (exceeds_inline(first)) return EINVAL;
  if (first->opcode == IBV_WR_RDMA_READ) {  // the plugin posts each alone
    ++hooks().reads[find_number(pair->context->device)];
    if (hooks().swallows_reads) return 0;
    if (hooks().refuses_reads) return EINVAL;
  }
  if (pair->qp_type == IBV_QPT_UD) note_datagrams(pair, first);
  return own_ops.post_send(pair, first, rejected);
}

int post_srq_recv(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  *rejected = first;
  return refuse("post_srq_recv") ? errno : own_ops.post_srq_recv(queue, first, rejected);
}

int post_recv(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  *rejected = first;
  return refuse("post_recv") ? errno : own_ops.post_recv(pair, first, rejected);
}

constexpr uint8_t kSlowLane = 32;  // 25 Gb/s

bool is_slow(const ibv_device* device) {
  return (hooks().slow_devices >> find_number(device) & 1) != 0;
}

int query_port(ibv_context* context, uint8_t port_number, ibv_port_attr* attributes, size_t length_bytes) {
  if (refuse_on(context, "query_port")) return errno;
  const int error = own_query_port(context, port_number, attributes, length_bytes);
  if (error == 0 && hooks().ports_are_down) attributes->state = IBV_PORT_DOWN;
  if (error == 0 && is_slow(context->device)) attributes->active_speed = kSlowLane;
  return error;
}

}  // namespace

int find_number(const ibv_device* device) {
  return device->name[std::strlen(device->name) - 1] - '0';
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes) {
  if (refuse_on(context, "create_qp") || refuses_pair(context, attributes->cap)) return nullptr;
  ibv_qp* pair = own_create_qp_ex(context, attributes);
  if (pair == nullptr) return nullptr;
  ++hooks().live_objects;
  ++hooks().live_pairs;
  note_pair(pair);
  limit_inline(&attributes->cap);
  return pair;
}

bool refuses_pair(const ibv_context* context, const ibv_qp_cap& asked) {
  const bool has_too_much = asked.max_inline_data > static_cast<uint32_t>(hooks().most_inline_bytes);
  const bool is_pairless = (hooks().pairless_devices >> find_number(context->device) & 1) != 0;
  const bool is_refused =
      hooks().makes_no_pairs || is_pairless || (hooks().refuses_more_inline && has_too_much);
  if (is_refused) errno = EINVAL;
  return is_refused;
}

void limit_inline(ibv_qp_cap* granted) {
  granted->max_inline_data =
      std::min(granted->max_inline_data, static_cast<uint32_t>(hooks().most_inline_bytes));
}

void forget(ibv_cq* queue) {
  const std::lock_guard lock(held_mutex);
  std::erase_if(held_completions, [&](const HeldCompletion& held) { return held.queue == queue; });
}

void take_over(ibv_context* context) {
  verbs_context* extended = verbs_get_ctx(context);
  if (context->ops.poll_cq == &poll_cq) return;
  own_ops = context->ops;
  context->ops.poll_cq = &poll_cq;
  context->ops.post_send = &post_send;
  context->ops.post_srq_recv = &post_srq_recv;
  context->ops.post_recv = &post_recv;
  if (extended == nullptr || extended->query_port == nullptr) return;
  own_query_port = extended->query_port;
  extended->query_port = &query_port;
  if (extended->create_qp_ex == nullptr) return;
  own_create_qp_ex = extended->create_qp_ex;
  extended->create_qp_ex = &create_qp_ex;
}

}  // namespace verbena::verbs::faulty

using namespace verbena::verbs::faulty;

extern "C" {

// Waits in the reader: it is the plugin's event thread, which has time.
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (take_death(context)) {
    *event = {};
    event->event_type = IBV_EVENT_DEVICE_FATAL;
    return 0;
  }
  const int result = target().get_async_event(context, event);
  if (result != 0 || event->event_type != IBV_EVENT_QP_LAST_WQE_REACHED) return result;
  while (hooks().holds_receives && !hooks().drops_last_events) usleep(1000);
  if (!hooks().drops_last_events) return 0;
  target().ack_async_event(event);
  errno = EAGAIN;
  return -1;
}

void ibv_ack_async_event(ibv_async_event* event) {
  if (event->event_type != IBV_EVENT_DEVICE_FATAL) target().ack_async_event(event);
}

}  // extern "C"
