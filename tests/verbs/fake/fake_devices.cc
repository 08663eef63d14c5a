// Devices, contexts, ports and GIDs of the fake.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "fake_objects.h"

#undef ibv_query_port

namespace verbena::verbs::fake {

Hooks& hooks() {
  static Hooks shared{{}, {}, &raise_event, &break_events};
  return shared;
}

bool refuse() {
  Hooks& all = hooks();
  if (++all.record.fallible_calls != all.script.failing_call) return false;
  errno = all.script.failing_errno;
  return true;
}

namespace {

std::vector<std::unique_ptr<FakeDevice>>& listed_devices() {
  static std::vector<std::unique_ptr<FakeDevice>> devices;  // stay valid for the life of the process
  return devices;
}

// The script's as it is now; as it was when it was listed, if the script has no such device any more.
const Port& port_of(ibv_context* context, uint32_t port_number) {
  const Device* description = to_fake(context)->description;
  for (const Device& device : hooks().script.devices) {
    if (device.name == description->name) description = &device;
  }
  return description->ports.at(port_number - 1);
}

// For tests that cannot reach the hooks before the library is searched.
void add_device_of_environment() {
  const char* name = std::getenv("FAKE_IBVERBS_DEVICE");
  if (name == nullptr || !hooks().script.devices.empty()) return;
  Device device;
  device.name = name;
  device.ports.resize(1);
  device.ports[0].gids = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}, IBV_GID_TYPE_ROCE_V2}};
  hooks().script.devices.push_back(device);
}

}  // namespace

int query_port(ibv_context* context, uint8_t port_number, ibv_port_attr* attributes, size_t length_bytes) {
  if (refuse()) return errno;
  const Port& port = port_of(context, port_number);
  ibv_port_attr full{};
  full.state = port.state;
  full.max_mtu = IBV_MTU_4096;
  full.active_mtu = port.mtu;
  full.gid_tbl_len = static_cast<int>(port.gids.size());
  full.pkey_tbl_len = static_cast<uint16_t>(1 + port.further_partition_keys.size());
  full.lid = port.lid;
  full.active_width = port.width;
  full.active_speed = port.speed;
  full.link_layer = port.link_layer;
  full.flags = port.flags;
  full.port_cap_flags2 = 0x5a5a;  // tells whether the call was the full or the compatible one
  std::memcpy(attributes, &full, std::min(length_bytes, sizeof(full)));
  constexpr size_t kSpeedOffset = 52;  // of active_speed_ex, as rdma-core lays it out since version 54
  if (length_bytes >= kSpeedOffset + sizeof(port.extended_speed)) {
    auto* const place = reinterpret_cast<std::byte*>(attributes) + kSpeedOffset;
    std::memcpy(place, &port.extended_speed, sizeof(port.extended_speed));
  }
  return 0;
}

}  // namespace verbena::verbs::fake

using namespace verbena::verbs::fake;

extern "C" {

Hooks* fake_ibverbs_hooks() {
  return &hooks();
}

// Functions of softverbs.
const char* softverbs_explain_no_gpu() {
  return hooks().script.no_gpu;
}
size_t softverbs_explain_wait(char* text, size_t bytes) {
  const std::string said = hooks().script.wait;
  std::strncpy(text, said.c_str(), bytes);
  return said.size();
}

ibv_device** ibv_get_device_list(int* count) {
  add_device_of_environment();
  if (refuse()) return nullptr;
  if (hooks().script.list_errno != 0) {
    errno = hooks().script.list_errno;
    return nullptr;
  }
  const auto& described = hooks().script.devices;
  auto** list = static_cast<ibv_device**>(std::calloc(described.size() + 1, sizeof(ibv_device*)));
  for (size_t i = 0; i < described.size(); ++i) {
    auto device = std::make_unique<FakeDevice>();
    device->description = described[i];
    std::strncpy(device->device.name, described[i].name.c_str(), sizeof(device->device.name) - 1);
    device->device.transport_type = described[i].transport;
    list[i] = &device->device;
    listed_devices().push_back(std::move(device));
  }
  ++hooks().record.live_objects;
  *count = static_cast<int>(described.size());
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  --hooks().record.live_objects;
  std::free(list);
}

const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}

ibv_context* ibv_open_device(ibv_device* device) {
  if (refuse()) return nullptr;
  const Device& description = reinterpret_cast<FakeDevice*>(device)->description;
  if (description.open_errno != 0) {
    errno = description.open_errno;
    return nullptr;
  }
  auto* context = new FakeContext;
  context->description = &description;
  ibv_context& plain = context->verbs.context;
  plain.device = device;
  plain.ops.poll_cq = &poll_cq;
  plain.ops.post_send = &post_send;
  plain.ops.post_recv = &post_recv;
  plain.ops.post_srq_recv = &post_srq_recv;
#ifndef FAKE_IS_OLD
  plain.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  context->verbs.sz = sizeof(verbs_context);
  context->verbs.query_port = &query_port;
  context->verbs.create_qp_ex = &create_qp_ex;
#endif
  if (pipe2(context->event_pipe, O_CLOEXEC) != 0) std::abort();
  plain.async_fd = context->event_pipe[0];
  note_open(context);
  ++hooks().record.live_objects;
  return &plain;
}

#ifndef FAKE_IS_OLD
int ibv_query_port_speed(ibv_context* context, uint32_t port_number, uint64_t* speed) {
  *speed = port_of(context, port_number).effective_speed;
  return *speed != 0 ? 0 : EPROTONOSUPPORT;
}
#endif

int ibv_close_device(ibv_context* context) {
  FakeContext* opened = to_fake(context);
  if (opened->children != 0) ++hooks().record.misuses;
  note_closed(opened);
  close(opened->event_pipe[0]);
  close(opened->event_pipe[1]);
  delete opened;
  --hooks().record.live_objects;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  if (refuse()) return errno;
  const Device& description = *to_fake(context)->description;
  *attributes = {};
  attributes->node_guid = htobe64(description.guid);
  attributes->sys_image_guid = htobe64(description.guid);
  attributes->vendor_id = description.vendor_id;
  attributes->phys_port_cnt = static_cast<uint8_t>(description.ports.size());
  attributes->max_qp_wr = 1024;
  attributes->max_cqe = 4096;
  attributes->max_srq = 64;
  attributes->max_srq_wr = 2048;
  return 0;
}

int ibv_query_port(ibv_context* context, uint8_t port_number, _compat_ibv_port_attr* attributes) {
  return query_port(context, port_number, reinterpret_cast<ibv_port_attr*>(attributes),
                    offsetof(ibv_port_attr, flags) + 1);
}

int ibv_query_gid(ibv_context* context, uint8_t port_number, int index, ibv_gid* gid) {
  const auto& gids = port_of(context, port_number).gids;
  std::memset(gid, 0, sizeof(*gid));
  if (static_cast<size_t>(index) >= gids.size()) return -1;
  std::memcpy(gid->raw, gids[static_cast<size_t>(index)].bytes, sizeof(gid->raw));
  return 0;
}

#ifndef FAKE_IS_OLD
int _ibv_query_gid_ex(ibv_context* context, uint32_t port_number, uint32_t index, ibv_gid_entry* entry,
                      uint32_t, size_t) {
  const auto& gids = port_of(context, port_number).gids;
  if (index >= gids.size()) return EINVAL;
  const Gid& gid = gids[index];
  if (std::all_of(gid.bytes, gid.bytes + sizeof(gid.bytes), [](uint8_t byte) { return byte == 0; }))
    return ENODATA;
  std::memcpy(entry->gid.raw, gid.bytes, sizeof(gid.bytes));
  entry->gid_index = index;
  entry->port_num = port_number;
  entry->gid_type = gid.type;
  return 0;
}
#endif

#ifndef FAKE_IS_OLD
int ibv_query_pkey(ibv_context* context, uint8_t port_number, int index, __be16* key) {
  const Port& port = port_of(context, port_number);
  if (index < 0 || index > static_cast<int>(port.further_partition_keys.size())) return EINVAL;
  *key =
      htobe16(index == 0 ? port.partition_key : port.further_partition_keys[static_cast<size_t>(index) - 1]);
  return 0;
}
#endif

int ibv_fork_init() {
  ++hooks().record.fork_inits;
  return 0;
}

}  // extern "C"
