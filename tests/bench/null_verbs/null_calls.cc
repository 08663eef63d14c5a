// The calls that open, make and connect things.
#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "null_objects.h"

#undef ibv_query_port
#undef ibv_reg_mr

using namespace verbena::bench::null;

namespace {

constexpr unsigned kMaxDevices = 8;
constexpr uint32_t kMaxPairs = 1U << 16;
constexpr const char* kDevicesVariable = "NULL_IBVERBS_DEVICES";

ibv_device devices[kMaxDevices];
std::atomic<uint32_t> next_key{1}, next_pair{0};
std::atomic<Pair*> pairs[kMaxPairs];  // by number

unsigned count_devices() {
  const char* const text = std::getenv(kDevicesVariable);
  return text == nullptr ? 1 : std::clamp(static_cast<unsigned>(std::atoi(text)), 1U, kMaxDevices);
}

// 10.77.0.<device + 1>, as RoCE v2 maps it.
ibv_gid make_gid(ibv_context* context) {
  ibv_gid gid{};
  const uint8_t address[] = {0xff, 0xff, 10, 77, 0, static_cast<uint8_t>(to_context(context).index + 1)};
  std::memcpy(gid.raw + 10, address, sizeof address);
  return gid;
}

int query_whole_port(ibv_context*, uint8_t, ibv_port_attr* attributes, size_t length_bytes) {
  ibv_port_attr full{};
  full.state = IBV_PORT_ACTIVE;
  full.max_mtu = full.active_mtu = IBV_MTU_4096;
  full.gid_tbl_len = full.pkey_tbl_len = 1;
  full.active_width = 2;   // 4 lanes
  full.active_speed = 64;  // of 50 Gb/s
  full.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memcpy(attributes, &full, std::min(length_bytes, sizeof full));
  return 0;
}

// The plugin waits for this after it has stopped a queue pair.
void tell_drained(Pair& pair) {
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  event.element.qp = &pair;
  ++pair.holders;
  const int pipe = to_context(pair.context).event_pipe[1];
  if (write(pipe, &event, sizeof event) != sizeof event) std::perror("null libibverbs: event");
}

// A number that no queue pair has; 0 is none.
uint32_t reserve_number(Pair& pair) {
  for (uint32_t tried = 0; tried < kMaxPairs; ++tried) {
    const uint32_t number = ++next_pair % kMaxPairs;
    Pair* nobody = nullptr;
    if (number != 0 && pairs[number].compare_exchange_strong(nobody, &pair)) return number;
  }
  return 0;
}

// A pair that only an unread event names is no leak.
struct Pairs {
  std::mutex mutex;
  std::set<Pair*> all;
};
Pairs& get_pairs() {
  static auto* const pairs_there_are = new Pairs;
  return *pairs_there_are;
}

// Ensures that no pair sends to this one any more. Another pair may name it as peer without being its peer.
void leave_peers(Pair& pair) {
  const std::lock_guard lock(get_pairs().mutex);
  pair.peer = nullptr;
  for (Pair* other : get_pairs().all) {
    if (other->peer == &pair) other->peer = nullptr;
  }
}

void drop(Pair& pair) {
  if (--pair.holders != 0) return;
  const std::lock_guard lock(get_pairs().mutex);
  get_pairs().all.erase(&pair);
  delete &pair;
}

}  // namespace

namespace verbena::bench::null {

Pair* find_datagram_pair(uint32_t number) {
  Pair* const pair = pairs[number % kMaxPairs];
  return pair != nullptr && pair->qp_type == IBV_QPT_UD && pair->state == IBV_QPS_RTS ? pair : nullptr;
}

}  // namespace verbena::bench::null

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  const unsigned there = count_devices();
  auto** list = static_cast<ibv_device**>(std::calloc(there + 1, sizeof(ibv_device*)));
  for (unsigned i = 0; i < there; ++i) {
    std::snprintf(devices[i].name, sizeof devices[i].name, "null%u", i);
    list[i] = &devices[i];
  }
  *count = static_cast<int>(there);
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  std::free(list);
}
const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}

ibv_context* ibv_open_device(ibv_device* device) {
  auto* context = new Context;
  context->index = static_cast<unsigned>(device - devices);
  ibv_context& plain = context->verbs.context;
  plain.device = device;
  plain.ops.poll_cq = &poll_queue;
  plain.ops.post_send = &post_send;
  plain.ops.post_srq_recv = &post_receive;
  plain.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  context->verbs.sz = sizeof(verbs_context);
  context->verbs.query_port = &query_whole_port;
  if (pipe2(context->event_pipe, O_CLOEXEC) != 0) {
    delete context;
    return nullptr;
  }
  plain.async_fd = context->event_pipe[0];
  return &plain;
}
int ibv_close_device(ibv_context* context) {
  Context& opened = to_context(context);
  close(opened.event_pipe[0]);
  close(opened.event_pipe[1]);
  delete &opened;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->node_guid = attributes->sys_image_guid =
      htobe64(0x4e554c4c00000001ULL + to_context(context).index);
  attributes->vendor_id = 0xffffff;  // a software device, which keeps the order of writes
  attributes->phys_port_cnt = 1;
  attributes->max_qp_wr = 1 << 15;
  attributes->max_cqe = 1 << 20;
  attributes->max_srq = 1 << 16;
  attributes->max_srq_wr = 1 << 20;
  attributes->atomic_cap = IBV_ATOMIC_HCA;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = 16;
  return 0;
}
int ibv_query_port(ibv_context* context, uint8_t port_number, _compat_ibv_port_attr* attributes) {
  return query_whole_port(context, port_number, reinterpret_cast<ibv_port_attr*>(attributes),
                          offsetof(ibv_port_attr, flags) + 1);
}
int ibv_query_gid(ibv_context* context, uint8_t, int index, ibv_gid* gid) {
  *gid = index == 0 ? make_gid(context) : ibv_gid{};
  return index == 0 ? 0 : -1;
}
int _ibv_query_gid_ex(ibv_context* context, uint32_t port_number, uint32_t index, ibv_gid_entry* entry,
                      uint32_t, size_t) {
  if (index != 0) return EINVAL;
  *entry = {};
  entry->gid = make_gid(context);
  entry->port_num = port_number;
  entry->gid_type = IBV_GID_TYPE_ROCE_V2;
  return 0;
}
int ibv_query_pkey(ibv_context*, uint8_t, int index, __be16* key) {
  *key = htobe16(0xffff);
  return index == 0 ? 0 : EINVAL;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* domain = new ibv_pd{};
  domain->context = context;
  return domain;
}
int ibv_dealloc_pd(ibv_pd* domain) {
  delete domain;
  return 0;
}
ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, size_t length_bytes, int) {
  auto* region = new ibv_mr{};
  region->context = domain->context;
  region->pd = domain;
  region->addr = address;
  region->length = length_bytes;
  region->lkey = region->rkey = next_key++;
  return region;
}
int ibv_dereg_mr(ibv_mr* region) {
  delete region;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int depth, void*, ibv_comp_channel*, int) {
  auto* queue = new CompletionQueue(static_cast<uint32_t>(depth));
  queue->context = context;
  queue->cqe = depth;
  return queue;
}
int ibv_destroy_cq(ibv_cq* queue) {
  delete static_cast<CompletionQueue*>(queue);
  return 0;
}
ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* attributes) {
  auto* queue = new ReceiveQueue(attributes->attr.max_wr);
  queue->context = domain->context;
  queue->pd = domain;
  return queue;
}
int ibv_destroy_srq(ibv_srq* queue) {
  delete static_cast<ReceiveQueue*>(queue);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  auto* pair = new Pair;
  const uint32_t number = reserve_number(*pair);
  if (number == 0) {
    delete pair;
    errno = ENOMEM;
    return nullptr;
  }
  {
    const std::lock_guard lock(get_pairs().mutex);
    get_pairs().all.insert(pair);
  }
  pair->context = domain->context;
  pair->pd = domain;
  pair->qp_num = number;
  pair->qp_type = attributes->qp_type;
  pair->sent = static_cast<CompletionQueue*>(attributes->send_cq);
  pair->received = static_cast<CompletionQueue*>(attributes->recv_cq);
  pair->receives = static_cast<ReceiveQueue*>(attributes->srq);
  return pair;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  auto& pair = *static_cast<Pair*>(qp);
  if ((mask & IBV_QP_DEST_QPN) != 0) pair.peer = pairs[attributes->dest_qp_num % kMaxPairs];
  pair.state = attributes->qp_state;
  if (pair.state == IBV_QPS_ERR) {
    leave_peers(pair);  // otherwise a peer could send to it after it is deleted
    if (pair.receives != nullptr) tell_drained(pair);
  }
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  auto* pair = static_cast<Pair*>(qp);
  leave_peers(*pair);
  pairs[pair->qp_num] = nullptr;
  drop(*pair);
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr*) {
  auto* way = new ibv_ah{};
  way->context = domain->context;
  way->pd = domain;
  return way;
}
int ibv_destroy_ah(ibv_ah* way) {
  delete way;
  return 0;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return read(to_context(context).event_pipe[0], event, sizeof *event) == sizeof *event ? 0 : -1;
}
void ibv_ack_async_event(ibv_async_event* event) {
  drop(*static_cast<Pair*>(event->element.qp));
}
const char* ibv_event_type_str(ibv_event_type) {
  return "an event";
}
const char* ibv_wc_status_str(ibv_wc_status) {
  return "a status";
}

}  // extern "C"
