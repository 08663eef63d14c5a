/* Host API for symmetric memory between GPUs. It creates the contexts, windows and teams that kernels pass to
 * the functions of verbena/device/symm.cuh. Kernels access the memory of GPUs on the same host by loads and
 * stores. For the memory of GPUs on other hosts, this library carries out the kernels' operations by RDMA.
 * This is the C API of libverbena.so; verbena.hpp wraps it in C++ objects.
 *
 *   verbena_context_create_from_environment(&context);           // torchrun, mpirun, srun; on every rank
 *   verbena_window_allocate(context, 1 << 20, &window);
 *   const void* device_context = verbena_team_device_context(verbena_team_world(context));  // for kernels
 *   verbena_context_destroy(context);
 *
 * A rank is a process or a thread. A rank without a GPU uses host memory for everything.
 *
 * Threads: all ranks of the context must make the calls marked "collective", in the same order. Each rank
 * makes these calls from one thread at a time, and the context's GPU must be current (cudaSetDevice).
 * Collective calls return within VERBENA_BOOTSTRAP_TIMEOUT_MS even if a rank has exited. All other calls may
 * be made from any thread at any time between a context's creation and its destruction.
 *
 * Errors: a call that fails logs one line and leaves its output parameters unchanged. verbena_last_error()
 * returns the same line. The library reads its settings from the environment (docs/parameters.md) once, in
 * the first call of a process.
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
  VERBENA_SYSTEM_ERROR = 2,     /* a call of the operating system or of the verbs library failed */
  VERBENA_INTERNAL_ERROR = 3,   /* a bug in this library */
  VERBENA_INVALID_ARGUMENT = 4, /* an argument is NULL or out of range */
  VERBENA_INVALID_USAGE = 5,    /* a setting is wrong, a call is out of order, or the ranks' calls differ */
  VERBENA_REMOTE_ERROR = 6,     /* a peer, or the network to the peer, failed */
  VERBENA_TIMEOUT = 7           /* a peer did not respond in time */
} verbena_result;

/* Returns a description of a result code. The string is static. */
VERBENA_API const char* verbena_describe(verbena_result result);
/* Returns the log line of this thread's last failed call, or "" if no call has failed. The string is valid
 * until the thread's next call. */
VERBENA_API const char* verbena_last_error(void);

typedef enum { VERBENA_LOG_WARN = 0, VERBENA_LOG_INFO = 1, VERBENA_LOG_TRACE = 2 } verbena_log_level;
/* Sets the function that receives log lines. By default, the library writes warnings to stderr and drops all
 * other lines.
 * @param sink  called from any thread; NULL restores the default */
VERBENA_API void verbena_set_log(void (*sink)(verbena_log_level level, const char* line));
/* Sets a function that runs pending signal handlers. Python, for example, needs this function, because Python
 * defers signal handlers while a C call runs. While a call on the process's first thread waits for other
 * processes, the library calls `check` several times a second and after each signal.
 * @param check  returns 0 to let the waiting call continue, or another value to end the call with an error.
 *               NULL removes the function */
VERBENA_API void verbena_set_interrupt_check(int (*check)(void));

/* ---- Contexts ---- */

typedef struct verbena_context verbena_context;
typedef struct verbena_window verbena_window;
typedef struct verbena_team verbena_team;
typedef struct verbena_workspace verbena_workspace;

/* Opaque id by which the ranks of a context find each other. One process creates the id, and the application
 * distributes it to all ranks. */
typedef struct {
  uint8_t bytes[128];
} verbena_unique_id;

/* Creates an id. The calling process listens for connections until all ranks have connected to it.
 * @param id  receives the id */
VERBENA_API verbena_result verbena_get_unique_id(verbena_unique_id* id);

/* Creates a context on the calling thread's current GPU. Collective among `count_ranks` ranks.
 * @param id           from verbena_get_unique_id(), the same on all ranks
 * @param rank         0 to count_ranks - 1
 * @param count_ranks  1 to 65536
 * @param context      receives the context; free it with verbena_context_destroy() */
VERBENA_API verbena_result verbena_context_create(const verbena_unique_id* id, uint32_t rank,
                                                  uint32_t count_ranks, verbena_context** context);
/* Creates a context like verbena_context_create(), but reads the rank, the number of ranks and rank 0's
 * address from the environment variables of torchrun, Open MPI, PMI or Slurm. */
VERBENA_API verbena_result verbena_context_create_from_environment(verbena_context** context);
/* An all-gather function of the application. The function copies `bytes_each` bytes from `mine` on each rank
 * to `all` on every rank, in rank order. The function returns 0 on success and any other value on failure. */
typedef int (*verbena_all_gather)(void* argument, const void* mine, void* all, size_t bytes_each);
/* Creates a context like verbena_context_create(), but needs no id. This call and every later collective call
 * of the context exchange data between ranks by the application's all-gather.
 * @param all_gather  called only during collective calls, on the thread that makes the call
 * @param argument    passed to all_gather */
VERBENA_API verbena_result verbena_context_create_from_all_gather(verbena_all_gather all_gather,
                                                                  void* argument, uint32_t rank,
                                                                  uint32_t count_ranks,
                                                                  verbena_context** context);

/* Frees the context with its windows, teams and workspaces. Collective. No kernel on any rank may still be
 * using the context. The call waits for all ranks and for the operations of their kernels, unless the context
 * or a rank has failed. */
VERBENA_API verbena_result verbena_context_destroy(verbena_context* context);

/* Return this process's rank, and the number of ranks. */
VERBENA_API uint32_t verbena_context_rank(const verbena_context* context);
VERBENA_API uint32_t verbena_context_size(const verbena_context* context);
/* Waits until all ranks have made this call. Collective. Does not wait for running kernels. */
VERBENA_API verbena_result verbena_context_barrier(verbena_context* context);
/* Waits until the RDMA operations of all finished kernels of this rank are complete at the peers. After the
 * call, the source memory of puts may be reused. Not collective.
 * @return VERBENA_REMOTE_ERROR if the context fails, which happens at the latest after
 *         VERBENA_SYMM_TIMEOUT_MS without progress;
 *         VERBENA_INVALID_USAGE if the context uses another library's heap, but loads and stores do not
 *         reach all ranks; call that library's quiet function instead */
VERBENA_API verbena_result verbena_context_quiet(verbena_context* context);
/* Checks whether the context or one of its teams has failed. Reads GPU memory, which takes a few
 * microseconds.
 * @param text    receives the reason, truncated to `length` bytes including the terminating NUL; may be NULL
 * @param length  size of `text` in bytes
 * @return VERBENA_SUCCESS if nothing has failed;
 *         VERBENA_REMOTE_ERROR if the context failed because a peer or the network failed;
 *         VERBENA_INVALID_USAGE if the context failed because a kernel passed invalid arguments, or because
 *         verbena_context_abort() was called;
 *         VERBENA_INVALID_ARGUMENT if a team has failed because a member passed invalid arguments to a call;
 *         VERBENA_TIMEOUT if a kernel's wait timed out, on this rank or on a peer. The text names the wait,
 *         the team and the late rank. Until verbena_team_reset(), all waits of this team return immediately
 *         on this rank and on the members that loads and stores reach. Members that only the network reaches
 *         might not be notified */
VERBENA_API verbena_result verbena_context_get_error(verbena_context* context, char* text, size_t length);
/* Fails the context: all current and later waits of this rank's kernels in this context return
 * immediately. */
VERBENA_API void verbena_context_abort(verbena_context* context);

/* ---- Contexts over another library's symmetric memory (docs/add-a-backend.md) ---- */

/* Memory that has two addresses: a symmetric address and, for example, the address of the application's
 * buffer. Kernels may use either address. */
typedef struct {
  const void* begin; /* the second address */
  size_t length_bytes;
  const void* symmetric; /* the symmetric address of the same memory */
} verbena_alias;

/* A heap of this rank. It contains the signal and barrier words of all teams, followed by the windows.
 * `type`, the lengths and `is_world_only` must be the same on all ranks. verbena_context_create_over_heap()
 * copies the arrays. */
typedef struct {
  /* SymmContext::type of the backend. */
  int32_t type;
  /* Address of the heap, aligned to 128 bytes. The caller owns the memory and must not use it before
   * `release` is called. */
  void* begin;
  /* Size of the heap: verbena_heap_words() plus all windows, each rounded up to 512 bytes. */
  size_t length_bytes;
  /* [count_ranks], in bytes. Adding deltas[r] to an address in this rank's heap gives the address at the same
   * offset in rank r's heap. The value is 0 for this rank, and INT64_MIN (kSymmOutOfReach) if loads and
   * stores do not reach rank r. If two ranks reach each other, both must reach the same set of ranks. */
  const int64_t* deltas;
  /* In bytes. Adding multicast_delta to an address of this rank gives the multicast address of all ranks that
   * loads and stores reach. 0 means that the heap has no multicast addresses. A team uses multicast only if
   * it contains all of these ranks. */
  uint64_t multicast_delta;
  /* Values of the data members that the backend's context type adds to SymmContext, aligned to at most 16
   * bytes. The library places them directly after each team's SymmContext. extension_bytes is the size of the
   * derived type minus sizeof(SymmContext), or 0 if the type adds no members. */
  const void* extension;
  size_t extension_bytes;
  /* 1 if the backend's network supports signals and barriers of the world team only. The library then refuses
   * to create other teams, unless all their members reach each other by loads and stores. */
  int32_t is_world_only;
  /* Called once, with `argument`, as the last step of verbena_context_destroy() or of a failed
   * verbena_context_create_over_heap(). May be NULL. */
  void (*release)(void* argument);
  void* argument;
  /* Addresses up to begin + reach_bytes are symmetric, even though memory after the first length_bytes bytes
   * is not part of the heap. 0 means length_bytes. */
  size_t reach_bytes;
  /* Array of count_aliases entries; NULL if there are no aliases. */
  const verbena_alias* aliases;
  size_t count_aliases;
} verbena_heap;

/* Returns the size of the signal and barrier words of all VERBENA_SYMM_TEAMS teams, in bytes, a multiple of
 * 512. Returns 0 if a setting in the environment is wrong. */
VERBENA_API size_t verbena_heap_words(uint32_t count_ranks);
/* Creates a context that allocates its windows from the given heap. Collective. Memory cannot be registered
 * in such a context. Kernels access the memory of other members through the backend's network, unless that
 * memory is mapped. The setting VERBENA_SYMM_TEAMS has an effect; all other settings for memory and paths are
 * ignored. */
VERBENA_API verbena_result verbena_context_create_over_heap(const verbena_heap* heap,
                                                            verbena_all_gather all_gather, void* argument,
                                                            uint32_t rank, uint32_t count_ranks,
                                                            verbena_context** context);

/* ---- Windows: memory that every rank has at the same offset of its heap ---- */

/* Allocates zero-filled GPU memory on every rank. Collective.
 * @param length_bytes  1 or more, the same on all ranks
 * @param window        receives the window; free it with verbena_window_free() */
VERBENA_API verbena_result verbena_window_allocate(verbena_context* context, size_t length_bytes,
                                                   verbena_window** window);
/* Registers GPU memory of the caller as a window. Collective. The caller owns the memory and must keep it
 * until the window is freed.
 *
 * The memory must come from cuMemCreate() with a POSIX file descriptor handle. ncclMemAlloc() and PyTorch's
 * expandable segments allocate such memory. The allocations must have the same size on all ranks, and every
 * rank must register the same range of its allocations. The window maps the memory at a second, symmetric
 * address. Kernels and calls on streams accept both addresses. The symmetric address is faster, because
 * kernels need not look it up in a table.
 *
 * A second registration of the same range of the same allocations returns the same window. Free the window
 * once for each registration. If a rank has mapped different memory at its address since the first
 * registration, all ranks get a new window. The old window keeps the old memory until the old window is
 * freed. Until then, verbena_window_find() finds the old window only by its symmetric address.
 * @param address       this rank's address of the memory; may differ between ranks
 * @param length_bytes  1 or more, the same on all ranks
 * @param window        receives the window; free it with verbena_window_free()
 * @return VERBENA_INVALID_USAGE if the memory does not come from cuMemCreate() with a POSIX file descriptor
 *         handle */
VERBENA_API verbena_result verbena_window_register(verbena_context* context, void* address,
                                                   size_t length_bytes, verbena_window** window);
/* Waits until all operations of finished kernels are complete, then frees the window. Collective. No kernel
 * on any rank may still be using the window. */
VERBENA_API verbena_result verbena_window_free(verbena_window* window);
/* Returns the symmetric address of this rank's memory, for kernels and cudaMemcpy. */
VERBENA_API void* verbena_window_address(const verbena_window* window);
/* Returns the length in bytes. */
VERBENA_API size_t verbena_window_length(const verbena_window* window);
/* Returns the address at which this rank's GPU accesses the window of `rank`, or NULL if loads and stores do
 * not reach that rank. */
VERBENA_API void* verbena_window_peer_address(const verbena_window* window, uint32_t rank);
/* Returns the window that contains `address`, or NULL if no window contains it. The address may be symmetric
 * or registered. */
VERBENA_API verbena_window* verbena_window_find(verbena_context* context, const void* address);

/* ---- Teams: groups of ranks, each with its own signals and barriers ---- */

/* Return the team of all ranks (world), and the team of the ranks that this rank reaches by loads and stores
 * (lsa). The context owns both teams, so do not free them. */
VERBENA_API verbena_team* verbena_team_world(verbena_context* context);
VERBENA_API verbena_team* verbena_team_lsa(verbena_context* context);
/* Splits a team: the members of `parent` with the same color form a new team. Collective over the context.
 * @param parent  NULL on ranks that are not members of the parent
 * @param color   0 or more; if color is negative, this rank joins no team
 * @param key     members are sorted by key, then by rank
 * @param team    receives the team; free it with verbena_team_free(). NULL on ranks that join no team */
VERBENA_API verbena_result verbena_team_split(verbena_context* context, const verbena_team* parent,
                                              int64_t color, int64_t key, verbena_team** team);
/* Creates a team. Collective over the context.
 * @param ranks  [count] world ranks in the order of the team, the same on all members
 * @param count  number of members; 0 on ranks that are not members
 * @param team   receives the team; free it with verbena_team_free(). NULL on ranks that are not members */
VERBENA_API verbena_result verbena_team_create(verbena_context* context, const uint32_t* ranks, size_t count,
                                               verbena_team** team);
/* Resets a team after a wait has timed out. Collective over the context. Waits until the operations of the
 * members' kernels are complete, then clears the team's signals, barriers and failure word. The addresses of
 * the team's device contexts do not change. No kernel on any member may be using the team.
 * @param team  any team, including world and lsa; NULL on ranks that are not members
 * @return VERBENA_INVALID_USAGE if the context has failed, or if some members are reached through NCCL's
 *         network. The host cannot clear signals in NCCL's memory, and cannot wait for signals that are still
 *         in flight. In both cases, create a new context */
VERBENA_API verbena_result verbena_team_reset(verbena_context* context, verbena_team* team);
/* Frees a team. Not collective. No kernel on any member may still be using the team. */
VERBENA_API verbena_result verbena_team_free(verbena_team* team);
/* Return this rank's number in the team, and the number of members. */
VERBENA_API uint32_t verbena_team_rank(const verbena_team* team);
VERBENA_API uint32_t verbena_team_size(const verbena_team* team);
/* Returns the world rank of a member.
 * @param rank  a rank of the team */
VERBENA_API uint32_t verbena_team_world_rank(const verbena_team* team, uint32_t rank);
/* Return the team's SymmContext (verbena/symm_abi.h), which kernels need as an argument. If the context uses
 * another library's heap, the backend's extension follows the SymmContext. The device context is in GPU
 * memory: pass it to kernels as a pointer. The host context is in host memory: pass it to kernels by value,
 * which makes the kernels faster. Both contexts are valid until the team is freed. */
VERBENA_API const void* verbena_team_device_context(const verbena_team* team);
VERBENA_API const void* verbena_team_host_context(const verbena_team* team);

/* ---- Workspaces: signals, barriers and slots for one stream or one purpose ---- */

/* Creates a workspace. Collective over the context. Like a team, a workspace has its own signals, barriers
 * and failure word. It also has slots for the packets of low_latency.cuh. Kernels that run at the same time
 * do not interfere with each other if each uses a different workspace.
 * @param team         the members; may be freed before the workspace. NULL on ranks that are not members.
 *                     These ranks use their workspace only in the collective calls
 * @param slots_bytes  bytes of GPU memory for slots, the same on all ranks; 0 for a workspace without slots.
 *                     The memory is split into 4 * blocks * members slots, and each slot must have at least
 *                     128 bytes
 * @param blocks       number of blocks of the largest grid that uses the workspace, 1 to 512, the same on all
 *                     ranks
 * @param workspace    receives the workspace; free it with verbena_workspace_free(), or by destroying the
 *                     context */
VERBENA_API verbena_result verbena_workspace_create(verbena_context* context, const verbena_team* team,
                                                    size_t slots_bytes, uint32_t blocks,
                                                    verbena_workspace** workspace);
/* Resets a workspace after a wait has timed out, as verbena_team_reset() does for a team, and clears the
 * workspace's slots. Collective over the context. */
VERBENA_API verbena_result verbena_workspace_reset(verbena_workspace* workspace);
/* Waits until all operations of finished kernels are complete, then frees the workspace. Collective over the
 * context. No kernel on any rank may still be using the workspace. */
VERBENA_API verbena_result verbena_workspace_free(verbena_workspace* workspace);
/* Checks whether this workspace has failed. Does not report failures of other teams and workspaces. The
 * parameters are the same as in verbena_context_get_error().
 * @return VERBENA_SUCCESS if the workspace works, or on ranks that are not members;
 *         VERBENA_TIMEOUT if a wait timed out on any member;
 *         VERBENA_INVALID_ARGUMENT if a member passed invalid arguments to a call */
VERBENA_API verbena_result verbena_workspace_get_error(verbena_workspace* workspace, char* text,
                                                       size_t length);
/* Returns the size of one slot in bytes; 0 if the workspace has no slots, or on ranks that are not
 * members. */
VERBENA_API size_t verbena_workspace_slot_bytes(const verbena_workspace* workspace);
/* Return the SymmWorkspace (verbena/symm_abi.h), which kernels need as an argument. A SymmWorkspace begins
 * with a SymmContext, so it may also be passed where a team's context is expected. The device workspace is in
 * GPU memory: pass it to kernels as a pointer. The host workspace is in host memory: pass it to kernels by
 * value. Both structures are valid until the workspace is freed. Return NULL on ranks that are not
 * members. */
VERBENA_API const void* verbena_workspace_device_context(const verbena_workspace* workspace);
VERBENA_API const void* verbena_workspace_host_context(const verbena_workspace* workspace);
/* Returns a team with the same members that uses the workspace's signals and barriers. Pass this team to the
 * calls below and to other calls that take a team. The workspace owns the team. Returns NULL on ranks that
 * are not members. */
VERBENA_API const verbena_team* verbena_workspace_team(const verbena_workspace* workspace);

/* ---- Calls in the order of a stream ---- */

/* Each call enqueues a kernel on `stream` and returns. The kernel calls the corresponding device function:
 * for example, verbena_barrier_on_stream() calls symm_barrier(). `stream` is a cudaStream_t or CUstream of
 * the context's GPU, which must be current. The calls run in order with the stream's other work, and a signal
 * is sent after all earlier puts of the stream. The calls may be captured in a CUDA graph, and are not
 * collective.
 *
 * The first call on a GPU loads the kernel. Loading waits until running kernels have ended, so make the first
 * call before any kernel waits for a peer; otherwise the ranks may deadlock.
 * @return VERBENA_INVALID_ARGUMENT if an argument is invalid;
 *         VERBENA_INVALID_USAGE if the context has no GPU, or if some member can be reached only by another
 *         library's network. If a wait times out, verbena_context_get_error() or
 *         verbena_workspace_get_error() reports it */

/* Makes the stream wait until the streams of all members have reached the barrier. When the stream continues,
 * all earlier puts of the members are complete.
 * @param barrier  0 to 511; streams or kernels that may wait at the same time in the same team must use
 *                 different barriers */
VERBENA_API verbena_result verbena_barrier_on_stream(const verbena_team* team, uint32_t barrier,
                                                     void* stream);
/* Sets a signal of a peer, or adds a value to the signal.
 * @param signal     0 to 255
 * @param peer       a rank of the team
 * @param operation  0 sets the signal to `value`, 1 adds `value`, 2 adds 1 (SymmSignalOperation) */
VERBENA_API verbena_result verbena_signal_on_stream(const verbena_team* team, uint32_t signal, uint32_t peer,
                                                    uint64_t value, int operation, void* stream);
/* Makes the stream wait until a signal of this rank satisfies a comparison with `value`.
 * @param signal   0 to 255
 * @param compare  1 ==, 2 !=, 3 >, 4 >=, 5 <, 6 <= (SymmCompare); the comparison is signed, and the signal is
 *                 the left operand */
VERBENA_API verbena_result verbena_wait_on_stream(const verbena_team* team, uint32_t signal, int compare,
                                                  int64_t value, void* stream);
/* Copies bytes to a peer.
 * @param destination   address in a window of this rank; the peer's memory at the same offset is written
 * @param source        GPU memory. If loads and stores do not reach the peer, the source must lie in a window
 *                      and must stay unchanged until verbena_quiet_on_stream() or a barrier
 * @param length_bytes  bytes to copy
 * @param peer          a rank of the team */
VERBENA_API verbena_result verbena_put_on_stream(const verbena_team* team, void* destination,
                                                 const void* source, size_t length_bytes, uint32_t peer,
                                                 void* stream);
/* One of the copies that verbena_put_pieces_on_stream() makes. The members are arguments of
 * verbena_put_on_stream(). */
typedef struct {
  void* destination;
  const void* source;
  size_t length_bytes;
} verbena_piece;
/* Copies pieces to a peer. Each kernel copies up to 16 pieces. A later verbena_signal_on_stream() on the same
 * stream takes effect after all pieces have arrived. If any argument is invalid, nothing is enqueued.
 * @param pieces  `count` pieces in host memory, copied by the call; must not overlap at the peer
 * @param count   number of pieces; if it is 0, the call does nothing
 * @param peer    a rank of the team */
VERBENA_API verbena_result verbena_put_pieces_on_stream(const verbena_team* team, const verbena_piece* pieces,
                                                        size_t count, uint32_t peer, void* stream);
/* Copies bytes from a peer. Later work of the stream sees the bytes.
 * @param destination   GPU memory; must lie in a window if loads and stores do not reach the peer
 * @param source        address in a window of this rank; the peer's memory at the same offset is read
 * @param length_bytes  bytes to copy
 * @param peer          a rank of the team */
VERBENA_API verbena_result verbena_get_on_stream(const verbena_team* team, void* destination,
                                                 const void* source, size_t length_bytes, uint32_t peer,
                                                 void* stream);
/* Makes the stream wait until all earlier puts, gets and signals of this rank are complete at all peers. */
VERBENA_API verbena_result verbena_quiet_on_stream(const verbena_team* team, void* stream);

/* ---- Pools: window memory for the allocator of a framework ---- */

/* A pool allocates memory from a window, so the memory is symmetric without registration. Each pool has an
 * index n and two functions with the signatures that PyTorch's CUDAPluggableAllocator expects. The framework
 * looks up the two functions in libverbena.so by name:
 *
 *   void* verbena_pool_allocate_n(ssize_t length_bytes, int gpu, cudaStream_t stream);
 *   void verbena_pool_release_n(void* address, ssize_t length_bytes, int gpu, cudaStream_t stream);
 *
 * The two functions are not collective and do not wait. Any thread may call them. verbena_pool_allocate_n()
 * returns NULL if the pool is full or if `gpu` is not the pool's GPU. A tensor has the same offset on all
 * ranks if all ranks allocate and free the same sizes in the same order. */
typedef struct verbena_pool verbena_pool;
/* Creates a pool with a window of `length_bytes`. Collective. A process can have up to 8 pools.
 * @param pool  receives the pool; free it with verbena_pool_free() */
VERBENA_API verbena_result verbena_pool_create(verbena_context* context, size_t length_bytes,
                                               verbena_pool** pool);
/* Frees the pool and its window. Collective. No kernel may still be using the pool's memory, and no allocator
 * may still call the pool's two functions. */
VERBENA_API verbena_result verbena_pool_free(verbena_pool* pool);
/* Checks that all ranks have made the same allocations. Collective.
 * @return VERBENA_INVALID_USAGE if the ranks' allocations differ, because the same offset may then belong to
 *         different tensors on different ranks */
VERBENA_API verbena_result verbena_pool_check(verbena_pool* pool);
/* Returns the index n in the names of the pool's two functions. */
VERBENA_API uint32_t verbena_pool_index(const verbena_pool* pool);
/* Returns the pool's window, which the pool owns. */
VERBENA_API verbena_window* verbena_pool_window(const verbena_pool* pool);
/* Returns the largest number of bytes that have been in use at the same time. */
VERBENA_API size_t verbena_pool_max_used(verbena_pool* pool);

#ifdef __cplusplus
}
#endif

#endif
