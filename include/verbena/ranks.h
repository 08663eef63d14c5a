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

#ifdef __cplusplus
}
#endif

#endif
