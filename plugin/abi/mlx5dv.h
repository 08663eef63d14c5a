// The part of NVIDIA's direct verbs (libmlx5, of rdma-core) that Verbena calls, under NVIDIA's names, so that
// a search finds them: values, structures, and the type of each function as PFN_<name>. Written from the
// manual pages mlx5dv_query_device(3), mlx5dv_create_qp(3), mlx5dv_modify_qp_lag_port(3),
// mlx5dv_reg_dmabuf_mr(3) and mlx5dv_get_data_direct_sysfs_path(3); the build needs neither library nor
// header.
#pragma once

#include <cstddef>
#include <cstdint>

struct ibv_context;
struct ibv_mr;
struct ibv_pd;
struct ibv_qp;
struct ibv_qp_init_attr_ex;

namespace verbena::mlx5dv {

// A bit of mlx5dv_context::comp_mask: requests a value; it is still set after the query if the library knows
// the value.
inline constexpr uint64_t MLX5DV_CONTEXT_MASK_OOO_RECV_WRS = 1U << 16;

struct mlx5dv_ooo_recv_wrs_caps {
  uint32_t max_rc;  // maximum number of outstanding receives of a reliable connection
  uint32_t max_xrc;
  uint32_t max_dct;
  uint32_t max_ud;
  uint32_t max_uc;
};

struct mlx5dv_context {
  uint8_t version;
  uint64_t flags;
  uint64_t comp_mask;
  uint64_t cqe_comp_caps_to_reg_c0[19];  // not used here
  mlx5dv_ooo_recv_wrs_caps ooo_recv_wrs_caps;
};
static_assert(offsetof(mlx5dv_context, ooo_recv_wrs_caps) == 176);

// A flag of a queue pair, at both ends: receives are consumed and data is placed in any order; completions
// keep their order.
inline constexpr uint32_t MLX5DV_QP_CREATE_OOO_DP = 1U << 7;
// By default the completion contains the bytes of a short receive, and the CPU that polls copies them.
inline constexpr uint32_t MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE = 1U << 3;
inline constexpr uint64_t MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS = 1U << 0;

struct mlx5dv_qp_init_attr {
  uint64_t comp_mask;
  uint32_t create_flags;
  uint64_t dc_init_attr[2];
  uint64_t send_ops_flags;
};
static_assert(sizeof(mlx5dv_qp_init_attr) == 40);

// The memory is accessed through the Data Direct function that belongs to the device.
inline constexpr int MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT = 1U << 0;

using PFN_mlx5dv_query_device = int (*)(ibv_context*, mlx5dv_context*);
using PFN_mlx5dv_create_qp = ibv_qp* (*)(ibv_context*, ibv_qp_init_attr_ex*, mlx5dv_qp_init_attr*);
// Call it after the last change of the queue pair's state, which may choose another port. Returns EOPNOTSUPP
// without a bond.
using PFN_mlx5dv_modify_qp_lag_port = int (*)(ibv_qp*, uint8_t port_num);
using PFN_mlx5dv_reg_dmabuf_mr = ibv_mr* (*)(ibv_pd*, uint64_t offset, size_t length, uint64_t iova, int fd,
                                             int access, int mlx5_access);
// Returns 0 with a path below /sys, or ENODEV if there is no such function.
using PFN_mlx5dv_get_data_direct_sysfs_path = int (*)(ibv_context*, char* buf, size_t buf_len);

}  // namespace verbena::mlx5dv
