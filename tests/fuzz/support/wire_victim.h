// The process that is attacked over softverbs' wire, for the targets of either side: a region between guards,
// a reliable queue pair that leads to 127.0.0.2, one for datagrams. Made once.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "softverbs/wire/frame.h"

namespace verbena::fuzz {

inline constexpr uint32_t kPeerQp = 0x500009, kQueueKey = 0x11;
inline constexpr int kPort = 26000;
inline constexpr size_t kRegionBytes = 16 << 10, kGuardBytes = 4 << 10, kReceives = 8;
inline constexpr uint8_t kGuard = 0xA5;

inline void require(bool is_true) {
  if (!is_true) __builtin_trap();
}

inline ibv_gid make_gid(uint8_t host) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, host}};
}

class Victim {
 public:
  Victim() {
    setenv("SOFTVERBS_DEVICES", "1", 1);
    setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
    setenv("SOFTVERBS_PORT", std::to_string(kPort).c_str(), 1);
    setenv("SOFTVERBS_WIRE_THREADS", "1", 1);
    setenv("SOFTVERBS_JOB", "fuzz", 1);
    ibv_device** devices = ibv_get_device_list(nullptr);
    require(devices != nullptr && devices[0] != nullptr);
    context_ = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    require(context_ != nullptr);
    pd_ = ibv_alloc_pd(context_);
    cq_ = ibv_create_cq(context_, 1024, nullptr, nullptr, 0);
    memory_.fill(kGuard);
    mr = ibv_reg_mr(
        pd_, memory_.data() + kGuardBytes, kRegionBytes,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    require(pd_ != nullptr && cq_ != nullptr && mr != nullptr);
    datagrams = create(IBV_QPT_UD);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qkey = kQueueKey;
    require(ibv_modify_qp(datagrams, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attributes.qp_state = IBV_QPS_RTR;
    require(ibv_modify_qp(datagrams, &attributes, IBV_QP_STATE) == 0);
    attributes.qp_state = IBV_QPS_RTS;
    require(ibv_modify_qp(datagrams, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
  }
  void replace_reliable() {
    if (reliable != nullptr) require(ibv_destroy_qp(reliable) == 0);
    poll();
    reliable = create(IBV_QPT_RC);
    connect();
  }
  // A refusal ends a queue pair: the next input finds a new one.
  void prepare() {
    if (reliable == nullptr || read_state() != IBV_QPS_RTS) replace_reliable();
    for (ibv_qp* pair : {reliable, datagrams})
      while (post_receive(pair)) continue;
  }
  // This thread takes the loop's turn, so that most of what is done depends on the input alone. How many
  // requests of the reliable queue pair were told of.
  int poll() {
    ibv_wc completions[16];
    int sum = 0, count = 0;
    do {
      count = ibv_poll_cq(cq_, 16, completions);
      for (int i = 0; i < count; ++i)
        sum += reliable != nullptr && completions[i].qp_num == reliable->qp_num ? 1 : 0;
    } while (count == 16);
    return sum;
  }
  // Bytes that nothing may have written.
  void check(size_t begin = 0, size_t end = 0) const {
    const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
    require(std::all_of(memory_.begin(), memory_.begin() + kGuardBytes, is_guard));
    require(std::all_of(memory_.end() - kGuardBytes, memory_.end(), is_guard));
    require(
        std::all_of(memory_.begin() + kGuardBytes + begin, memory_.begin() + kGuardBytes + end, is_guard));
  }

  ibv_mr* mr = nullptr;
  ibv_qp *reliable = nullptr, *datagrams = nullptr;

 private:
  ibv_qp* create(ibv_qp_type type) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq_;
    attributes.cap = {16, kReceives, 2, 1, 0};
    attributes.qp_type = type;
    ibv_qp* pair = ibv_create_qp(pd_, &attributes);
    require(pair != nullptr);
    return pair;
  }
  void connect() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    require(ibv_modify_qp(reliable, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = kPeerQp;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = make_gid(2);
    require(ibv_modify_qp(reliable, &attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = attributes.rnr_retry = 7;
    attributes.max_rd_atomic = 4;
    require(ibv_modify_qp(reliable, &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }
  bool post_receive(ibv_qp* pair) {
    ibv_sge piece{reinterpret_cast<uint64_t>(mr->addr), 8192, mr->lkey};
    ibv_recv_wr request{0, nullptr, &piece, 1}, *rejected = nullptr;
    return ibv_post_recv(pair, &request, &rejected) == 0;
  }
  ibv_qp_state read_state() {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    require(ibv_query_qp(reliable, &attributes, IBV_QP_STATE, &initial) == 0);
    return attributes.qp_state;
  }

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  alignas(64) std::array<uint8_t, kRegionBytes + 2 * kGuardBytes> memory_{};
};

}  // namespace verbena::fuzz
