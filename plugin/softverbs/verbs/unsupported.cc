#include <cerrno>

#include "softverbs/engine/objects.h"

// Functions that a drop-in replacement must export because programs link to them, although this device does
// not support them. Each call fails in the way that its callers expect.

using namespace verbena::softverbs;

SOFTVERBS_API int ibv_fork_init() {
  return 0;
}
SOFTVERBS_API ibv_fork_status ibv_is_fork_initialized() {
  return IBV_FORK_UNNEEDED;
}
SOFTVERBS_API int ibv_dontfork_range(void*, size_t) {
  return 0;
}
SOFTVERBS_API int ibv_dofork_range(void*, size_t) {
  return 0;
}

SOFTVERBS_API const char* ibv_get_sysfs_path() {
  return "/sys";
}
SOFTVERBS_API int ibv_read_sysfs_file(const char*, const char*, char*, size_t) {
  return -1;
}
SOFTVERBS_API int ibv_read_ibdev_sysfs_file(char*, size_t, ibv_device*, const char*, ...) {
  return -1;
}

SOFTVERBS_API int ibv_query_ece(ibv_qp*, ibv_ece*) {
  return EOPNOTSUPP;
}
SOFTVERBS_API int ibv_set_ece(ibv_qp*, ibv_ece*) {
  return EOPNOTSUPP;
}
SOFTVERBS_API int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) {
  return 0;
}

SOFTVERBS_API int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return EOPNOTSUPP;
}
SOFTVERBS_API int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) {
  return EOPNOTSUPP;
}
SOFTVERBS_API int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return EOPNOTSUPP;
}

// librdmacm's conversions between kernel structs; it cannot open its device here and never calls them.
SOFTVERBS_API void ibv_copy_path_rec_from_kern(void*, void*) {}
SOFTVERBS_API void ibv_copy_path_rec_to_kern(void*, void*) {}
SOFTVERBS_API void ibv_copy_qp_attr_from_kern(void*, void*) {}
SOFTVERBS_API void ibv_copy_ah_attr_from_kern(void*, void*) {}

SOFTVERBS_API void ibv_register_driver(const char*, void*) {}

// Provider libraries link to these functions, and register themselves when they are loaded. They do not find
// any of their devices.
#define SOFTVERBS_NO_DRIVER(name) \
  SOFTVERBS_API long name() {     \
    errno = EOPNOTSUPP;           \
    return 0;                     \
  }
SOFTVERBS_NO_DRIVER(__ioctl_final_num_attrs)
SOFTVERBS_NO_DRIVER(__verbs_log)
SOFTVERBS_NO_DRIVER(_verbs_init_and_alloc_context)
SOFTVERBS_NO_DRIVER(execute_ioctl)
SOFTVERBS_NO_DRIVER(ibv_cmd_advise_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_alloc_dm)
SOFTVERBS_NO_DRIVER(ibv_cmd_alloc_mw)
SOFTVERBS_NO_DRIVER(ibv_cmd_alloc_pd)
SOFTVERBS_NO_DRIVER(ibv_cmd_attach_mcast)
SOFTVERBS_NO_DRIVER(ibv_cmd_close_xrcd)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_ah)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_counters)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_cq)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_cq_ex)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_flow)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_flow_action_esp)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_qp)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_qp_ex)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_qp_ex2)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_rwq_ind_table)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_srq)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_srq_ex)
SOFTVERBS_NO_DRIVER(ibv_cmd_create_wq)
SOFTVERBS_NO_DRIVER(ibv_cmd_dealloc_mw)
SOFTVERBS_NO_DRIVER(ibv_cmd_dealloc_pd)
SOFTVERBS_NO_DRIVER(ibv_cmd_dereg_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_ah)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_counters)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_cq)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_flow)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_flow_action)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_qp)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_rwq_ind_table)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_srq)
SOFTVERBS_NO_DRIVER(ibv_cmd_destroy_wq)
SOFTVERBS_NO_DRIVER(ibv_cmd_detach_mcast)
SOFTVERBS_NO_DRIVER(ibv_cmd_free_dm)
SOFTVERBS_NO_DRIVER(ibv_cmd_get_context)
SOFTVERBS_NO_DRIVER(ibv_cmd_modify_cq)
SOFTVERBS_NO_DRIVER(ibv_cmd_modify_flow_action_esp)
SOFTVERBS_NO_DRIVER(ibv_cmd_modify_qp)
SOFTVERBS_NO_DRIVER(ibv_cmd_modify_qp_ex)
SOFTVERBS_NO_DRIVER(ibv_cmd_modify_srq)
SOFTVERBS_NO_DRIVER(ibv_cmd_modify_wq)
SOFTVERBS_NO_DRIVER(ibv_cmd_open_qp)
SOFTVERBS_NO_DRIVER(ibv_cmd_open_xrcd)
SOFTVERBS_NO_DRIVER(ibv_cmd_poll_cq)
SOFTVERBS_NO_DRIVER(ibv_cmd_post_recv)
SOFTVERBS_NO_DRIVER(ibv_cmd_post_send)
SOFTVERBS_NO_DRIVER(ibv_cmd_post_srq_recv)
SOFTVERBS_NO_DRIVER(ibv_cmd_query_context)
SOFTVERBS_NO_DRIVER(ibv_cmd_query_device_any)
SOFTVERBS_NO_DRIVER(ibv_cmd_query_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_query_port)
SOFTVERBS_NO_DRIVER(ibv_cmd_query_qp)
SOFTVERBS_NO_DRIVER(ibv_cmd_query_srq)
SOFTVERBS_NO_DRIVER(ibv_cmd_read_counters)
SOFTVERBS_NO_DRIVER(ibv_cmd_reg_dm_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_reg_dmabuf_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_reg_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_req_notify_cq)
SOFTVERBS_NO_DRIVER(ibv_cmd_rereg_mr)
SOFTVERBS_NO_DRIVER(ibv_cmd_resize_cq)
SOFTVERBS_NO_DRIVER(verbs_allow_disassociate_destroy)
SOFTVERBS_NO_DRIVER(verbs_init_cq)
SOFTVERBS_NO_DRIVER(verbs_open_device)
SOFTVERBS_NO_DRIVER(verbs_set_ops)
SOFTVERBS_NO_DRIVER(verbs_uninit_context)
SOFTVERBS_NO_DRIVER(verbs_register_driver_34)
SOFTVERBS_NO_DRIVER(verbs_register_driver_57)
SOFTVERBS_NO_DRIVER(verbs_register_driver_59)
SOFTVERBS_NO_DRIVER(verbs_register_driver_64)
SOFTVERBS_NO_DRIVER(verbs_register_driver_65)
#undef SOFTVERBS_NO_DRIVER
