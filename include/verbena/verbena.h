/* Symmetric memory between GPUs, on the host: contexts, windows and teams for the kernels of
 * verbena/device/symm.cuh. Where GPUs share a host, kernels load and store in each other's memory; to all
 * others this library carries what kernels ask for by RDMA. C, for libverbena.so; verbena.hpp has the same as
 * C++ objects.
 *
 * A rank is a process or a thread with a GPU of its own, or without any GPU: then all memory is the host's.
 * Calls marked "collective" are made by all ranks of the context, in the same order, by one thread a rank at
 * a time, with the context's GPU current (cudaSetDevice); they return within VERBENA_BOOTSTRAP_TIMEOUT_MS
 * even if a rank is gone. All others may be called from any thread at any time between a context's creation
 * and its destruction.
 *
 * Settings come from the environment (docs/parameters.md), read once, by the first call of a process.
 */
#ifndef VERBENA_VERBENA_H
#define VERBENA_VERBENA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VERBENA_API __attribute__((visibility("default")))

/* What a call returns. */
typedef enum {
  VERBENA_SUCCESS = 0,
  VERBENA_CUDA_ERROR = 1,       /* a CUDA call failed */
  VERBENA_SYSTEM_ERROR = 2,     /* the operating system or the verbs library refused */
  VERBENA_INTERNAL_ERROR = 3,   /* a fault of this library */
  VERBENA_INVALID_ARGUMENT = 4, /* a pointer or number of the caller's */
  VERBENA_INVALID_USAGE = 5,    /* a setting, a call out of order, or ranks that do not call alike */
  VERBENA_REMOTE_ERROR = 6,     /* a peer, or the way to it */
  VERBENA_TIMEOUT = 7           /* a peer did not come in time */
} verbena_result;

/* Static text. */
VERBENA_API const char* verbena_describe(verbena_result result);
/* What the last call of this thread that failed said, one line; empty if none did. Valid until the thread's
 * next call. */
VERBENA_API const char* verbena_last_error(void);

typedef enum { VERBENA_LOG_WARN = 0, VERBENA_LOG_INFO = 1, VERBENA_LOG_TRACE = 2 } verbena_log_level;
/* Lines go there instead of (warnings only) to stderr, from any thread; null: to stderr again. */
VERBENA_API void verbena_set_log(void (*sink)(verbena_log_level level, const char* line));
/* For interpreters, whose handlers of signals run between two steps of the interpreter only: `check` runs
 * them. Calls of the process's first thread that wait for other processes call it after each signal and
 * several times a second, and end early, with an error, when it does not return 0. Null: no check. */
VERBENA_API void verbena_set_interrupt_check(int (*check)(void));

/* ---- Contexts ---- */

typedef struct verbena_context verbena_context;
typedef struct verbena_window verbena_window;
typedef struct verbena_team verbena_team;
typedef struct verbena_workspace verbena_workspace;

/* By which ranks find each other; opaque. One process makes it, the application carries it to all ranks. */
typedef struct {
  uint8_t bytes[128];
} verbena_unique_id;

/* The maker's process serves as meeting point until all ranks have come. */
VERBENA_API verbena_result verbena_get_unique_id(verbena_unique_id* id);

/* Collective among `count_ranks` ranks, 1 to 65536. On the calling thread's current GPU. */
VERBENA_API verbena_result verbena_context_create(const verbena_unique_id* id, uint32_t rank,
                                                  uint32_t count_ranks, verbena_context** context);
/* The same, with rank, count and meeting point from the variables of torchrun, Open MPI, PMI or Slurm. */
VERBENA_API verbena_result verbena_context_create_from_environment(verbena_context** context);
/* The same over the application's own all-gather: copies the `bytes_each` at `mine` to every rank's `all`,
 * rank 0's first; returns 0, or anything else for failure. Called by this and by every collective call. */
typedef int (*verbena_all_gather)(void* argument, const void* mine, void* all, size_t bytes_each);
VERBENA_API verbena_result verbena_context_create_from_all_gather(verbena_all_gather all_gather,
                                                                  void* argument, uint32_t rank,
                                                                  uint32_t count_ranks,
                                                                  verbena_context** context);

/* Frees it with its windows and teams, and memory of the GPU with them. Collective, unless the context or a
 * rank has failed: waits for all ranks to come here, and for what their kernels asked for to be complete. No
 * kernel uses it any more. */
VERBENA_API verbena_result verbena_context_destroy(verbena_context* context);

VERBENA_API uint32_t verbena_context_rank(const verbena_context* context);
VERBENA_API uint32_t verbena_context_size(const verbena_context* context);
/* Collective: a barrier of the host's. */
VERBENA_API verbena_result verbena_context_barrier(verbena_context* context);
/* Returns when all is complete at the peers that this rank's kernels asked NICs for, of kernels that have
 * ended: registered memory that puts read is the caller's again. Not collective. VERBENA_REMOTE_ERROR when
 * the context fails meanwhile, at the latest after VERBENA_SYMM_TIMEOUT_MS without progress.
 * VERBENA_INVALID_USAGE over another library's heap with ranks out of reach: that library's own calls tell.
 */
VERBENA_API verbena_result verbena_context_quiet(verbena_context* context);
/* VERBENA_SUCCESS, or why waits of this rank's kernels end: VERBENA_REMOTE_ERROR when a peer or the network
 * failed, VERBENA_INVALID_USAGE when a kernel passed invalid arguments or the context was aborted; then the
 * context has failed. VERBENA_TIMEOUT when a wait in a kernel of this rank or of a peer ended by time: the
 * text says which, of which team, and for whom; all waits of that team end then, at all members that loads
 * and stores reach and at others where there was room to tell them, until verbena_team_reset(). The text, cut
 * to `length` bytes with its zero, goes to `text`, which may be null. Takes some microseconds, as it reads
 * memory of the GPU. */
VERBENA_API verbena_result verbena_context_get_error(verbena_context* context, char* text, size_t length);
/* Ends all waits of this rank's kernels in this context, those to come too. */
VERBENA_API void verbena_context_abort(verbena_context* context);

/* ---- Contexts over another library's symmetric memory (docs/add-a-backend.md) ---- */

/* Memory that kernels are given by another address than the symmetric one, such as an application's buffer.
 */
typedef struct {
  const void* begin;
  size_t length_bytes;
  const void* symmetric;
} verbena_alias;

/* A rank's heap: at its begin the teams' words, behind them the windows. `type`, lengths and `is_world_only`
 * are the same on all ranks. What is pointed to is read by the call, but for the heap itself. */
typedef struct {
  /* SymmContext::type, the backend's. */
  int32_t type;
  /* At a multiple of 128 bytes. The caller's, who leaves it alone until `release`. */
  void* begin;
  /* verbena_heap_words() and the windows, each rounded up to 512. */
  size_t length_bytes;
  /* [count_ranks]: from an address of ours to the rank's, in bytes, 0 to our own. INT64_MIN
   * (kSymmOutOfReach): loads and stores do not lead there. Ranks in reach of each other reach the same ranks.
   */
  const int64_t* deltas;
  /* From an address of ours to that of all ranks in reach at once; 0: none. For teams with all of them. */
  uint64_t multicast_delta;
  /* What a structure that derives from SymmContext adds to it, put directly behind each team's; aligned to 16
   * bytes at most. Its length: the structure's without sizeof(SymmContext); 0: nothing is added. */
  const void* extension;
  size_t extension_bytes;
  /* 1: the network knows the world's words alone: other teams with members out of reach are refused. */
  int32_t is_world_only;
  /* Called once with `argument`, as the last step of the call that destroys the context or could not make it.
   * Null: nothing to do. */
  void (*release)(void* argument);
  void* argument;
  /* Memory behind the heap that is at the same place of all ranks too, but no part of it: addresses up to
   * begin + reach_bytes are symmetric. 0: length_bytes. */
  size_t reach_bytes;
  /* [count_aliases]; null: none. */
  const verbena_alias* aliases;
  size_t count_aliases;
} verbena_heap;

/* Bytes that the words of all teams (VERBENA_SYMM_TEAMS) take, a multiple of 512. 0: a setting is wrong. */
VERBENA_API size_t verbena_heap_words(uint32_t count_ranks);
/* Collective. The heap in place of memory of our own: windows are parts of it, memory of the caller's cannot
 * be registered, and members out of reach are reached by the backend's network alone. Of the settings of
 * memory and path only VERBENA_SYMM_TEAMS counts. */
VERBENA_API verbena_result verbena_context_create_over_heap(const verbena_heap* heap,
                                                            verbena_all_gather all_gather, void* argument,
                                                            uint32_t rank, uint32_t count_ranks,
                                                            verbena_context** context);

/* ---- Windows: memory that every rank has at the same place of its heap ---- */

/* Collective; all ranks give the same length, 1 byte or more. Zero-filled memory of the GPU. */
VERBENA_API verbena_result verbena_window_allocate(verbena_context* context, size_t length_bytes,
                                                   verbena_window** window);
/* Collective. Memory that the caller has allocated and keeps until the window is freed: GPU memory of
 * cuMemCreate with a POSIX file descriptor (ncclMemAlloc, PyTorch's expandable segments), the same part of an
 * allocation of the same length on all ranks; other memory is refused with VERBENA_INVALID_USAGE. The
 * window's address is a second one of the same memory; kernels and calls on streams take either for the
 * symmetric one, the window's in fewer steps. The same range of the same allocations again gives the same
 * window, which is then freed as often. If any rank has other memory at its address by now, all ranks get a
 * new window; the old one keeps the old memory until it is freed, and is found by its own address alone. */
VERBENA_API verbena_result verbena_window_register(verbena_context* context, void* address,
                                                   size_t length_bytes, verbena_window** window);
/* Collective. No kernel of any rank uses it any more; what such kernels asked for is waited for. */
VERBENA_API verbena_result verbena_window_free(verbena_window* window);
/* This rank's memory of it: the symmetric address, for kernels and cudaMemcpy. */
VERBENA_API void* verbena_window_address(const verbena_window* window);
VERBENA_API size_t verbena_window_length(const verbena_window* window);
/* Where loads and stores of this rank's GPU find the window of `rank`; null: out of reach. */
VERBENA_API void* verbena_window_peer_address(const verbena_window* window, uint32_t rank);
/* The window that the address, or a registered one, lies in; null: none. */
VERBENA_API verbena_window* verbena_window_find(verbena_context* context, const void* address);

/* ---- Teams: ranks with signals and barriers of their own ---- */

/* All ranks; and those that this rank's loads and stores reach. The context's: never freed by the caller. */
VERBENA_API verbena_team* verbena_team_world(verbena_context* context);
VERBENA_API verbena_team* verbena_team_lsa(verbena_context* context);
/* Collective over the context. Members of `parent` with the same color, 0 or more, become a team, in the
 * order of their keys, then of their ranks. Null for a negative color, and for a rank whose `parent` is null.
 */
VERBENA_API verbena_result verbena_team_split(verbena_context* context, const verbena_team* parent,
                                              int64_t color, int64_t key, verbena_team** team);
/* Collective over the context. Members give the same ranks of the world in the same order; others none (count
 * 0), and get null. */
VERBENA_API verbena_result verbena_team_create(verbena_context* context, const uint32_t* ranks, size_t count,
                                               verbena_team** team);
/* Collective over the context, also for its own teams: resets a team after a wait of it has ended
 * by time, or for whatever reason. Members give the team, other ranks null. When what kernels asked for is
 * complete, signals, barriers and the failure are 0 as in a new team; addresses stay. No kernel of any member
 * uses the team. VERBENA_INVALID_USAGE if the context has failed, or if members are reached by a network that
 * counts for itself: NCCL's signals are in memory of its own, which nothing of the host clears, and no call
 * of NCCL's waits for signals that peers have sent and that are still on their way. Then only a new context
 * helps. */
VERBENA_API verbena_result verbena_team_reset(verbena_context* context, verbena_team* team);
/* Not collective. No kernel of any member uses it any more. */
VERBENA_API verbena_result verbena_team_free(verbena_team* team);
VERBENA_API uint32_t verbena_team_rank(const verbena_team* team);
VERBENA_API uint32_t verbena_team_size(const verbena_team* team);
/* Of a member in the world. */
VERBENA_API uint32_t verbena_team_world_rank(const verbena_team* team, uint32_t rank);
/* What kernels are given (struct SymmContext of verbena/symm_abi.h, over another library's heap with its
 * extension behind it), valid as long as the team: in memory of the GPU, to be passed as a pointer; and on
 * the host, to be copied into a kernel's arguments, which is faster. */
VERBENA_API const void* verbena_team_device_context(const verbena_team* team);
VERBENA_API const void* verbena_team_host_context(const verbena_team* team);

/* ---- Workspaces: signals, barriers and slots for one stream or one purpose ---- */

/* Collective over the context, with the same `slots_bytes` and `blocks`: members give the team, other ranks
 * null. Kernels that run at the same time, each with a workspace of its own, never meet by accident. It has
 * kSymmSignals signals, barriers of both kinds and a failure word as a team has them; and `slots_bytes`
 * bytes, cut into four slots for each pair of `blocks` blocks and members, for low_latency.cuh (0: none; each
 * slot has 128 bytes or more). Blocks: 1 to 512, as many as the largest grid that uses it. All ranks get a
 * handle; those of no member serve the collective calls alone. The team may be freed before the workspace.
 */
VERBENA_API verbena_result verbena_workspace_create(verbena_context* context, const verbena_team* team,
                                                    size_t slots_bytes, uint32_t blocks,
                                                    verbena_workspace** workspace);
/* Collective over the context: as verbena_team_reset(), and the slots are zero too. For a workspace, a wait
 * of which has ended by time. */
VERBENA_API verbena_result verbena_workspace_reset(verbena_workspace* workspace);
/* Collective over the context. No kernel of any rank uses it any more; what such kernels asked for is waited
 * for. Freed with its context otherwise. */
VERBENA_API verbena_result verbena_workspace_free(verbena_workspace* workspace);
/* VERBENA_TIMEOUT and the text, as verbena_context_get_error(), if a wait of this workspace has ended by time
 * on any member, VERBENA_INVALID_ARGUMENT if a call of a member could not be carried out; what other teams
 * and workspaces wait for does not count. VERBENA_SUCCESS of no member. */
VERBENA_API verbena_result verbena_workspace_get_error(verbena_workspace* workspace, char* text,
                                                       size_t length);
/* Bytes of one slot; 0: there are none, or this rank is no member. */
VERBENA_API size_t verbena_workspace_slot_bytes(const verbena_workspace* workspace);
/* What kernels are given (struct SymmWorkspace of verbena/symm_abi.h), as verbena_team_device_context() and
 * verbena_team_host_context(), valid as long as the workspace. It begins with a team's context, for calls
 * that take one. Null of no member. */
VERBENA_API const void* verbena_workspace_device_context(const verbena_workspace* workspace);
VERBENA_API const void* verbena_workspace_host_context(const verbena_workspace* workspace);
/* The members with the workspace's signals and barriers, for the calls below and whatever else reads a team;
 * the workspace's, valid as long. Null of no member. */
VERBENA_API const verbena_team* verbena_workspace_team(const verbena_workspace* workspace);

/* ---- Calls in the order of a stream ---- */

/* Each enqueues a kernel of the library's own on `stream` (cudaStream_t or CUstream, of the GPU that is
 * current, the context's) and returns; legal while the stream is captured. They do what symm_barrier(),
 * symm_signal() and so on do in a kernel, and are ordered with the stream's other work: a signal is behind
 * all that the stream has put. Not collective. The first call on a GPU loads the kernel, which waits for
 * kernels that run: make it before any waits for a peer. Invalid arguments are reported at once
 * (VERBENA_INVALID_ARGUMENT; VERBENA_INVALID_USAGE without a GPU, or for members that only another library's
 * network reaches); a wait that timed out by verbena_context_get_error() or verbena_workspace_get_error().
 */

/* Of the whole team: the members' streams meet, and what they have put is complete. `barrier`: 0 to 511; two
 * streams of a team, or a kernel and a stream, that may meet at the same time use different ones. */
VERBENA_API verbena_result verbena_barrier_on_stream(const verbena_team* team, uint32_t barrier,
                                                     void* stream);
/* `signal`: 0 to 255; `operation`: 0 sets to `value`, 1 adds it, 2 adds 1 (SymmSignalOperation). */
VERBENA_API verbena_result verbena_signal_on_stream(const verbena_team* team, uint32_t signal, uint32_t peer,
                                                    uint64_t value, int operation, void* stream);
/* Until this rank's signal compares so with `value`, signed: 1 ==, 2 !=, 3 >, 4 >=, 5 <, 6 <= (SymmCompare).
 */
VERBENA_API verbena_result verbena_wait_on_stream(const verbena_team* team, uint32_t signal, int compare,
                                                  int64_t value, void* stream);
/* `destination` is in a window, by this rank's address of it; so is `source`, where loads and stores do not
 * reach the peer: then it is in use until verbena_quiet_on_stream() or a barrier. */
VERBENA_API verbena_result verbena_put_on_stream(const verbena_team* team, void* destination,
                                                 const void* source, size_t length_bytes, uint32_t peer,
                                                 void* stream);
/* Back: what comes behind it in the stream has the data. */
VERBENA_API verbena_result verbena_get_on_stream(const verbena_team* team, void* destination,
                                                 const void* source, size_t length_bytes, uint32_t peer,
                                                 void* stream);
/* What this rank has put, got or signaled before is complete at all peers. */
VERBENA_API verbena_result verbena_quiet_on_stream(const verbena_team* team, void* stream);

/* ---- Pools: an allocator of a framework whose memory lies in a window ---- */

/* Tensors of a pool have symmetric addresses: no registration, no second address. A pool takes memory by
 * these two functions, in the form of PyTorch's CUDAPluggableAllocator, from libverbena.so by name: for the
 * pool of number n void* verbena_pool_allocate_n(ssize_t length_bytes, int gpu, cudaStream_t stream); void
 * verbena_pool_release_n(void* address, ssize_t length_bytes, int gpu, cudaStream_t stream); They are not
 * collective and wait for nobody; they may be called from any thread. Null: no room, or another GPU. A tensor
 * has the same place on all ranks if these have allocated and freed alike. */
typedef struct verbena_pool verbena_pool;
/* Collective: a window of `length_bytes` for it. A process has at most 8 pools. */
VERBENA_API verbena_result verbena_pool_create(verbena_context* context, size_t length_bytes,
                                               verbena_pool** pool);
/* Collective. Nobody uses its memory any more, and no allocator calls its functions. */
VERBENA_API verbena_result verbena_pool_free(verbena_pool* pool);
/* Collective. VERBENA_INVALID_USAGE if ranks have not allocated and freed alike so far: then addresses of one
 * rank mean other tensors at another. */
VERBENA_API verbena_result verbena_pool_check(verbena_pool* pool);
VERBENA_API uint32_t verbena_pool_number(const verbena_pool* pool);
VERBENA_API verbena_window* verbena_pool_window(const verbena_pool* pool);
/* The most that was in use at a time, in bytes. */
VERBENA_API size_t verbena_pool_most_used(verbena_pool* pool);

#ifdef __cplusplus
}
#endif

#endif
