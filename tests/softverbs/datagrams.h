// Queue pairs for datagrams, and what a test says over them: a number in the immediate, a header of 24 bytes
// in a line of host memory, data behind it in a page.
#pragma once

#include <cstring>
#include <vector>

#include "fixture.h"

#undef ibv_reg_mr

namespace verbena::softverbs_test {

constexpr uint32_t kDatagramKey = 0x1234, kHeaderBytes = 24, kGrhBytes = 40, kLineBytes = 64,
                   kPageBytes = 4096;
constexpr uint32_t kDataBytes = 4064;

class DatagramEnd {
 public:
  explicit DatagramEnd(Node& node, uint32_t depth = 256) : node_(node) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = node.cq;
    init.cap = {depth, depth, 2, 2, 64};
    init.qp_type = IBV_QPT_UD;
    qp = ibv_create_qp(node.pd, &init);
    EXPECT_NE(qp, nullptr);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qkey = kDatagramKey;
    EXPECT_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), 0);
    attributes.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }
  ~DatagramEnd() { EXPECT_EQ(ibv_destroy_qp(qp), 0); }

  ibv_gid address() const {
    ibv_gid gid{};
    EXPECT_EQ(ibv_query_gid(node_.context, 1, 1, &gid), 0);
    return gid;
  }
  ibv_ah* make_handle(const ibv_gid& to, uint32_t flow_label) {
    ibv_ah_attr attributes{};
    attributes.port_num = 1;
    attributes.is_global = 1;
    attributes.grh.sgid_index = 1;
    attributes.grh.dgid = to;
    attributes.grh.flow_label = flow_label;
    ibv_ah* const handle = ibv_create_ah(node_.pd, &attributes);
    EXPECT_NE(handle, nullptr);
    return handle;
  }
  // The line and the page of this number.
  template <typename Lines, typename Pages>
  void post_receive(uint64_t number, const Lines& lines, const Pages& pages) {
    ibv_sge sges[] = {lines.piece(number * kLineBytes, kLineBytes),
                      pages.piece(number * kPageBytes, kPageBytes)};
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = number;
    request.sg_list = sges;
    request.num_sge = 2;
    EXPECT_EQ(ibv_post_recv(qp, &request, &bad), 0);
  }

  struct Packet {
    uint32_t immediate;
    ibv_sge header, data;  // `data` may be empty
    ibv_ah* handle;
    uint32_t to;
  };
  // In one call; the last is signaled.
  int post(const std::vector<Packet>& packets) {
    std::vector<ibv_send_wr> requests(packets.size());
    std::vector<ibv_sge> sges(2 * packets.size());
    for (size_t i = 0; i < packets.size(); ++i) {
      const Packet& packet = packets[i];
      sges[2 * i] = packet.header;
      sges[2 * i + 1] = packet.data;
      ibv_send_wr& request = requests[i];
      request.wr_id = packet.immediate;
      request.opcode = IBV_WR_SEND_WITH_IMM;
      request.imm_data = packet.immediate;
      request.send_flags = i + 1 == packets.size() ? IBV_SEND_SIGNALED : 0;
      request.sg_list = &sges[2 * i];
      request.num_sge = packet.data.length != 0 ? 2 : 1;
      request.wr.ud = {packet.handle, packet.to, kDatagramKey};
      request.next = i + 1 < packets.size() ? &requests[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, requests.data(), &bad);
  }

  ibv_qp* qp = nullptr;

 private:
  Node& node_;
};

struct DatagramAddress {
  ibv_gid gid;
  uint32_t number;
};

}  // namespace verbena::softverbs_test
