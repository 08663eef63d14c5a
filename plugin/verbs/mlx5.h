// Extensions that NVIDIA's driver library offers in addition to verbs: Data Direct, a second PCI function
// through which a NIC accesses GPU memory (GB200, GB300), and out-of-order receive queues, for networks that
// spread the packets of a connection over several paths. The functions are looked up in the driver library
// that already serves the device's context, so nothing is linked or loaded. Devices of other vendors do not
// have these extensions.
#pragma once

#include <memory>
#include <string>

#include "abi/mlx5dv.h"

namespace verbena::verbs {

class Device;

class Mlx5 {
 public:
  // Returns null if the context belongs to another vendor's driver, or the library is too old for both
  // extensions.
  static std::unique_ptr<const Mlx5> find(const ibv_context* context);

  // Returns the path of the device's Data Direct function in sysfs, or an empty string if it has none.
  std::string find_data_direct_path(ibv_context* context, const std::string& sysfs_root) const;
  // Returns the maximum number of outstanding receives of a queue pair that receives out of order, or 0 if
  // the device does not support this.
  uint32_t count_out_of_order_receives(ibv_context* context) const;

  // Like ibv_reg_dmabuf_mr, through the Data Direct function.
  ibv_mr* register_dmabuf(ibv_pd* domain, uint64_t offset_bytes, size_t length_bytes, uint64_t iova, int fd,
                          int access) const {
    return reg_dmabuf_mr_(domain, offset_bytes, length_bytes, iova, fd, access,
                          mlx5dv::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT);
  }
  bool creates_pairs() const { return create_qp_ != nullptr; }
  // Like ibv_create_qp_ex. The queue pair receives out of order, or its completions do not contain received
  // bytes, or both.
  ibv_qp* create_pair(ibv_context* context, ibv_qp_init_attr_ex* attributes, bool out_of_order,
                      bool receives_to_gpu) const;
  // Sets the port of a bond by which a connected queue pair sends, from 1. Returns 0 or an errno value.
  int choose_bonded_port(ibv_qp* pair, uint32_t port) const;

 private:
  mlx5dv::PFN_mlx5dv_query_device query_device_ = nullptr;
  mlx5dv::PFN_mlx5dv_create_qp create_qp_ = nullptr;
  mlx5dv::PFN_mlx5dv_modify_qp_lag_port modify_qp_lag_port_ = nullptr;
  mlx5dv::PFN_mlx5dv_reg_dmabuf_mr reg_dmabuf_mr_ = nullptr;
  mlx5dv::PFN_mlx5dv_get_data_direct_sysfs_path get_data_direct_sysfs_path_ = nullptr;
};

// Sets the port of a bond, from 1, by which a queue pair in the state RTS sends. Without this call devices
// choose the ports in turn or by a hash, and some queue pairs may share a port. Devices of other vendors do
// not let the caller choose.
void choose_bonded_port(const Device& device, ibv_qp* pair, uint32_t port);

}  // namespace verbena::verbs
