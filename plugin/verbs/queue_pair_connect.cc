// From RESET to RTS.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/parameters.h"
#include "verbs/gid_choice.h"
#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Outcome;
using base::Status;

constexpr uint8_t kHopLimit = 255;
constexpr uint8_t kOutstandingReads = 1;        // in either direction; every device has that many
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms between attempts
constexpr uint8_t kRetryWhileNotReady =
    7;  // for ever: the receiver's pages come back when its application polls
constexpr uint32_t kMaxNumber = 0xffffff;  // queue pair numbers and PSNs have 24 bits
constexpr size_t kSubnetPrefixBytes = 8;

const char* name_link_layer(uint8_t link_layer) {
  return link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
}

uint8_t choose_traffic_class(int of_communicator) {
  const int64_t of_user = base::parameters().traffic_class;
  return static_cast<uint8_t>(of_communicator >= 0 ? of_communicator : std::max<int64_t>(of_user, 0));
}

// On Ethernet the GRH carries the addresses. On InfiniBand it is for routers (another subnet), for ports that
// have no LID and for users who chose a GID.
bool needs_global_route(const PortAddress& local, int local_gid_index, const PortAddress& remote) {
  if (local.link_layer == IBV_LINK_LAYER_ETHERNET || local_gid_index >= 0 || remote.lid == 0) return true;
  return !is_empty_gid(remote.gid) && std::memcmp(local.gid, remote.gid, kSubnetPrefixBytes) != 0;
}

Outcome check_remote(const Device& device, const PortAddress& remote_port, const QueuePairAddress& remote) {
  const PortAddress local = device.address();
  const bool is_sane = remote_port.mtu >= IBV_MTU_256 && remote_port.mtu <= IBV_MTU_4096 &&
                       remote.number != 0 && remote.number <= kMaxNumber && remote.first_psn <= kMaxNumber;
  if (!is_sane) {
    return base::fail(
        Status::kRemote, "device %s:%d: the peer's address is not valid (mtu code %u, queue pair %u, psn %u)",
        device.name().c_str(), device.port_number(), remote_port.mtu, remote.number, remote.first_psn);
  }
  const bool is_ethernet = local.link_layer == IBV_LINK_LAYER_ETHERNET;
  const bool is_remote_ethernet = remote_port.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (is_ethernet != is_remote_ethernet) {
    return base::fail(Status::kRemote,
                      "device %s:%d: cannot reach the peer: link layers differ (ours %s, the peer's %s)",
                      device.name().c_str(), device.port_number(), name_link_layer(local.link_layer),
                      name_link_layer(remote_port.link_layer));
  }
  if (is_ethernet && is_empty_gid(remote_port.gid)) {
    return base::fail(Status::kRemote, "device %s:%d: cannot reach the peer: it sent no GID (ours %s)",
                      device.name().c_str(), device.port_number(), format_gid(local.gid).c_str());
  }
  return {};
}

}  // namespace

Outcome QueuePair::connect(const PortAddress& remote_port, const QueuePairAddress& remote) {
  if (Outcome outcome = check_remote(*device_, remote_port, remote); !outcome) return outcome;
  if (const int error = enter_init(); error != 0) return fail_connect("INIT", error, remote_port, remote);
  if (const int error = enter_ready_to_receive(remote_port, remote); error != 0) {
    return fail_connect("RTR", error, remote_port, remote);
  }
  if (const int error = enter_ready_to_send(); error != 0)
    return fail_connect("RTS", error, remote_port, remote);
  return {};
}

int QueuePair::enter_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = static_cast<uint16_t>(base::parameters().pkey_index);
  attributes.port_num = static_cast<uint8_t>(device_->port_number());
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  return device_->library().modify_qp(pair_.get(), &attributes,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int QueuePair::enter_ready_to_receive(const PortAddress& remote_port, const QueuePairAddress& remote) {
  const PortAddress local = device_->address();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(local.mtu, remote_port.mtu));
  attributes.dest_qp_num = remote.number;
  attributes.rq_psn = remote.first_psn;
  attributes.max_dest_rd_atomic = kOutstandingReads;
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  ibv_ah_attr& route = attributes.ah_attr;
  route.port_num = static_cast<uint8_t>(device_->port_number());
  route.sl = static_cast<uint8_t>(std::max<int64_t>(base::parameters().service_level, 0));
  route.dlid = remote_port.lid;
  if (needs_global_route(local, device_->gid_index(), remote_port)) {
    route.is_global = 1;
    std::memcpy(route.grh.dgid.raw, remote_port.gid, sizeof(remote_port.gid));
    route.grh.sgid_index = static_cast<uint8_t>(std::max(device_->gid_index(), 0));
    route.grh.hop_limit = kHopLimit;
    route.grh.traffic_class = choose_traffic_class(traffic_class_);
  }
  return device_->library().modify_qp(pair_.get(), &attributes,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int QueuePair::enter_ready_to_send() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = static_cast<uint8_t>(base::parameters().ack_timeout);
  attributes.retry_cnt = static_cast<uint8_t>(base::parameters().retry_count);
  attributes.rnr_retry = kRetryWhileNotReady;
  attributes.sq_psn = first_psn_;
  attributes.max_rd_atomic = kOutstandingReads;
  return device_->library().modify_qp(pair_.get(), &attributes,
                                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

base::Error QueuePair::fail_connect(const char* state, int errno_value, const PortAddress& remote_port,
                                    const QueuePairAddress& remote) const {
  const PortAddress local = device_->address();
  const char* hint = errno_value == ETIMEDOUT ? ", the peer's address does not answer" : "";
  return base::fail_errno(
      Status::kRemote, errno_value,
      "device %s:%d: queue pair cannot enter %s%s (ours: queue pair %u, gid %s index %d, lid %u, mtu "
      "code %u; the peer's: queue pair %u, gid %s, lid %u, mtu code %u)",
      device_->name().c_str(), device_->port_number(), state, hint, number_, format_gid(local.gid).c_str(),
      device_->gid_index(), local.lid, local.mtu, remote.number, format_gid(remote_port.gid).c_str(),
      remote_port.lid, remote_port.mtu);
}

}  // namespace verbena::verbs
