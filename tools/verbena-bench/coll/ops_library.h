// libverbena_ops.so, loaded at run time, because compiling its kernels takes minutes of nvcc and the tool
// needs no nvcc.
#pragma once
#include <string>

#include "common/cuda_driver.h"
#include "verbena/moe.h"
#include "verbena/ops.h"

namespace verbena::tools::coll {

// clang-format off
#define VERBENA_COLL_OPS(X)                                                                                \
  X(verbena_ops_create) X(verbena_ops_destroy) X(verbena_ops_reset) X(verbena_ops_get_error)               \
  X(verbena_ops_choose) X(verbena_ops_all_reduce) X(verbena_ops_all_gather) X(verbena_ops_reduce_scatter)  \
  X(verbena_ops_broadcast) X(verbena_ops_all_to_all) X(verbena_ops_all_reduce_quantised)                       \
  X(verbena_ops_all_gather_v) X(verbena_ops_all_to_all_v) X(verbena_ops_group_begin) X(verbena_ops_group_end)  \
  X(verbena_ops_norm_rows) X(verbena_ops_all_reduce_norm) X(verbena_ops_pause)                             \
  X(verbena_ops_moe_finalize_all_reduce_norm)                                                              \
  X(verbena_ops_reduce_scatter_norm_all_gather)                                                            \
  X(verbena_moe_create) X(verbena_moe_destroy) X(verbena_moe_get_error) X(verbena_moe_get_layout)          \
  X(verbena_moe_workspace_bytes_across) X(verbena_moe_max_rows) X(verbena_moe_dispatch) X(verbena_moe_combine)
// clang-format on

struct OpsLibrary {
#define VERBENA_COLL_MEMBER(name) decltype(&::name) name = nullptr;
  VERBENA_COLL_OPS(VERBENA_COLL_MEMBER)
#undef VERBENA_COLL_MEMBER
};

// Beside the tool, or in ../lib, if the path is empty. Throws ToolError.
OpsLibrary load_ops_library(const std::string& path);

// An address as the library's calls take it.
inline void* as_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// Throws ToolError with verbena_last_error() unless the call succeeded.
void check(verbena_result result, const char* call);

}  // namespace verbena::tools::coll
