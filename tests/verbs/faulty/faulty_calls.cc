// The exported calls. What destroys does its work even when it is to report a failure: nothing else could.
#include <algorithm>
#include <chrono>
#include <thread>

#include "target.h"

using namespace verbena::verbs::faulty;

namespace {

template <typename T>
T* note_made(T* object) {
  if (object != nullptr) ++hooks().live_objects;
  return object;
}

int note_gone(const char* name, int result) {
  if (result != 0) return result;
  --hooks().live_objects;
  return refuse(name) ? errno : 0;
}

}  // namespace

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  return refuse("get_device_list") ? nullptr : note_made(target().get_device_list(count));
}

void ibv_free_device_list(ibv_device** list) {
  --hooks().live_objects;
  target().free_device_list(list);
}

const char* ibv_get_device_name(ibv_device* device) {
  return target().get_device_name(device);
}

ibv_context* ibv_open_device(ibv_device* device) {
  if (refuse("open_device")) return nullptr;
  ibv_context* context = note_made(target().open_device(device));
  if (context != nullptr) take_over(context);
  return context;
}

int ibv_close_device(ibv_context* context) {
  return note_gone("close_device", target().close_device(context));
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  if (refuse("query_device")) return errno;
  const int error = target().query_device(context, attributes);
  if (hooks().vendor != 0) attributes->vendor_id = hooks().vendor;
  attributes->max_srq_wr = std::min<int>(attributes->max_srq_wr, hooks().most_srq_entries);
  return error;
}

int ibv_query_port(ibv_context* context, uint8_t port_number, _compat_ibv_port_attr* attributes) {
  return refuse_on(context, "query_port") ? errno : target().query_port(context, port_number, attributes);
}

int ibv_query_gid(ibv_context* context, uint8_t port_number, int index, ibv_gid* gid) {
  return refuse_on(context, "query_gid") ? -1 : target().query_gid(context, port_number, index, gid);
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port_number, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t length_bytes) {
  if (refuse_on(context, "query_gid_ex")) return errno;
  return target().query_gid_ex(context, port_number, index, entry, flags, length_bytes);
}

int ibv_query_pkey(ibv_context* context, uint8_t port_number, int index, __be16* key) {
  return refuse_on(context, "query_pkey") ? -1 : target().query_pkey(context, port_number, index, key);
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  return refuse("alloc_pd") ? nullptr : note_made(target().alloc_pd(context));
}

int ibv_dealloc_pd(ibv_pd* domain) {
  return note_gone("dealloc_pd", target().dealloc_pd(domain));
}

ibv_cq* ibv_create_cq(ibv_context* context, int depth, void* user, ibv_comp_channel* channel, int vector) {
  if (refuse_on(context, "create_cq")) return nullptr;
  return note_made(target().create_cq(context, depth, user, channel, vector));
}

int ibv_destroy_cq(ibv_cq* queue) {
  forget(queue);
  return note_gone("destroy_cq", target().destroy_cq(queue));
}

ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* attributes) {
  if (refuse_on(domain->context, "create_srq")) return nullptr;
  ++hooks().made_shared_queues;
  return note_made(target().create_srq(domain, attributes));
}

int ibv_destroy_srq(ibv_srq* queue) {
  return note_gone("destroy_srq", target().destroy_srq(queue));
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  return refuse_on(domain->context, "create_ah") ? nullptr
                                                 : note_made(target().create_ah(domain, attributes));
}

int ibv_destroy_ah(ibv_ah* handle) {
  return note_gone("destroy_ah", target().destroy_ah(handle));
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  if (refuse_on(domain->context, "create_qp") || refuses_pair(domain->context, attributes->cap))
    return nullptr;
  ibv_qp* pair = note_made(target().create_qp(domain, attributes));
  if (pair == nullptr) return nullptr;
  ++hooks().live_pairs;
  note_pair(pair);
  limit_inline(&attributes->cap);
  return pair;
}

int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  const bool is_ending = attributes->qp_state == IBV_QPS_ERR || attributes->qp_state == IBV_QPS_RESET;
  if (is_ending ? refuse("modify_qp") : refuse_on(pair->context, "modify_qp")) return errno;
  if (attributes->qp_state == IBV_QPS_RTR && hooks().unanswered > 0) {
    --hooks().unanswered;
    std::this_thread::sleep_for(std::chrono::milliseconds(hooks().unanswered_ms));
    return ETIMEDOUT;
  }
  const bool is_silent = (hooks().unanswered_devices >> find_number(pair->context->device) & 1) != 0;
  if (attributes->qp_state == IBV_QPS_RTR && is_silent) return ETIMEDOUT;
  if (attributes->qp_state == IBV_QPS_RTR && attributes->dest_qp_num == pair->qp_num) {
    ++hooks().self_connects;
    if (hooks().reaches_no_self) return ETIMEDOUT;
  }
  if (attributes->qp_state == IBV_QPS_RTR && (mask & IBV_QP_AV) != 0)
    ++hooks().traffic_classes[attributes->ah_attr.grh.traffic_class];
  if ((mask & IBV_QP_TIMEOUT) != 0) hooks().last_ack_timeout = attributes->timeout;
  return target().modify_qp(pair, attributes, mask);
}

int ibv_destroy_qp(ibv_qp* pair) {
  forget_pair(pair);
  const int result = target().destroy_qp(pair);
  if (result == 0) --hooks().live_pairs;
  return note_gone("destroy_qp", result);
}

int ibv_query_ece(ibv_qp* pair, ibv_ece* ece) {
  return refuse("query_ece") ? errno : target().query_ece(pair, ece);
}

int ibv_set_ece(ibv_qp* pair, ibv_ece* ece) {
  return refuse("set_ece") ? errno : target().set_ece(pair, ece);
}

const char* ibv_event_type_str(ibv_event_type type) {
  return target().event_type_str(type);
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  return target().wc_status_str(status);
}

}  // extern "C"
