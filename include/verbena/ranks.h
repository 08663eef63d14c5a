/* Lets the ranks of a job find each other and exchange bytes between hosts, without GPUs: groups and message
 * queues are set up over it. C, for libverbena.so.
 *
 * Threads: verbena_ranks_* calls are collective unless marked otherwise; one thread a rank at a time makes them.
 * Errors: each call returns within its timeout, or as soon as a rank fails or leaves, and the error names that
 * rank. After an error every later call fails too. With VERBENA_JOB_KEY_FILE, connections prove the job's key.
 */
#ifndef VERBENA_RANKS_H
#define VERBENA_RANKS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_ranks verbena_ranks;

/* How the ranks find each other. */
typedef struct {
  const char* host;     /* of rank 0; NULL: from the launcher's variables (torchrun, Open MPI, PMI, Slurm) */
  uint16_t port;        /* TCP port at which rank 0 listens; with `host` */
  uint32_t count_ranks; /* 0: rank and number of ranks are the launcher's too */
  uint32_t rank;
  int64_t timeout_ms; /* of this and of each later call, milliseconds; 0: VERBENA_BOOTSTRAP_TIMEOUT_MS */
} verbena_ranks_options;

/* Returns a text of at most 128 characters that is equal for processes that can share memory: the same kernel,
 * network namespace and VERBENA_HOSTID. Not collective.
 * @param text    receives the text, truncated to `length` bytes including its terminating zero
 * @param length  bytes */
VERBENA_API verbena_result verbena_identify_host(char* text, size_t length);

/* Joins the job's ranks, and returns once all have joined.
 * @param ranks  receives a handle, which verbena_ranks_leave() frees */
VERBENA_API verbena_result verbena_ranks_join(const verbena_ranks_options* options, verbena_ranks** ranks);
VERBENA_API uint32_t verbena_ranks_rank(const verbena_ranks* ranks);
VERBENA_API uint32_t verbena_ranks_count(const verbena_ranks* ranks);
/* Copies the `bytes_each` bytes at `mine` to the `all` of every rank, in the order of ranks.
 * @param all  receives bytes_each bytes of each rank */
VERBENA_API verbena_result verbena_ranks_all_gather(verbena_ranks* ranks, const void* mine, void* all,
                                                    size_t bytes_each);
/* Waits for all ranks. */
VERBENA_API verbena_result verbena_ranks_barrier(verbena_ranks* ranks);
/* Closes the connections and frees the handle. Not collective. NULL is allowed. */
VERBENA_API void verbena_ranks_leave(verbena_ranks* ranks);

/* ---- Between two ranks ---- */

/* Messages of any length between any two ranks. Messages of one rank with one tag arrive in the order in
 * which it sent them. A caller proves the job's key or, in a job without one, the secret in the address that
 * the called rank published. Any thread may call, until verbena_pairs_close(). */
typedef struct verbena_pairs verbena_pairs;

/* Opaque. Contains a secret: give it to the job's ranks only. */
typedef struct {
  uint8_t bytes[128];
} verbena_pairs_address;

/* Opens this rank's end, which listens for the other ranks. Not collective.
 * @param address  an IP address of this host in numeric form, at which the other ranks connect; NULL: the address
 *                 of VERBENA_SOCKET_IFNAME
 * @param pairs    receives a handle, which verbena_pairs_close() frees */
VERBENA_API verbena_result verbena_pairs_open(uint32_t rank, uint32_t count_ranks, const char* address,
                                              verbena_pairs** pairs);
/* Returns the address to publish to the other ranks. */
VERBENA_API verbena_result verbena_pairs_get_address(const verbena_pairs* pairs,
                                                     verbena_pairs_address* address);
/* Gives the addresses of all ranks; call it before the first message.
 * @param all  [count_ranks] addresses, in the order of ranks; copied */
VERBENA_API verbena_result verbena_pairs_connect(verbena_pairs* pairs, const verbena_pairs_address* all);
/* Sends a message. Returns when the operating system has all of it; receives messages of other ranks meanwhile.
 * @param timeout_ms  milliseconds
 * @return VERBENA_REMOTE_ERROR: the rank has left */
VERBENA_API verbena_result verbena_pairs_send(verbena_pairs* pairs, uint32_t to, uint64_t tag,
                                              const void* data, size_t length, int64_t timeout_ms);

typedef struct {
  const void* data; /* valid until verbena_pairs_release(); aligned as by malloc() */
  size_t length;    /* bytes */
  void* owner;
} verbena_pairs_message;

/* Receives the next message of a rank with a tag.
 * @param timeout_ms  milliseconds
 * @param message     receives the message, which the caller releases
 * @return VERBENA_REMOTE_ERROR: the rank has left, and all messages that it sent with this tag were received */
VERBENA_API verbena_result verbena_pairs_receive(verbena_pairs* pairs, uint32_t from, uint64_t tag,
                                                 int64_t timeout_ms, verbena_pairs_message* message);
/* Frees the memory of a message. */
VERBENA_API void verbena_pairs_release(verbena_pairs_message* message);
/* Closes this rank's end. Not collective. No other thread may be in a call. NULL is allowed. */
VERBENA_API void verbena_pairs_close(verbena_pairs* pairs);

#ifdef __cplusplus
}
#endif

#endif
