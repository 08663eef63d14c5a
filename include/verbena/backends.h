/* Contexts of verbena.h over other libraries' symmetric memory, for kernels of verbena/device/backends. The
 * application has the library and its ranks already; nothing of it is initialised twice. What is made is an
 * ordinary context: windows, teams, errors and its end are verbena.h's, and verbena_last_error() says why a
 * call failed. VERBENA_SYMM_PATH=rdma takes loads and stores away, so that every peer is reached by the
 * library's network.
 */
#ifndef VERBENA_BACKENDS_H
#define VERBENA_BACKENDS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- libverbena_nccl.so: NCCL, of the version that it was built with (NcclSymmContext) ---- */

struct ncclComm;
/* Collective over the communicator, whose GPU is current; its ranks are the context's, and its all-gather
 * carries what ranks tell each other. The heap, `heap_bytes` for windows and what the teams' words take, is
 * one symmetric window of the communicator; the communicator outlives the context. Members out of reach of
 * loads and stores need GIN: VERBENA_REMOTE_ERROR where NCCL cannot give it. */
VERBENA_API verbena_result verbena_nccl_context_create(struct ncclComm* communicator, size_t heap_bytes,
                                                       verbena_context** context);

/* The same over a buffer of the application's too, of ncclMemAlloc() or another cuMemCreate(), equally long
 * on all ranks: kernels take its own addresses for symmetric ones. It becomes a window of the communicator,
 * and is the application's again when the context is destroyed. */
VERBENA_API verbena_result verbena_nccl_context_create_with_buffer(struct ncclComm* communicator,
                                                                   void* buffer, size_t buffer_bytes,
                                                                   size_t heap_bytes,
                                                                   verbena_context** context);

/* ---- libverbena_nvshmem.so: NVSHMEM 3, found in the process by name (NvshmemSymmContext) ---- */

/* Collective: initialises NVSHMEM for the current GPU, if the application has not; a rank is a PE. */
VERBENA_API verbena_result verbena_nvshmem_init(verbena_all_gather all_gather, void* argument, uint32_t rank,
                                                uint32_t count_ranks);
/* Collective over all PEs, with the PE's GPU current. The heap is memory of nvshmem_align(), hence part of
 * NVSHMEM_SYMMETRIC_SIZE; NVSHMEM is finalised after the context's end. */
VERBENA_API verbena_result verbena_nvshmem_context_create(size_t heap_bytes, verbena_context** context);
/* Once for each loaded module (CUmodule) with kernels that use such contexts, before its first launch and not
 * while a stream is captured. Modules of the application itself are NVSHMEM's own concern. */
VERBENA_API verbena_result verbena_nvshmem_prepare_module(void* module);

/* ---- For libraries like these ---- */

/* Returns `result`, of which the thread's verbena_last_error() is `text` from now on. */
VERBENA_API verbena_result verbena_fail(verbena_result result, const char* text);
/* Collective over the context: copies the `bytes_each` at `mine` to every rank's `all`, rank 0's first. The
 * caller owns both; all ranks give the same length. VERBENA_REMOTE_ERROR if a rank has failed. */
VERBENA_API verbena_result verbena_context_gather(verbena_context* context, const void* mine, void* all,
                                                  size_t bytes_each);
/* What VERBENA_TUNING_FILE ("none" and "auto" are no file), VERBENA_OPS_ALGORITHM (verbena_ops_algorithm)
 * and VERBENA_OPS_CHECK say. The text stays as long as the process. */
typedef struct {
  const char* tuning_file;
  uint32_t algorithm;
  uint32_t checks_calls; /* 1: calls of all ranks are compared */
} verbena_ops_settings;
VERBENA_API verbena_result verbena_get_ops_settings(verbena_ops_settings* settings);
/* 0: VERBENA_SYMM_PATH is rdma, which takes them away between all ranks. */
VERBENA_API int verbena_uses_loads_and_stores(void);

#ifdef __cplusplus
}
#endif

#endif
