/* The ranks of a job that find each other and exchange bytes on the host, without GPUs: what groups and
 * queues are set up over. C, for libverbena.so. All calls are collective and made by one thread a rank at a
 * time; each returns within its time-out, or as soon as a rank fails or goes, and then names it. After an
 * error every further call fails alike. With VERBENA_JOB_KEY_FILE, connections prove the job's key.
 */
#ifndef VERBENA_RANKS_H
#define VERBENA_RANKS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_ranks verbena_ranks;

typedef struct {
  const char* host; /* of rank 0; null: what the launcher's variables say (torchrun, Open MPI, PMI, Slurm) */
  uint16_t port;    /* at which rank 0 awaits the others; with `host` */
  uint32_t count_ranks; /* 0: rank and count are what the launcher says too */
  uint32_t rank;
  int64_t timeout_ms; /* of this and of each call to come; 0: VERBENA_BOOTSTRAP_TIMEOUT_MS */
} verbena_ranks_place;

/* Text of at most 128 letters that is the same for processes that can share memory: one kernel, one network
 * namespace, one VERBENA_HOSTID. Cut to `length` with its zero. */
VERBENA_API verbena_result verbena_identify_host(char* text, size_t length);

/* Returns once all have joined. The caller's until verbena_ranks_leave(). */
VERBENA_API verbena_result verbena_ranks_join(const verbena_ranks_place* place, verbena_ranks** ranks);
VERBENA_API uint32_t verbena_ranks_rank(const verbena_ranks* ranks);
VERBENA_API uint32_t verbena_ranks_count(const verbena_ranks* ranks);
/* Copies the `bytes_each` at `mine` to every rank's `all`, rank 0's first. */
VERBENA_API verbena_result verbena_ranks_all_gather(verbena_ranks* ranks, const void* mine, void* all,
                                                    size_t bytes_each);
VERBENA_API verbena_result verbena_ranks_barrier(verbena_ranks* ranks);
/* Not collective; null is fine. */
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

/* Not collective.
 * `address`: an IP address of this host in figures at which the other ranks connect; NULL: the address of
 * VERBENA_SOCKET_IFNAME. */
VERBENA_API verbena_result verbena_pairs_open(uint32_t rank, uint32_t count_ranks, const char* address,
                                              verbena_pairs** pairs);
VERBENA_API verbena_result verbena_pairs_get_address(const verbena_pairs* pairs,
                                                     verbena_pairs_address* address);
/* Before the first message. `all`: count_ranks addresses, rank 0's first. */
VERBENA_API verbena_result verbena_pairs_connect(verbena_pairs* pairs, const verbena_pairs_address* all);
/* Returns when the operating system has the whole message; messages of other ranks are received meanwhile.
 * VERBENA_REMOTE_ERROR: the rank has left. */
VERBENA_API verbena_result verbena_pairs_send(verbena_pairs* pairs, uint32_t to, uint64_t tag,
                                              const void* data, size_t length, int64_t timeout_ms);

typedef struct {
  const void* data; /* valid until verbena_pairs_release(); aligned as by malloc() */
  size_t length;    /* bytes */
  void* owner;
} verbena_pairs_message;

/* VERBENA_REMOTE_ERROR: the rank has left, and every message that it sent with this tag was received. */
VERBENA_API verbena_result verbena_pairs_receive(verbena_pairs* pairs, uint32_t from, uint64_t tag,
                                                 int64_t timeout_ms, verbena_pairs_message* message);
VERBENA_API void verbena_pairs_release(verbena_pairs_message* message);
/* Not collective. No other thread may be in a call; NULL is allowed. */
VERBENA_API void verbena_pairs_close(verbena_pairs* pairs);

#ifdef __cplusplus
}
#endif

#endif
