/* A queue from one writer to many readers, each of which gets every message, in order: over shared memory
 * where a reader is on the writer's host, over TCP elsewhere. Who waits spins as long as it was told to and
 * then sleeps on a futex: idle, neither side takes processor time. C, for libverbena.so.
 *
 * A writer is made, its handle carried to the readers by whatever the application has, each reader attached;
 * all call verbena_queue_wait_until_ready(). A queue is used by one thread at a time, but for
 * verbena_queue_cancel() and verbena_queue_shutdown(). In a forked child its calls give
 * VERBENA_INVALID_USAGE, and to destroy it does nothing. With VERBENA_JOB_KEY_FILE, connections prove the
 * job's key.
 *
 * Time-outs are in milliseconds; -1: none. A wait ends early with VERBENA_TIMEOUT when a signal's handler has
 * run on its thread, so that an interpreter may have its turn. Ends of processes are noticed within
 * milliseconds.
 */
#ifndef VERBENA_MESSAGE_QUEUE_H
#define VERBENA_MESSAGE_QUEUE_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_queue verbena_queue;

/* Opaque; by value to wherever readers are. */
typedef struct {
  uint8_t bytes[128];
} verbena_queue_handle;

typedef struct {
  uint32_t count_readers; /* 1 to 256 */
  uint32_t count_chunks;  /* messages, or parts of one, that may be under way: 2 to 65536 */
  size_t chunk_bytes;     /* longer messages are spread over several; 1 or more */
  int64_t spin_us;        /* how long a wait spins before it sleeps; -1: it never sleeps; above 0 a reader
                             also spins when, by the gap between the last two, a message is due */
  const char*
      address; /* of this host, in figures, at which readers connect; null: of VERBENA_SOCKET_IFNAME */
  const uint32_t* reader_ranks; /* count_readers ranks, by which errors name readers;
                                   VERBENA_QUEUE_ANY_READER, or null: they have none */
} verbena_queue_options;

/* The writer. Memory of count_chunks * chunk_bytes is shared without a name, and filled as it is used. */
VERBENA_API verbena_result verbena_queue_create(const verbena_queue_options* options, verbena_queue** queue);
VERBENA_API verbena_result verbena_queue_get_handle(const verbena_queue* queue, verbena_queue_handle* handle);
/* Where readers connect, as "10.0.0.1:4711" or "[fd00::1]:4711"; cut to `length` with its zero. */
VERBENA_API verbena_result verbena_queue_get_address(const verbena_queue* queue, char* text, size_t length);
#define VERBENA_QUEUE_ANY_READER 0xffffffffu
/* Reader `reader` of the queue, from 0 on, each once; or VERBENA_QUEUE_ANY_READER: the highest that has not
 * come. Returns before it is connected. */
VERBENA_API verbena_result verbena_queue_attach(const verbena_queue_handle* handle, uint32_t reader,
                                                int64_t spin_us, verbena_queue** queue);
/* Returns when the writer and all readers are here. VERBENA_TIMEOUT: who is not is named. -1 stands for
 * VERBENA_BOOTSTRAP_TIMEOUT_MS. */
VERBENA_API verbena_result verbena_queue_wait_until_ready(verbena_queue* queue, int64_t timeout_ms);
/* 1: a reader that shares memory with the writer, or a writer all of whose readers do; 0: not; once ready. */
VERBENA_API int verbena_queue_is_local(const verbena_queue* queue);
/* Pins the ring for direct copies between messages and the current GPU (cudaMemcpyAsync), once ready; on the
 * writer or on a reader that is local. VERBENA_INVALID_USAGE: no GPU is current, or there is no ring. */
VERBENA_API verbena_result verbena_queue_pin(verbena_queue* queue);
/* From any thread, at any time, once or more: readers find the end behind what was written before; a writer
 * learns that a reader has left, and goes on without it. Calls under way in other threads end with
 * VERBENA_INVALID_USAGE before this one returns, and so does every later call, but release, which still gives
 * back messages: a reader leaves with the last of them. The handle stays good until it is destroyed. */
VERBENA_API verbena_result verbena_queue_shutdown(verbena_queue* queue);
/* Shuts down and frees; when no other thread uses the handle. VERBENA_INVALID_USAGE: messages are still held,
 * and nothing was done. */
VERBENA_API verbena_result verbena_queue_destroy(verbena_queue* queue);
/* From any thread: the call under way, or the next one, ends with VERBENA_INVALID_USAGE. */
VERBENA_API void verbena_queue_cancel(verbena_queue* queue);

/* ---- The writer ---- */

typedef struct {
  const void* data; /* any bytes; read by the call */
  size_t length;
} verbena_queue_part;

/* The parts, one after the other, make one message of any length. VERBENA_TIMEOUT: nobody sees the message;
 * the error names the reader that holds the slot, and since when. VERBENA_REMOTE_ERROR: a reader is dead and
 * named; so says each call until it is dropped. */
VERBENA_API verbena_result verbena_queue_enqueue(verbena_queue* queue, const verbena_queue_part* parts,
                                                 size_t count, int64_t timeout_ms);
/* The next chunk, to be filled in place; commit makes a message of its first `length` bytes, at most
 * chunk_bytes. */
VERBENA_API verbena_result verbena_queue_reserve(verbena_queue* queue, int64_t timeout_ms, void** data);
VERBENA_API verbena_result verbena_queue_commit(verbena_queue* queue, size_t length);
/* The queue goes on without that reader. */
VERBENA_API verbena_result verbena_queue_drop_reader(verbena_queue* queue, uint32_t reader);

/* ---- A reader ---- */

typedef struct {
  const void* data; /* in the ring itself if one chunk holds it; the queue's in any case */
  size_t length;
  uint64_t ticket;
} verbena_queue_message;

/* The next message, the caller's to read until it is released; its chunk is not written meanwhile. Several
 * may be held, fewer than there are chunks. VERBENA_TIMEOUT without a line in the log: none came in time.
 * VERBENA_REMOTE_ERROR: the writer has destroyed the queue, or is dead; what it wrote before came first. */
VERBENA_API verbena_result verbena_queue_dequeue(verbena_queue* queue, int64_t timeout_ms,
                                                 verbena_queue_message* message);
/* In any order, each once: VERBENA_INVALID_USAGE for what is not held. */
VERBENA_API verbena_result verbena_queue_release(verbena_queue* queue, uint64_t ticket);

#ifdef __cplusplus
}
#endif

#endif
