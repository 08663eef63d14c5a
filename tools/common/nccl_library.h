#pragma once
#include <array>
#include <cstddef>
#include <string>

#include "common/cuda_driver.h"

namespace verbena::tools::nccl {

// NCCL's public API, loaded at run time, so that one build works with every release.
using NcclStatus = int;
using NcclComm = struct NcclCommObject*;
struct NcclUniqueId {
  std::array<char, 128> bytes;
};
inline constexpr NcclStatus kNcclSuccess = 0;
inline constexpr NcclStatus kNcclInProgress = 7;
inline constexpr int kNcclUint32 = 3;
inline constexpr int kNcclSum = 0;

// X(member, exported name, result, parameters)
#define VERBENA_TOOLS_NCCL(X)                                                                              \
  X(get_version, "ncclGetVersion", NcclStatus, (int* version))                                             \
  X(get_unique_id, "ncclGetUniqueId", NcclStatus, (NcclUniqueId * id))                                     \
  X(init_rank, "ncclCommInitRank", NcclStatus, (NcclComm * comm, int ranks, NcclUniqueId id, int rank))    \
  X(split, "ncclCommSplit", NcclStatus, (NcclComm comm, int color, int key, NcclComm* made, void* config)) \
  X(destroy, "ncclCommDestroy", NcclStatus, (NcclComm comm))                                               \
  X(get_async_error, "ncclCommGetAsyncError", NcclStatus, (NcclComm comm, NcclStatus * error))             \
  X(get_error_string, "ncclGetErrorString", const char*, (NcclStatus status))                              \
  X(get_last_error, "ncclGetLastError", const char*, (NcclComm comm))                                      \
  X(group_start, "ncclGroupStart", NcclStatus, ())                                                         \
  X(group_end, "ncclGroupEnd", NcclStatus, ())                                                             \
  X(all_reduce, "ncclAllReduce", NcclStatus,                                                               \
    (const void* send, void* receive, size_t count, int type, int reduction, NcclComm comm,                \
     CUstream stream))                                                                                     \
  X(reduce_scatter, "ncclReduceScatter", NcclStatus,                                                       \
    (const void* send, void* receive, size_t count, int type, int reduction, NcclComm comm,                \
     CUstream stream))                                                                                     \
  X(all_gather, "ncclAllGather", NcclStatus,                                                               \
    (const void* send, void* receive, size_t count, int type, NcclComm comm, CUstream stream))             \
  X(broadcast, "ncclBroadcast", NcclStatus,                                                                \
    (const void* send, void* receive, size_t count, int type, int root, NcclComm comm, CUstream stream))   \
  X(send, "ncclSend", NcclStatus,                                                                          \
    (const void* data, size_t count, int type, int peer, NcclComm comm, CUstream stream))                  \
  X(receive, "ncclRecv", NcclStatus,                                                                       \
    (void* data, size_t count, int type, int peer, NcclComm comm, CUstream stream))

struct NcclLibrary {
#define VERBENA_MEMBER(member, name, result, parameters) result(*member) parameters = nullptr;
  VERBENA_TOOLS_NCCL(VERBENA_MEMBER)
#undef VERBENA_MEMBER

  // Throws ToolError with the call, NCCL's code and NCCL's last error text.
  void check(NcclStatus status, const char* call) const;
};

// Throws ToolError with the loader's reason. The library stays loaded for the life of the process.
NcclLibrary load_nccl(const std::string& path);

// 22809 -> "2.28.9".
std::string format_nccl_version(int version);

}  // namespace verbena::tools::nccl
