// What NVIDIA's driver library has beside verbs, but for registrations (faulty_regions.cc). The plugin finds
// it here, as these devices' contexts run this library's code.
#include <cstring>

#include "abi/mlx5dv.h"
#include "target.h"

using namespace verbena::verbs::faulty;

namespace {
constexpr uint32_t kPairs = 1 << 16;
std::atomic<uint8_t> port_of[kPairs];  // by the number of the queue pair; 0: none
}  // namespace

void verbena::verbs::faulty::note_datagrams(const ibv_qp* pair, const ibv_send_wr* first) {
  const uint8_t port = port_of[pair->qp_num % kPairs];
  for (; port != 0 && first != nullptr; first = first->next) ++hooks().bonded_datagrams[port - 1];
}

extern "C" int mlx5dv_get_data_direct_sysfs_path(ibv_context*, char* buf, size_t buf_len) {
  const char* const path = hooks().data_direct_path;
  if (path == nullptr) return ENODEV;
  if (std::strlen(path) >= buf_len) return ENOSPC;
  std::strcpy(buf, path);
  return 0;
}

extern "C" int mlx5dv_query_device(ibv_context*, verbena::mlx5dv::mlx5dv_context* found) {
  const uint64_t known =
      hooks().most_out_of_order != 0 ? verbena::mlx5dv::MLX5DV_CONTEXT_MASK_OOO_RECV_WRS : 0;
  found->comp_mask &= known;
  if (found->comp_mask != 0)
    found->ooo_recv_wrs_caps.max_rc = static_cast<uint32_t>(hooks().most_out_of_order.load());
  return 0;
}

extern "C" int mlx5dv_modify_qp_lag_port(ibv_qp* pair, uint8_t port_num) {
  if (pair->state != IBV_QPS_RTS || port_num == 0 || port_num > Hooks::kMaxPorts) return EINVAL;
  ++hooks().bonded_ports[port_num - 1];
  port_of[pair->qp_num % kPairs] = port_num;
  return 0;
}

extern "C" ibv_qp* mlx5dv_create_qp(ibv_context* context, ibv_qp_init_attr_ex* attributes,
                                    verbena::mlx5dv::mlx5dv_qp_init_attr* own) {
  constexpr uint32_t kOutOfOrder = verbena::mlx5dv::MLX5DV_QP_CREATE_OOO_DP;
  constexpr uint32_t kNotIntoCqe = verbena::mlx5dv::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  const bool is_known = own->comp_mask == verbena::mlx5dv::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS &&
                        own->create_flags != 0 && (own->create_flags & ~(kOutOfOrder | kNotIntoCqe)) == 0;
  const bool is_out_of_order = (own->create_flags & kOutOfOrder) != 0;
  if (!is_known ||
      (is_out_of_order && (attributes->srq != nullptr ||
                           attributes->cap.max_recv_wr > static_cast<uint32_t>(hooks().most_out_of_order)))) {
    errno = EINVAL;
    return nullptr;
  }
  ibv_qp* const pair = create_qp_ex(context, attributes);
  if (pair != nullptr && is_out_of_order) ++hooks().out_of_order_pairs;
  if (pair != nullptr && (own->create_flags & kNotIntoCqe) != 0) ++hooks().pairs_not_into_cqe;
  return pair;
}
