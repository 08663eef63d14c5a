// Connects a queue pair: from RESET to RTS.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/parameters.h"
#include "verbs/ack_timeout.h"
#include "verbs/address_vector.h"
#include "verbs/async_events.h"
#include "verbs/gid_choice.h"
#include "verbs/library.h"
#include "verbs/mlx5.h"
#include "verbs/queues.h"
#include "verbs/route.h"

namespace verbena::verbs {
namespace {

using base::Outcome;
using base::Status;

constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms between attempts
// Retries without limit, because a device may report "receiver not ready" for a moment although receives are
// posted. The sender's own timeout detects a peer that has posted fewer receives than it announced, and a
// device that loses requests.
constexpr uint8_t kRetryWhileNotReady = 7;
constexpr uint32_t kMaxNumber = 0xffffff;  // queue pair numbers and PSNs have 24 bits

Outcome check_remote(const Device& device, const PortAddress& local, const PortAddress& remote_port,
                     const QueuePairAddress& remote) {
  const bool is_sane = remote_port.mtu >= IBV_MTU_256 && remote_port.mtu <= IBV_MTU_4096 &&
                       remote.number != 0 && remote.number <= kMaxNumber && remote.first_psn <= kMaxNumber &&
                       remote.outstanding_reads <= UINT8_MAX;
  if (!is_sane) {
    return base::fail(Status::kRemote,
                      "device %s:%d: the peer sent an invalid address (mtu code %u, queue pair %u, psn %u)",
                      device.name().c_str(), device.port_number(), remote_port.mtu, remote.number,
                      remote.first_psn);
  }
  const std::string mismatch = explain_mismatch(local, remote_port);
  if (mismatch.empty()) return {};
  return base::fail(Status::kRemote, "device %s:%d: cannot reach the peer: %s", device.name().c_str(),
                    device.port_number(), mismatch.c_str());
}

}  // namespace

Outcome QueuePair::connect(const PortAddress& remote_port, const QueuePairAddress& remote,
                           bool has_other_rail) {
  if (Outcome outcome = check_remote(*device_, local_.port, remote_port, remote); !outcome) return outcome;
  const char* state = nullptr;
  const int error = enter_all(remote_port, remote, has_other_rail, &state);
  return error == 0 ? Outcome() : fail_connect(state, error, remote_port, remote);
}

base::Result<bool> QueuePair::try_connect(const PortAddress& remote_port, const QueuePairAddress& remote,
                                          bool has_other_rail) {
  if (Outcome outcome = check_remote(*device_, local_.port, remote_port, remote); !outcome)
    return outcome.error();
  const char* state = nullptr;
  const int error = enter_all(remote_port, remote, has_other_rail, &state);
  if (error == 0) return true;
  if (error != ETIMEDOUT) return fail_connect(state, error, remote_port, remote);
  reset();
  return false;
}

int QueuePair::enter_all(const PortAddress& remote_port, const QueuePairAddress& remote, bool has_other_rail,
                         const char** state) {
  *state = "INIT";
  if (const int error = enter_init(); error != 0) return error;
  request_ece(remote.ece);
  *state = "RTR";
  if (const int error = enter_ready_to_receive(remote_port, remote); error != 0) return error;
  may_receive_ = true;
  query_ece();  // the options that the device accepted from the request
  *state = "RTS";
  const int error = enter_ready_to_send(remote, has_other_rail);
  if (error == 0 && bonded_port_ != 0) choose_bonded_port(*device_, pair_.get(), bonded_port_);
  return error;
}

// If this fails, the next step fails too and reports it.
void QueuePair::reset() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  static_cast<void>(device_->library().modify_qp(pair_.get(), &attributes, IBV_QP_STATE));
}

int QueuePair::enter_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = static_cast<uint16_t>(local_.partition_key_index);
  attributes.port_num = static_cast<uint8_t>(device_->port_number());
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (serves_reads_ ? IBV_ACCESS_REMOTE_READ : 0) |
                               (serves_adds_ ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  return device_->library().modify_qp(pair_.get(), &attributes,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

// The same steps as in the connection manager: the sending side announces its options; the receiving side
// sets them on its device, and answers with the options that the device accepted; the sending side then sets
// those. If there is no answer or no support, or a device rejects the options, both ends use none.
void QueuePair::query_ece() {
  ece_ = {};
  const Library& library = device_->library();
  ibv_ece found{};
  if (!base::parameters().ece || library.query_ece == nullptr || library.set_ece == nullptr) return;
  if (library.query_ece(pair_.get(), &found) == 0) ece_ = {found.vendor_id, found.options, found.comp_mask};
}

void QueuePair::request_ece(const EceOptions& remote) {
  if (remote.vendor_id == 0 || ece_.vendor_id == 0) return;
  ibv_ece wanted{remote.vendor_id, remote.options, remote.mask};
  if (const int error = device_->library().set_ece(pair_.get(), &wanted); error != 0) {
    base::log_info(
        "queue pair %u continues without enhanced connection establishment, ECE (this device: vendor 0x%x, "
        "options 0x%x; the peer's device: vendor 0x%x, options 0x%x; errno %d)",
        number_, ece_.vendor_id, ece_.options, remote.vendor_id, remote.options, error);
  }
}

int QueuePair::enter_ready_to_receive(const PortAddress& remote_port, const QueuePairAddress& remote) {
  const PortAddress& local = local_.port;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(local.mtu, remote_port.mtu));
  attributes.dest_qp_num = remote.number;
  attributes.rq_psn = remote_first_psn_ = remote.first_psn;
  mtu_bytes_ = 128U << attributes.path_mtu;
  attributes.max_dest_rd_atomic = outstanding_reads_;
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  const AddressVector way = make_address_vector(*device_, local_, remote_port, traffic_class_);
  attributes.ah_attr = way.attributes;
  if (way.source_gid != nullptr) {
    source_gid_index_ = way.attributes.grh.sgid_index;
    std::memcpy(source_gid_, way.source_gid, kGidBytes);
    port_events_seen_ = device_->events().count_port_events();
  }
  return device_->library().modify_qp(pair_.get(), &attributes,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int QueuePair::enter_ready_to_send(const QueuePairAddress& remote, bool has_other_rail) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = static_cast<uint8_t>(choose_ack_timeout(has_other_rail));
  attributes.retry_cnt = static_cast<uint8_t>(base::parameters().retry_count);
  attributes.rnr_retry = kRetryWhileNotReady;
  attributes.sq_psn = first_psn_;
  attributes.max_rd_atomic =
      static_cast<uint8_t>(std::min<uint32_t>(outstanding_reads_, remote.outstanding_reads));
  return device_->library().modify_qp(pair_.get(), &attributes,
                                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

bool QueuePair::has_lost_address() {
  const uint32_t port_events = device_->events().count_port_events();
  if (source_gid_index_ < 0 || (port_events == port_events_seen_ && !has_lost_address_)) return false;
  port_events_seen_ = port_events;
  has_lost_address_ = !device_->has_gid(source_gid_index_, source_gid_);
  return has_lost_address_;
}

base::Error QueuePair::fail_connect(const char* state, int errno_value, const PortAddress& remote_port,
                                    const QueuePairAddress& remote) const {
  const PortAddress& local = local_.port;
  const char* hint = errno_value == ETIMEDOUT ? ": the peer's address does not answer" : "";
  return base::fail_errno(
      Status::kRemote, errno_value,
      "device %s:%d: a queue pair cannot be moved to %s%s (this end: queue pair %u, gid %s index %d, lid %u, "
      "mtu code %u; the peer: queue pair %u, gid %s, lid %u, mtu code %u)",
      device_->name().c_str(), device_->port_number(), state, hint, number_, format_gid(local.gid).c_str(),
      local_.gid_index, local.lid, local.mtu, remote.number, format_gid(remote_port.gid).c_str(),
      remote_port.lid, remote_port.mtu);
}

}  // namespace verbena::verbs
