#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "softverbs/engine/objects.h"
#include "softverbs/faults/rails.h"
#include "softverbs/shared/profile.h"
#include "softverbs/verbs/extended_verbs.h"

#undef ibv_query_port

namespace verbena::softverbs {
namespace {

void fill_port(ibv_context* context, ibv_port_attr& attributes) {
  const bool is_down = faults::is_down(Process::get()->segment(), get_context(context).device->index);
  attributes.state = is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = static_cast<ibv_mtu>(std::countr_zero(get_profile().mtu_bytes) - 7);
  attributes.gid_tbl_len = kGidCount;
  attributes.port_cap_flags = IBV_PORT_CM_SUP;
  attributes.max_msg_sz = get_profile().max_message_bytes;
  attributes.pkey_tbl_len = 1;
  attributes.max_vl_num = 1;
  attributes.active_width = 2;              // 4 lanes
  attributes.active_speed = 128;            // of 100 Gb/s (NDR)
  attributes.phys_state = is_down ? 3 : 5;  // disabled, link up
  attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
}

void fill_device(const Device& device, ibv_device_attr& attributes) {
  const Profile& profile = get_profile();
  attributes = {};
  strncpy(attributes.fw_ver, "1.0.0", sizeof(attributes.fw_ver) - 1);
  attributes.node_guid = get_gid(device.index, 0).global.interface_id;
  attributes.sys_image_guid = attributes.node_guid;
  attributes.max_mr_size = UINT64_MAX >> 1;
  attributes.page_size_cap = 0xfffff000;
  attributes.vendor_id = profile.vendor;
  attributes.vendor_part_id = profile.part;
  attributes.max_qp = kQpCount - kFirstQpIndex;
  attributes.max_qp_wr = static_cast<int>(profile.max_entries);
  attributes.device_cap_flags = IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                                IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A;
  attributes.max_sge = static_cast<int>(profile.max_sges);
  attributes.max_sge_rd = attributes.max_sge;
  attributes.max_cq = kCqCount;
  attributes.max_cqe = static_cast<int>(profile.max_cq_entries);
  attributes.max_mr = kMrCount - 1;
  attributes.max_mw = kMrCount - 1;
  attributes.max_pd = 1 << 20;
  attributes.max_qp_rd_atom = kMaxReads;
  attributes.max_res_rd_atom = kMaxReads * (kQpCount - kFirstQpIndex);
  attributes.max_qp_init_rd_atom = kMaxReads;
  attributes.atomic_cap = profile.has_atomics ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
  attributes.max_ah = static_cast<int>(profile.max_address_handles);
  attributes.max_srq = profile.max_shared_entries != 0 ? kSrqCount : 0;
  attributes.max_srq_wr = static_cast<int>(profile.max_shared_entries);
  attributes.max_srq_sge = attributes.max_sge;
  attributes.max_pkeys = 1;
  attributes.phys_port_cnt = 1;
}

// Memory is never pinned, so every registration is on demand.
void fill_extended(ibv_device_attr_ex& attributes) {
  constexpr uint32_t kConnected = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  constexpr uint32_t kConnectedOrWritten = kConnected | IBV_ODP_SUPPORT_WRITE;
  attributes.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  attributes.odp_caps.per_transport_caps.rc_odp_caps =
      kConnectedOrWritten | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
  attributes.odp_caps.per_transport_caps.uc_odp_caps = kConnectedOrWritten;
  attributes.odp_caps.per_transport_caps.ud_odp_caps = kConnected;
  attributes.completion_timestamp_mask = UINT64_MAX;
  attributes.max_dm_size = kMaxDeviceMemoryBytes;
  attributes.hca_core_clock = 1'000'000;  // kHz, of query_clock
  attributes.device_cap_flags_ex = attributes.orig_attr.device_cap_flags;
  attributes.phys_port_cnt_ex = 1;
}

}  // namespace

// `bytes` is the size of the caller's struct, which may be older or newer than this one.
int query_port_sized(ibv_context* context, uint8_t port, ibv_port_attr* attributes, size_t bytes) {
  if (port != kPort) return EINVAL;
  if (get_context(context).is_dead.load()) return EIO;
  ibv_port_attr mine{};
  fill_port(context, mine);
  memset(attributes, 0, bytes);
  memcpy(attributes, &mine, std::min(bytes, sizeof(mine)));
  return 0;
}

// Returns nanoseconds, to match hca_core_clock.
int query_clock(ibv_context*, ibv_values_ex* values) {
  const uint32_t wanted = values->comp_mask;
  values->comp_mask = 0;
  if ((wanted & ~uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) != 0) return EOPNOTSUPP;
  if (clock_gettime(CLOCK_MONOTONIC_RAW, &values->raw_clock) != 0) return errno;
  values->comp_mask = wanted;
  return 0;
}

int query_device_sized(ibv_context* context, const ibv_query_device_ex_input* input,
                       ibv_device_attr_ex* attributes, size_t bytes) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (bytes < sizeof(ibv_device_attr)) return EINVAL;
  ibv_device_attr_ex mine{};
  fill_device(*get_context(context).device, mine.orig_attr);
  fill_extended(mine);
  memset(attributes, 0, bytes);
  memcpy(attributes, &mine, std::min(bytes, sizeof(mine)));
  return 0;
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  fill_device(*get_context(context).device, *attributes);
  return 0;
}

// The exported symbol serves callers with an older, shorter struct, which ends after `flags`.
SOFTVERBS_API int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes) {
  if (port != kPort) return EINVAL;
  if (get_context(context).is_dead.load()) return EIO;
  ibv_port_attr mine{};
  fill_port(context, mine);
  constexpr size_t kCompatBytes = offsetof(ibv_port_attr, flags) + sizeof(mine.flags);
  memcpy(static_cast<void*>(attributes), &mine, kCompatBytes);
  return 0;
}

SOFTVERBS_API int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  if (port != kPort || index < 0 || index >= kGidCount) {
    errno = EINVAL;
    return -1;
  }
  *gid = get_gid(get_context(context).device->index, index);
  return 0;
}

SOFTVERBS_API int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != kPort || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

SOFTVERBS_API int ibv_get_pkey_index(ibv_context*, uint8_t port, __be16 pkey) {
  if (port == kPort && pkey == 0xffff) return 0;
  errno = EINVAL;
  return -1;
}

namespace {
void fill_gid_entry(ibv_context* context, uint32_t index, ibv_gid_entry& entry) {
  entry = {};
  entry.gid = get_gid(get_context(context).device->index, static_cast<int>(index));
  entry.gid_index = index;
  entry.port_num = kPort;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
}
}  // namespace

SOFTVERBS_API int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                                    uint32_t flags, size_t bytes) {
  if (port != kPort || index >= kGidCount || flags != 0 || bytes < sizeof(*entry)) return EINVAL;
  fill_gid_entry(context, index, *entry);
  return 0;
}

SOFTVERBS_API ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t count,
                                           uint32_t flags, size_t bytes) {
  if (count < kGidCount || flags != 0 || bytes < sizeof(*entries)) return -EINVAL;
  for (uint32_t index = 0; index < kGidCount; ++index) {
    auto* entry = reinterpret_cast<ibv_gid_entry*>(reinterpret_cast<char*>(entries) + index * bytes);
    fill_gid_entry(context, index, *entry);
  }
  return kGidCount;
}

SOFTVERBS_API int ibv_query_gid_type(ibv_context*, uint8_t port, unsigned int index, unsigned int* type) {
  if (port != kPort || index >= kGidCount) {
    errno = EINVAL;
    return -1;
  }
  *type = 1;  // the kernel's number for RoCE v2 in this private call
  return 0;
}
