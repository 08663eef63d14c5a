/* Creates contexts of verbena.h over the symmetric memory of NCCL and NVSHMEM, for kernels of
 * verbena/device/backends. The application has loaded and initialised that library. The contexts are ordinary
 * ones: windows, teams, errors and destruction are those of verbena.h, and verbena_last_error() has the reason
 * of a failed call. With VERBENA_SYMM_PATH=rdma every peer is reached by the library's network instead of loads
 * and stores.
 */
#ifndef VERBENA_BACKENDS_H
#define VERBENA_BACKENDS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- libverbena_nccl.so: NCCL, of the version that it was built with (NcclSymmContext) ---- */

struct ncclComm;
/* Creates a context over an NCCL communicator. Collective over the communicator, whose GPU is current. The
 * context has its ranks, uses its all-gather, and takes one symmetric window of it for the heap: `heap_bytes` for
 * windows, and what the teams' words take.
 * @param communicator  outlives the context
 * @param heap_bytes    bytes for windows, the same on all ranks
 * @param context       receives the context, which verbena_context_destroy() frees
 * @return VERBENA_REMOTE_ERROR if members beyond loads and stores need GIN and NCCL does not have it */
VERBENA_API verbena_result verbena_nccl_context_create(struct ncclComm* communicator, size_t heap_bytes,
                                                       verbena_context** context);

/* The same, with a buffer of the application whose own addresses kernels take for symmetric ones. It becomes a
 * window of the communicator; the application may use it otherwise after the context is destroyed.
 * @param buffer        memory of ncclMemAlloc() or another cuMemCreate(), owned by the application
 * @param buffer_bytes  the same on all ranks */
VERBENA_API verbena_result verbena_nccl_context_create_with_buffer(struct ncclComm* communicator,
                                                                   void* buffer, size_t buffer_bytes,
                                                                   size_t heap_bytes,
                                                                   verbena_context** context);

/* ---- libverbena_nvshmem.so: NVSHMEM 3, found in the process by name (NvshmemSymmContext) ---- */

/* Initialises NVSHMEM for the current GPU if the application has not. Collective. A rank is a PE. */
VERBENA_API verbena_result verbena_nvshmem_init(verbena_all_gather all_gather, void* argument, uint32_t rank,
                                                uint32_t count_ranks);
/* Creates a context over all PEs. Collective, with each PE's GPU current. The heap is memory of nvshmem_align()
 * and counts towards NVSHMEM_SYMMETRIC_SIZE. Finalise NVSHMEM after destroying the context. */
VERBENA_API verbena_result verbena_nvshmem_context_create(size_t heap_bytes, verbena_context** context);
/* Prepares a loaded module whose kernels use such contexts. Call once for each module, before its first launch
 * and not during capture. Modules of the application itself are initialised by NVSHMEM.
 * @param module  a CUmodule */
VERBENA_API verbena_result verbena_nvshmem_prepare_module(void* module);

/* ---- For libraries like these ---- */

/* Sets the thread's verbena_last_error() to `text`, and returns `result`. */
VERBENA_API verbena_result verbena_fail(verbena_result result, const char* text);
/* Copies the `bytes_each` bytes at `mine` to the `all` of every rank, in the order of ranks. Collective over the
 * context. The caller owns both buffers.
 * @param bytes_each  the same on all ranks
 * @return VERBENA_REMOTE_ERROR if a rank has failed */
VERBENA_API verbena_result verbena_context_gather(verbena_context* context, const void* mine, void* all,
                                                  size_t bytes_each);
/* The settings VERBENA_TUNING_FILE ("none" and "auto" are no file), VERBENA_OPS_ALGORITHM (a
 * verbena_ops_algorithm) and VERBENA_OPS_CHECK. The text is valid as long as the process. */
typedef struct {
  const char* tuning_file;
  uint32_t algorithm;
  uint32_t checks_calls; /* 1: calls of all ranks are compared */
} verbena_ops_settings;
VERBENA_API verbena_result verbena_get_ops_settings(verbena_ops_settings* settings);
/* Returns whether ranks use loads and stores: 0 if VERBENA_SYMM_PATH is rdma. */
VERBENA_API int verbena_uses_loads_and_stores(void);

#ifdef __cplusplus
}
#endif

#endif
