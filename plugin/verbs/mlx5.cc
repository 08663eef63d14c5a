#include "verbs/mlx5.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <limits.h>

#include <array>
#include <cerrno>

#include "base/log.h"
#include "verbs/device.h"

namespace verbena::verbs {

std::unique_ptr<const Mlx5> Mlx5::find(const ibv_context* context) {
  // The driver library is the library that contains the functions of the context.
  Dl_info driver{};
  if (dladdr(reinterpret_cast<const void*>(context->ops.poll_cq), &driver) == 0) return nullptr;
  void* const library = dlopen(driver.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;  // the library is linked into the program
  auto found = std::make_unique<Mlx5>();
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
  };
  resolve(found->query_device_, "mlx5dv_query_device");
  resolve(found->create_qp_, "mlx5dv_create_qp");
  resolve(found->modify_qp_lag_port_, "mlx5dv_modify_qp_lag_port");
  resolve(found->reg_dmabuf_mr_, "mlx5dv_reg_dmabuf_mr");
  resolve(found->get_data_direct_sysfs_path_, "mlx5dv_get_data_direct_sysfs_path");
  dlclose(library);  // it stays loaded as long as its contexts exist
  const bool is_of_use = found->get_data_direct_sysfs_path_ != nullptr || found->query_device_ != nullptr;
  return is_of_use ? std::move(found) : nullptr;
}

std::string Mlx5::find_data_direct_path(ibv_context* context, const std::string& sysfs_root) const {
  if (get_data_direct_sysfs_path_ == nullptr || reg_dmabuf_mr_ == nullptr) return {};
  std::array<char, PATH_MAX> path{};
  if (get_data_direct_sysfs_path_(context, path.data(), path.size()) != 0) return {};
  return sysfs_root + (path[0] == '/' ? "" : "/") + path.data();
}

uint32_t Mlx5::count_out_of_order_receives(ibv_context* context) const {
  if (query_device_ == nullptr || create_qp_ == nullptr) return 0;
  mlx5dv::mlx5dv_context found{};
  found.comp_mask = mlx5dv::MLX5DV_CONTEXT_MASK_OOO_RECV_WRS;
  const bool is_known = query_device_(context, &found) == 0 &&
                        (found.comp_mask & mlx5dv::MLX5DV_CONTEXT_MASK_OOO_RECV_WRS) != 0;
  return is_known ? found.ooo_recv_wrs_caps.max_rc : 0;
}

int Mlx5::choose_bonded_port(ibv_qp* pair, uint32_t port) const {
  return modify_qp_lag_port_ == nullptr ? ENOSYS : modify_qp_lag_port_(pair, static_cast<uint8_t>(port));
}

void choose_bonded_port(const Device& device, ibv_qp* pair, uint32_t port) {
  if (device.mlx5() == nullptr) return;
  if (const int error = device.mlx5()->choose_bonded_port(pair, port); error != 0)
    base::log_info("device %s:%d: queue pair %u cannot be assigned to port %u of the bond (errno %d)",
                   device.name().c_str(), device.port_number(), pair->qp_num, port, error);
}

ibv_qp* Mlx5::create_pair(ibv_context* context, ibv_qp_init_attr_ex* attributes, bool out_of_order,
                          bool receives_to_gpu) const {
  mlx5dv::mlx5dv_qp_init_attr own{};
  own.comp_mask = mlx5dv::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  own.create_flags = (out_of_order ? mlx5dv::MLX5DV_QP_CREATE_OOO_DP : 0) |
                     (receives_to_gpu ? mlx5dv::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE : 0);
  return create_qp_(context, attributes, &own);
}

}  // namespace verbena::verbs
