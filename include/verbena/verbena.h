/* Symmetric memory between GPUs, on the host: contexts, windows and teams for the kernels of
 * verbena/device/symm.cuh. Kernels load from and store to GPUs of the same host; for GPUs of other hosts this
 * library executes the kernels' operations by RDMA. C, for libverbena.so; verbena.hpp has the same as C++
 * objects.
 *
 *   verbena_context_create_from_environment(&context);           // torchrun, mpirun, srun; on every rank
 *   verbena_window_allocate(context, 1 << 20, &window);
 *   const void* device_context = verbena_team_device_context(verbena_team_world(context));  // for kernels
 *   verbena_context_destroy(context);
 *
 * A rank is a process or a thread. It has a GPU, or none: then all memory is host memory.
 *
 * Threads: all ranks of the context make the calls marked "collective", in the same order, by one thread a
 * rank at a time, with the context's GPU current (cudaSetDevice). Collective calls return within
 * VERBENA_BOOTSTRAP_TIMEOUT_MS even if a rank is gone. All other calls may be made from any thread at any time
 * between a context's creation and its destruction.
 *
 * Errors: a call that fails logs one line, which verbena_last_error() also returns. Results that are written
 * through a pointer are unchanged then. Settings come from the environment (docs/parameters.md) and are read
 * once, by the first call of a process.
 */
#ifndef VERBENA_VERBENA_H
#define VERBENA_VERBENA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VERBENA_API __attribute__((visibility("default")))

/* The result of a call. */
typedef enum {
  VERBENA_SUCCESS = 0,
  VERBENA_CUDA_ERROR = 1,       /* a CUDA call failed */
  VERBENA_SYSTEM_ERROR = 2,     /* the operating system or the verbs library refused */
  VERBENA_INTERNAL_ERROR = 3,   /* a bug in this library */
  VERBENA_INVALID_ARGUMENT = 4, /* an argument is NULL or out of range */
  VERBENA_INVALID_USAGE = 5,    /* a wrong setting, a call out of order, or ranks whose calls differ */
  VERBENA_REMOTE_ERROR = 6,     /* a peer, or the network to it, failed */
  VERBENA_TIMEOUT = 7           /* a peer was late */
} verbena_result;

/* Returns a static text for a result. */
VERBENA_API const char* verbena_describe(verbena_result result);
/* Returns the line of the last call of this thread that failed; "" if none did. Valid until the thread's next
 * call. */
VERBENA_API const char* verbena_last_error(void);

typedef enum { VERBENA_LOG_WARN = 0, VERBENA_LOG_INFO = 1, VERBENA_LOG_TRACE = 2 } verbena_log_level;
/* Passes log lines to `sink`, from any thread. Without one, warnings alone go to stderr.
 * @param sink  NULL: stderr again */
VERBENA_API void verbena_set_log(void (*sink)(verbena_log_level level, const char* line));
/* Sets a function that runs pending signal handlers, for interpreters, which run them between two steps only.
 * Calls of the process's first thread that wait for other processes call it after each signal and several
 * times a second.
 * @param check  returns 0 to continue; otherwise the waiting call ends early with an error. NULL: no check */
VERBENA_API void verbena_set_interrupt_check(int (*check)(void));

/* ---- Contexts ---- */

typedef struct verbena_context verbena_context;
typedef struct verbena_window verbena_window;
typedef struct verbena_team verbena_team;
typedef struct verbena_workspace verbena_workspace;

/* Opaque rendezvous id. One process creates it; the application distributes it to all ranks. */
typedef struct {
  uint8_t bytes[128];
} verbena_unique_id;

/* Creates an id. The calling process listens until all ranks have connected to it. */
VERBENA_API verbena_result verbena_get_unique_id(verbena_unique_id* id);

/* Creates a context on the calling thread's current GPU. Collective among `count_ranks` ranks.
 * @param id           of verbena_get_unique_id(), the same on all ranks
 * @param rank         0 to count_ranks - 1
 * @param count_ranks  1 to 65536
 * @param context      receives the context, which verbena_context_destroy() frees */
VERBENA_API verbena_result verbena_context_create(const verbena_unique_id* id, uint32_t rank,
                                                  uint32_t count_ranks, verbena_context** context);
/* The same. Rank, number of ranks and rank 0's address come from the environment variables of torchrun, Open
 * MPI, PMI or Slurm. */
VERBENA_API verbena_result verbena_context_create_from_environment(verbena_context** context);
/* An all-gather of the application's: copies the `bytes_each` bytes at `mine` to the `all` of every rank, in the
 * order of ranks. Returns 0, or another value if it failed. */
typedef int (*verbena_all_gather)(void* argument, const void* mine, void* all, size_t bytes_each);
/* The same over the application's all-gather, which this call and every later collective call use.
 * @param argument  passed to all_gather */
VERBENA_API verbena_result verbena_context_create_from_all_gather(verbena_all_gather all_gather,
                                                                  void* argument, uint32_t rank,
                                                                  uint32_t count_ranks,
                                                                  verbena_context** context);

/* Frees the context with its windows, teams and workspaces. No kernel on any rank may still be using them.
 * Collective: waits for all ranks and for the operations of their kernels, unless the context or a rank has
 * failed. */
VERBENA_API verbena_result verbena_context_destroy(verbena_context* context);

VERBENA_API uint32_t verbena_context_rank(const verbena_context* context);
VERBENA_API uint32_t verbena_context_size(const verbena_context* context);
/* Waits for the host threads of all ranks. Collective. */
VERBENA_API verbena_result verbena_context_barrier(verbena_context* context);
/* Waits until all RDMA operations of this rank's ended kernels are complete at the peers. Afterwards the caller
 * may reuse registered memory that puts read. Not collective.
 * @return VERBENA_REMOTE_ERROR if the context fails, at the latest after VERBENA_SYMM_TIMEOUT_MS without
 *         progress; VERBENA_INVALID_USAGE over another library's heap if ranks are beyond loads and stores:
 *         use that library's own call */
VERBENA_API verbena_result verbena_context_quiet(verbena_context* context);
/* Returns whether kernels of this rank can still wait for peers. Takes a few microseconds: it reads GPU memory.
 * @param text    receives the reason, truncated to `length` bytes including its terminating zero; may be NULL
 * @param length  bytes
 * @return VERBENA_SUCCESS;
 *         VERBENA_REMOTE_ERROR: a peer or the network failed, and the context with it;
 *         VERBENA_INVALID_USAGE: a kernel passed invalid arguments, or the context was aborted; it has failed;
 *         VERBENA_TIMEOUT: a wait in a kernel of this rank or of a peer timed out. The text names the wait, its
 *         team and the late rank. Until verbena_team_reset() all waits of that team end at once, at all members
 *         within loads and stores, and at others that could be notified */
VERBENA_API verbena_result verbena_context_get_error(verbena_context* context, char* text, size_t length);
/* Ends all waits of this rank's kernels in this context, now and later. The context has failed then. */
VERBENA_API void verbena_context_abort(verbena_context* context);

/* ---- Contexts over another library's symmetric memory (docs/add-a-backend.md) ---- */

/* Memory that kernels may also name by a second address, such as an application's buffer: `begin` and the
 * symmetric address of the same memory. */
typedef struct {
  const void* begin;
  size_t length_bytes;
  const void* symmetric;
} verbena_alias;

/* A rank's heap: first the words of all teams, then the windows. `type`, lengths and `is_world_only` are the
 * same on all ranks. The call copies everything but the heap itself. */
typedef struct {
  /* SymmContext::type of the backend. */
  int32_t type;
  /* Aligned to 128 bytes. Owned by the caller, who must not use the memory until `release`. */
  void* begin;
  /* Bytes: verbena_heap_words() and all windows, each rounded up to 512. */
  size_t length_bytes;
  /* [count_ranks]: bytes from an address of this rank to the same address of each rank, 0 for this rank.
   * INT64_MIN (kSymmOutOfReach): loads and stores do not reach that rank. Ranks that reach each other reach the
   * same ranks. */
  const int64_t* deltas;
  /* Bytes from an address of this rank to the multicast address of all ranks that loads and stores reach; 0:
   * none. For teams that contain all of these ranks. */
  uint64_t multicast_delta;
  /* The members that a structure derived from SymmContext adds, placed directly after each team's SymmContext;
   * aligned to at most 16 bytes. extension_bytes is sizeof the structure less sizeof(SymmContext); 0: none. */
  const void* extension;
  size_t extension_bytes;
  /* 1: the network knows the words of the world team alone. Other teams with members beyond loads and stores
   * are refused. */
  int32_t is_world_only;
  /* Called once with `argument`, last, by verbena_context_destroy() or by a failed create. NULL: no call. */
  void (*release)(void* argument);
  void* argument;
  /* Addresses up to begin + reach_bytes are symmetric, though memory after the heap is not part of it. 0:
   * length_bytes. */
  size_t reach_bytes;
  /* [count_aliases]; NULL: none. */
  const verbena_alias* aliases;
  size_t count_aliases;
} verbena_heap;

/* Returns the bytes that the words of all teams (VERBENA_SYMM_TEAMS) take, a multiple of 512; 0 if a setting is
 * wrong. */
VERBENA_API size_t verbena_heap_words(uint32_t count_ranks);
/* Creates a context whose windows are parts of the given heap. Collective. Memory cannot be registered, and the
 * backend's network alone reaches members beyond loads and stores. Of the settings for memory and path only
 * VERBENA_SYMM_TEAMS has an effect. */
VERBENA_API verbena_result verbena_context_create_over_heap(const verbena_heap* heap,
                                                            verbena_all_gather all_gather, void* argument,
                                                            uint32_t rank, uint32_t count_ranks,
                                                            verbena_context** context);

/* ---- Windows: memory that every rank has at the same offset of its heap ---- */

/* Allocates zero-filled GPU memory on every rank. Collective.
 * @param length_bytes  1 or more, the same on all ranks */
VERBENA_API verbena_result verbena_window_allocate(verbena_context* context, size_t length_bytes,
                                                   verbena_window** window);
/* Makes a window of GPU memory that the caller has allocated, owns, and keeps until the window is freed.
 * Collective.
 *
 * The memory is of cuMemCreate with a POSIX file descriptor (ncclMemAlloc, PyTorch's expandable segments), the
 * same part of an allocation of the same length on all ranks. The window maps it at a second address. Kernels
 * and calls on streams take either address for the symmetric one; the window's is faster to translate.
 *
 * Registering the same range of the same allocations again returns the same window, which must then be freed
 * as many times. If any rank meanwhile has other memory at its address, all ranks get a new window; the old one
 * keeps the old memory until it is freed, and verbena_window_find() finds it by its own address alone.
 * @return VERBENA_INVALID_USAGE for other memory */
VERBENA_API verbena_result verbena_window_register(verbena_context* context, void* address,
                                                   size_t length_bytes, verbena_window** window);
/* Frees the window after the operations of ended kernels are complete. Collective. No kernel on any rank may
 * still be using the window. */
VERBENA_API verbena_result verbena_window_free(verbena_window* window);
/* Returns the address of this rank's memory: the symmetric address, for kernels and cudaMemcpy. */
VERBENA_API void* verbena_window_address(const verbena_window* window);
VERBENA_API size_t verbena_window_length(const verbena_window* window);
/* Returns the address at which this rank's GPU loads from and stores to the window of `rank`; NULL if loads and
 * stores do not reach that rank. */
VERBENA_API void* verbena_window_peer_address(const verbena_window* window, uint32_t rank);
/* Returns the window that contains an address, symmetric or registered; NULL if there is none. */
VERBENA_API verbena_window* verbena_window_find(verbena_context* context, const void* address);

/* ---- Teams: groups of ranks, each with its own signals and barriers ---- */

/* Return the team of all ranks, and the team of the ranks that loads and stores reach. The context owns both:
 * do not free them. */
VERBENA_API verbena_team* verbena_team_world(verbena_context* context);
VERBENA_API verbena_team* verbena_team_lsa(verbena_context* context);
/* Splits a team. Collective over the context. Members of `parent` with the same color become a team.
 * @param parent  NULL on ranks that are not members
 * @param color   0 or more; negative: this rank joins no team
 * @param key     orders the members, before their ranks
 * @param team    receives the team, which verbena_team_free() frees; NULL on ranks that join none */
VERBENA_API verbena_result verbena_team_split(verbena_context* context, const verbena_team* parent,
                                              int64_t color, int64_t key, verbena_team** team);
/* Creates a team. Collective over the context.
 * @param ranks  [count] ranks of the world, in the order of the team, the same on all members
 * @param count  0 on ranks that are not members
 * @param team   receives the team, which verbena_team_free() frees; NULL on ranks that are not members */
VERBENA_API verbena_result verbena_team_create(verbena_context* context, const uint32_t* ranks, size_t count,
                                               verbena_team** team);
/* Resets a team, such as after a wait that timed out. Collective over the context, also for the teams that it
 * owns. Waits until the kernels' operations are complete, then clears signals, barriers and the failure, as in
 * a new team; addresses stay. No kernel on any member may be using the team.
 * @param team  NULL on ranks that are not members
 * @return VERBENA_INVALID_USAGE if the context has failed, or if members are reached by NCCL's network: NCCL
 *         keeps signals in its own memory, which the host cannot clear, and has no call that waits for signals
 *         in flight. Create a new context then */
VERBENA_API verbena_result verbena_team_reset(verbena_context* context, verbena_team* team);
/* Frees a team. Not collective. No kernel on any member may still be using the team. */
VERBENA_API verbena_result verbena_team_free(verbena_team* team);
VERBENA_API uint32_t verbena_team_rank(const verbena_team* team);
VERBENA_API uint32_t verbena_team_size(const verbena_team* team);
/* Returns the rank in the world of a member. */
VERBENA_API uint32_t verbena_team_world_rank(const verbena_team* team, uint32_t rank);
/* Return what kernels take: struct SymmContext of verbena/symm_abi.h, followed by the backend's extension over
 * another library's heap. Valid as long as the team. The device context is in GPU memory, to be passed as a
 * pointer; the host context is on the host, to be copied into a kernel's arguments, which is faster. */
VERBENA_API const void* verbena_team_device_context(const verbena_team* team);
VERBENA_API const void* verbena_team_host_context(const verbena_team* team);

/* ---- Workspaces: signals, barriers and slots for one stream or one purpose ---- */

/* Creates a workspace. Collective over the context. Kernels that run at the same time, each with its own
 * workspace, do not interfere. A workspace has kSymmSignals signals, barriers of both kinds and a failure word,
 * as a team has, and slots for low_latency.cuh.
 * @param team         NULL on ranks that are not members, whose workspace serves only the collective calls. The
 *                     team may be freed before the workspace
 * @param slots_bytes  GPU memory, divided into four slots for each pair of block and member, each of 128 bytes
 *                     or more; 0: no slots. The same on all ranks
 * @param blocks       of the largest grid that uses the workspace, 1 to 512. The same on all ranks
 * @param workspace    receives the workspace, which verbena_workspace_free() or its context frees */
VERBENA_API verbena_result verbena_workspace_create(verbena_context* context, const verbena_team* team,
                                                    size_t slots_bytes, uint32_t blocks,
                                                    verbena_workspace** workspace);
/* Resets a workspace after a wait that timed out, as verbena_team_reset() does, and clears its slots. Collective
 * over the context. */
VERBENA_API verbena_result verbena_workspace_reset(verbena_workspace* workspace);
/* Frees the workspace after the operations of ended kernels are complete. Collective over the context. No
 * kernel on any rank may still be using the workspace. */
VERBENA_API verbena_result verbena_workspace_free(verbena_workspace* workspace);
/* Returns whether waits of this workspace timed out, as verbena_context_get_error(); other teams and workspaces
 * have no effect.
 * @return VERBENA_SUCCESS, also on ranks that are not members; VERBENA_TIMEOUT if a wait timed out on any
 *         member; VERBENA_INVALID_ARGUMENT if a call of a member had invalid arguments */
VERBENA_API verbena_result verbena_workspace_get_error(verbena_workspace* workspace, char* text,
                                                       size_t length);
/* Returns the bytes of one slot; 0 if there are none, or on ranks that are not members. */
VERBENA_API size_t verbena_workspace_slot_bytes(const verbena_workspace* workspace);
/* Return what kernels take: struct SymmWorkspace of verbena/symm_abi.h, which begins with a team's context, for
 * calls that take one. As verbena_team_device_context() and verbena_team_host_context(). Valid as long as the
 * workspace; NULL on ranks that are not members. */
VERBENA_API const void* verbena_workspace_device_context(const verbena_workspace* workspace);
VERBENA_API const void* verbena_workspace_host_context(const verbena_workspace* workspace);
/* Returns the team of the members with the workspace's signals and barriers, for the calls below and others
 * that take a team. The workspace owns it. NULL on ranks that are not members. */
VERBENA_API const verbena_team* verbena_workspace_team(const verbena_workspace* workspace);

/* ---- Calls in the order of a stream ---- */

/* Each call enqueues a kernel of this library on `stream` (cudaStream_t or CUstream of the context's GPU, which
 * is current) and returns. Streams: the calls are ordered with the stream's other work; a signal follows all
 * puts of the stream. Capture: the calls may be captured in a CUDA graph. Not collective. They do what
 * symm_barrier(), symm_signal() and so on do in a kernel.
 *
 * The first call on a GPU loads the kernel, which waits for running kernels: make it before any kernel waits
 * for a peer.
 * @return VERBENA_INVALID_ARGUMENT for invalid arguments; VERBENA_INVALID_USAGE without a GPU, or for members
 *         that only another library's network reaches. A wait that timed out is reported by
 *         verbena_context_get_error() or verbena_workspace_get_error() */

/* Waits for the streams of all members; what they have put before is complete afterwards.
 * @param barrier  0 to 511. Two streams of a team, or a kernel and a stream, that may wait at the same time use
 *                 different barriers */
VERBENA_API verbena_result verbena_barrier_on_stream(const verbena_team* team, uint32_t barrier,
                                                     void* stream);
/* Changes a signal of a peer.
 * @param signal     0 to 255
 * @param peer       a rank of the team
 * @param operation  0 sets the signal to `value`, 1 adds `value`, 2 adds 1 (SymmSignalOperation) */
VERBENA_API verbena_result verbena_signal_on_stream(const verbena_team* team, uint32_t signal, uint32_t peer,
                                                    uint64_t value, int operation, void* stream);
/* Waits until a signal of this rank compares with `value`.
 * @param compare  1 ==, 2 !=, 3 >, 4 >=, 5 <, 6 <= (SymmCompare), signed */
VERBENA_API verbena_result verbena_wait_on_stream(const verbena_team* team, uint32_t signal, int compare,
                                                  int64_t value, void* stream);
/* Copies bytes to a peer.
 * @param destination  this rank's address of the peer's memory, in a window
 * @param source       any GPU memory. If loads and stores do not reach the peer, it must be in a window, and
 *                     must stay unchanged until verbena_quiet_on_stream() or a barrier */
VERBENA_API verbena_result verbena_put_on_stream(const verbena_team* team, void* destination,
                                                 const void* source, size_t length_bytes, uint32_t peer,
                                                 void* stream);
/* Copies bytes from a peer. Later work of the stream sees them.
 * @param source  this rank's address of the peer's memory, in a window */
VERBENA_API verbena_result verbena_get_on_stream(const verbena_team* team, void* destination,
                                                 const void* source, size_t length_bytes, uint32_t peer,
                                                 void* stream);
/* Waits until all earlier puts, gets and signals of this rank are complete at all peers. */
VERBENA_API verbena_result verbena_quiet_on_stream(const verbena_team* team, void* stream);

/* ---- Pools: an allocator of a framework whose memory lies in a window ---- */

/* A pool is an allocator in a window: its memory is symmetric without registration. A framework calls it by the
 * two functions of the pool's index n, in the form of PyTorch's CUDAPluggableAllocator, which it finds in
 * libverbena.so by name:
 *
 *   void* verbena_pool_allocate_n(ssize_t length_bytes, int gpu, cudaStream_t stream);
 *   void verbena_pool_release_n(void* address, ssize_t length_bytes, int gpu, cudaStream_t stream);
 *
 * They are not collective, never wait, and may be called from any thread. They return NULL if the pool is full or
 * for another GPU. A tensor has the same offset on all ranks if these have allocated and freed alike. */
typedef struct verbena_pool verbena_pool;
/* Creates a pool with a window of `length_bytes`. Collective. A process has at most 8 pools. */
VERBENA_API verbena_result verbena_pool_create(verbena_context* context, size_t length_bytes,
                                               verbena_pool** pool);
/* Frees the pool and its window. Collective. No kernel may still be using its memory, and no allocator may call
 * its functions any more. */
VERBENA_API verbena_result verbena_pool_free(verbena_pool* pool);
/* Compares what the ranks have allocated. Collective.
 * @return VERBENA_INVALID_USAGE if they have not allocated and freed alike: then an address of one rank belongs
 *         to another tensor on another rank */
VERBENA_API verbena_result verbena_pool_check(verbena_pool* pool);
VERBENA_API uint32_t verbena_pool_index(const verbena_pool* pool);
VERBENA_API verbena_window* verbena_pool_window(const verbena_pool* pool);
/* Returns the max bytes that were in use at a time. */
VERBENA_API size_t verbena_pool_max_used(verbena_pool* pool);

#ifdef __cplusplus
}
#endif

#endif
