/* Connects the ranks of a job over TCP and exchanges bytes between them, without GPUs. Process groups and
 * message queues use this interface for their setup. C API of libverbena.so.
 *
 * Threads: verbena_ranks_* calls are collective unless marked otherwise. On each rank, only one thread at a
 * time may make such a call.
 *
 * Errors: each call returns within its timeout. If a rank fails or leaves, calls on the other ranks return
 * immediately, and the error names that rank. After an error, all later calls fail, too.
 *
 * Security: if VERBENA_JOB_KEY_FILE is set, both ends of a connection must prove that they know the job key.
 */
#ifndef VERBENA_RANKS_H
#define VERBENA_RANKS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_ranks verbena_ranks;

/* Options of verbena_ranks_join(). */
typedef struct {
  const char* host;     /* host of rank 0; if NULL, the host is read from the environment of torchrun, Open
                           MPI, PMI or Slurm */
  uint16_t port;        /* TCP port on which rank 0 listens; ignored if `host` is NULL */
  uint32_t count_ranks; /* number of ranks; if 0, `rank` and the number of ranks are read from the
                           environment, too */
  uint32_t rank;
  int64_t timeout_ms; /* timeout of each call, milliseconds; 0 selects VERBENA_BOOTSTRAP_TIMEOUT_MS */
} verbena_ranks_options;

/* Returns an identifier of the host. Two processes get the same identifier if they can share memory, that is,
 * if they have the same kernel, network namespace and VERBENA_HOSTID. Not collective.
 * @param text    receives the identifier, at most 128 characters, truncated to `length` bytes including the
 *                terminating NUL
 * @param length  size of `text` in bytes */
VERBENA_API verbena_result verbena_identify_host(char* text, size_t length);

/* Joins the job. Returns when all ranks have joined.
 * @param options  copied by the call
 * @param ranks    receives a handle; free it with verbena_ranks_leave() */
VERBENA_API verbena_result verbena_ranks_join(const verbena_ranks_options* options, verbena_ranks** ranks);
/* Return this process's rank, and the number of ranks. */
VERBENA_API uint32_t verbena_ranks_rank(const verbena_ranks* ranks);
VERBENA_API uint32_t verbena_ranks_count(const verbena_ranks* ranks);
/* All-gather: every rank gets `bytes_each` bytes from each rank, in rank order.
 * @param mine        bytes_each bytes of this rank
 * @param all         receives bytes_each bytes from each rank
 * @param bytes_each  the same on all ranks */
VERBENA_API verbena_result verbena_ranks_all_gather(verbena_ranks* ranks, const void* mine, void* all,
                                                    size_t bytes_each);
/* Waits until all ranks have made this call. */
VERBENA_API verbena_result verbena_ranks_barrier(verbena_ranks* ranks);
/* Closes the connections and frees the handle, which may be NULL. Not collective. */
VERBENA_API void verbena_ranks_leave(verbena_ranks* ranks);

/* ---- Between two ranks ---- */

/* Sends and receives messages of any length between any two ranks. Messages from one rank with the same tag
 * arrive in the order in which they were sent. A rank that connects to another rank must prove that it knows
 * the job key. In a job without a key, the connecting rank must prove that it knows the secret in the other
 * rank's address. The calls may be made from any thread, until verbena_pairs_close(). */
typedef struct verbena_pairs verbena_pairs;

/* Opaque address of a rank. The address contains a secret, so distribute it to the ranks of the job only. */
typedef struct {
  uint8_t bytes[128];
} verbena_pairs_address;

/* Opens this rank's end, which listens for connections from the other ranks. Not collective.
 * @param rank         this process's rank, 0 to count_ranks - 1
 * @param count_ranks  the number of ranks
 * @param address      numeric IP address of this host to listen on; NULL selects the address of
 *                     VERBENA_SOCKET_IFNAME
 * @param pairs        receives a handle; free it with verbena_pairs_close() */
VERBENA_API verbena_result verbena_pairs_open(uint32_t rank, uint32_t count_ranks, const char* address,
                                              verbena_pairs** pairs);
/* Returns this rank's address, which the application distributes to the other ranks. */
VERBENA_API verbena_result verbena_pairs_get_address(const verbena_pairs* pairs,
                                                     verbena_pairs_address* address);
/* Sets the addresses of all ranks. Call this function before the first message.
 * @param all  [count_ranks] addresses in rank order; copied */
VERBENA_API verbena_result verbena_pairs_connect(verbena_pairs* pairs, const verbena_pairs_address* all);
/* Sends a message. Returns when all data has been handed to the operating system. While the call waits, it
 * also receives messages from other ranks, so two ranks may send to each other at the same time.
 * @param to          rank of the receiver
 * @param tag         any value; the receiver selects messages by this value
 * @param data        `length` bytes; the memory may be reused after the call
 * @param timeout_ms  milliseconds
 * @return VERBENA_REMOTE_ERROR if the receiver has left; VERBENA_TIMEOUT after timeout_ms */
VERBENA_API verbena_result verbena_pairs_send(verbena_pairs* pairs, uint32_t to, uint64_t tag,
                                              const void* data, size_t length, int64_t timeout_ms);

typedef struct {
  const void* data; /* valid until verbena_pairs_release(); aligned like memory from malloc() */
  size_t length;    /* bytes */
  void* owner;      /* private */
} verbena_pairs_message;

/* Receives the next message from rank `from` with the given tag.
 * @param timeout_ms  milliseconds
 * @param message     receives the message; free it with verbena_pairs_release()
 * @return VERBENA_REMOTE_ERROR if the sender has left and has no more messages with this tag;
 *         VERBENA_TIMEOUT after timeout_ms */
VERBENA_API verbena_result verbena_pairs_receive(verbena_pairs* pairs, uint32_t from, uint64_t tag,
                                                 int64_t timeout_ms, verbena_pairs_message* message);
/* Frees the memory of a message. */
VERBENA_API void verbena_pairs_release(verbena_pairs_message* message);
/* Closes this rank's end and frees the handle, which may be NULL. Not collective. No other thread may be
 * using the handle. */
VERBENA_API void verbena_pairs_close(verbena_pairs* pairs);

#ifdef __cplusplus
}
#endif

#endif
