/* Creates contexts over the symmetric memory of NCCL or NVSHMEM, for kernels that use
 * verbena/device/backends. The application must have loaded and initialised NCCL or NVSHMEM. The calls of
 * verbena.h work on these contexts, and on their windows and teams. With VERBENA_SYMM_PATH=rdma, kernels
 * reach all peers over the network of NCCL or NVSHMEM instead of by loads and stores.
 */
#ifndef VERBENA_BACKENDS_H
#define VERBENA_BACKENDS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- libverbena_nccl.so: NCCL, in the version with which the library was built (NcclSymmContext) ---- */

struct ncclComm;
/* Creates a context with the ranks of an NCCL communicator. Collective over the communicator, whose GPU must
 * be current. The context exchanges data by the communicator's all-gather. The context's heap is one
 * symmetric window of the communicator, with heap_bytes bytes plus the size of the teams' signal and barrier
 * words.
 * @param communicator  must outlive the context
 * @param heap_bytes    bytes for windows, the same on all ranks
 * @param context       receives the context; free it with verbena_context_destroy()
 * @return VERBENA_REMOTE_ERROR if loads and stores do not reach all ranks and NCCL has no GIN (GPU-initiated
 *         networking) */
VERBENA_API verbena_result verbena_nccl_context_create(struct ncclComm* communicator, size_t heap_bytes,
                                                       verbena_context** context);

/* Creates a context like verbena_nccl_context_create(), and includes a buffer of the application in the
 * context. The buffer is registered as a window of the communicator, and kernels may use addresses in the
 * buffer as symmetric addresses.
 * @param buffer        memory from ncclMemAlloc() or cuMemCreate(), owned by the application, which must keep
 *                      it until the context is destroyed
 * @param buffer_bytes  size of the buffer, the same on all ranks */
VERBENA_API verbena_result verbena_nccl_context_create_with_buffer(struct ncclComm* communicator,
                                                                   void* buffer, size_t buffer_bytes,
                                                                   size_t heap_bytes,
                                                                   verbena_context** context);

/* ---- libverbena_nvshmem.so: NVSHMEM 3, looked up in the process by name (NvshmemSymmContext) ---- */

/* Initialises NVSHMEM for the current GPU, unless the application has already done so. Collective. Rank r
 * becomes PE r. */
VERBENA_API verbena_result verbena_nvshmem_init(verbena_all_gather all_gather, void* argument, uint32_t rank,
                                                uint32_t count_ranks);
/* Creates a context over all PEs. Collective; on each PE, the PE's GPU must be current. The heap is allocated
 * by nvshmem_align() and counts towards NVSHMEM_SYMMETRIC_SIZE. Destroy the context before finalising
 * NVSHMEM.
 * @param heap_bytes  bytes for windows, the same on all ranks
 * @param context     receives the context; free it with verbena_context_destroy() */
VERBENA_API verbena_result verbena_nvshmem_context_create(size_t heap_bytes, verbena_context** context);
/* Initialises NVSHMEM's device state in a module that was loaded at run time, so that the module's kernels
 * can use NVSHMEM contexts. Call this function once per module, before the first launch of a kernel of the
 * module, and not during graph capture. Modules that are linked into the application need no call, because
 * NVSHMEM itself initialises them.
 * @param module  a CUmodule */
VERBENA_API verbena_result verbena_nvshmem_prepare_module(void* module);

/* ---- For the backends' and collectives' libraries ---- */

/* Sets this thread's verbena_last_error() to `text`, and returns `result`. */
VERBENA_API verbena_result verbena_fail(verbena_result result, const char* text);
/* All-gather: every rank gets `bytes_each` bytes from each rank, in rank order. Collective over the context.
 * @param mine        bytes_each bytes of this rank
 * @param all         receives bytes_each bytes from each rank
 * @param bytes_each  the same on all ranks
 * @return VERBENA_REMOTE_ERROR if a rank has failed */
VERBENA_API verbena_result verbena_context_gather(verbena_context* context, const void* mine, void* all,
                                                  size_t bytes_each);
/* The settings of the collectives. */
typedef struct {
  const char* tuning_file; /* VERBENA_TUNING_FILE; "" if it is "none" or "auto". A static string */
  uint32_t algorithm;      /* VERBENA_OPS_ALGORITHM, a verbena_ops_algorithm */
  uint32_t checks_calls;   /* VERBENA_OPS_CHECK; 1 if the ranks compare the arguments of each call */
} verbena_ops_settings;
VERBENA_API verbena_result verbena_get_ops_settings(verbena_ops_settings* settings);
/* Returns 1 if ranks may access each other's memory by loads and stores, or 0 if VERBENA_SYMM_PATH is
 * rdma. */
VERBENA_API int verbena_uses_loads_and_stores(void);

#ifdef __cplusplus
}
#endif

#endif
