/* A queue from one writer to many readers. Each reader gets every message, in order: over shared memory on the
 * writer's host, over TCP on other hosts. A wait spins for spin_us and then sleeps on a futex: an idle queue takes
 * no processor time. C, for libverbena.so.
 *
 * Life: create a writer, send its handle to the readers by any means, attach each reader; all call
 * verbena_queue_wait_until_ready().
 *
 * Threads: one thread at a time uses a queue; only verbena_queue_cancel() and verbena_queue_shutdown() may be called
 * from any thread. In a forked child calls return VERBENA_INVALID_USAGE, and destroying has no effect. With
 * VERBENA_JOB_KEY_FILE, connections prove the job's key.
 *
 * Timeouts are in milliseconds; -1: none. A wait ends early with VERBENA_TIMEOUT when a signal handler has run on
 * its thread, so that an interpreter can react. The end of a process is noticed within milliseconds.
 */
#ifndef VERBENA_MESSAGE_QUEUE_H
#define VERBENA_MESSAGE_QUEUE_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_queue verbena_queue;

/* Opaque; the application copies it to the readers. */
typedef struct {
  uint8_t bytes[128];
} verbena_queue_handle;

typedef struct {
  uint32_t count_readers; /* 1 to 256 */
  uint32_t count_chunks;  /* of the ring: max messages, or parts of one, in flight, 2 to 65536 */
  size_t chunk_bytes;     /* 1 or more; longer messages take several chunks */
  int64_t spin_us;        /* how long a wait spins before it sleeps, microseconds; -1: it never sleeps */
  const char* address; /* numeric, of this host, at which readers connect; NULL: of VERBENA_SOCKET_IFNAME */
  const uint32_t* reader_ranks; /* [count_readers] ranks by which errors name readers;
                                   VERBENA_QUEUE_ANY_READER, or NULL: no rank */
} verbena_queue_options;

/* Creates a writer. The ring takes count_chunks * chunk_bytes of anonymous shared memory, allocated as it is used.
 * @param options  copied
 * @param queue    receives the queue, which verbena_queue_destroy() frees */
VERBENA_API verbena_result verbena_queue_create(const verbena_queue_options* options, verbena_queue** queue);
/* Returns the handle by which readers attach. */
VERBENA_API verbena_result verbena_queue_get_handle(const verbena_queue* queue, verbena_queue_handle* handle);
/* Returns where readers connect, as "10.0.0.1:4711" or "[fd00::1]:4711".
 * @param text    receives the text, truncated to `length` bytes including its terminating zero */
VERBENA_API verbena_result verbena_queue_get_address(const verbena_queue* queue, char* text, size_t length);
#define VERBENA_QUEUE_ANY_READER 0xffffffffu
/* Creates a reader. Returns before it is connected.
 * @param reader   0 to count_readers - 1, each once; VERBENA_QUEUE_ANY_READER: the highest that is still free
 * @param spin_us  how long a wait spins before it sleeps, microseconds; -1: it never sleeps
 * @param queue    receives the queue, which verbena_queue_destroy() frees */
VERBENA_API verbena_result verbena_queue_attach(const verbena_queue_handle* handle, uint32_t reader,
                                                int64_t spin_us, verbena_queue** queue);
/* Waits until the writer and all readers are connected.
 * @param timeout_ms  milliseconds; -1: VERBENA_BOOTSTRAP_TIMEOUT_MS
 * @return VERBENA_TIMEOUT: the error names who is missing */
VERBENA_API verbena_result verbena_queue_wait_until_ready(verbena_queue* queue, int64_t timeout_ms);
/* Returns 1 for a reader that shares memory with the writer, and for a writer all of whose readers do; otherwise 0.
 * Valid once the queue is ready. */
VERBENA_API int verbena_queue_is_local(const verbena_queue* queue);
/* Pins the ring for direct copies between messages and the current GPU (cudaMemcpyAsync), on the writer or on a
 * local reader, once the queue is ready.
 * @return VERBENA_INVALID_USAGE: no GPU is current, or there is no ring */
VERBENA_API verbena_result verbena_queue_pin(verbena_queue* queue);
/* Ends the queue on this side; any thread may call it, at any time, repeatedly. Readers reach the end after the
 * messages that were written before; a writer continues without a reader that has shut down. Calls in progress in
 * other threads end with VERBENA_INVALID_USAGE before this call returns, and all later calls return it, except
 * verbena_queue_release(): a reader leaves when it has released its last message. The handle stays valid until
 * verbena_queue_destroy(). */
VERBENA_API verbena_result verbena_queue_shutdown(verbena_queue* queue);
/* Shuts the queue down and frees it. No other thread may be using the handle.
 * @return VERBENA_INVALID_USAGE: messages are not released yet; nothing was done */
VERBENA_API verbena_result verbena_queue_destroy(verbena_queue* queue);
/* Ends the call in progress, or the next one, with VERBENA_INVALID_USAGE. Any thread may call it. */
VERBENA_API void verbena_queue_cancel(verbena_queue* queue);

/* ---- The writer ---- */

typedef struct {
  const void* data; /* owned by the caller; read by the call */
  size_t length;
} verbena_queue_part;

/* Writes one message, of any length: the concatenated parts.
 * @param parts  [count]
 * @return VERBENA_TIMEOUT: the message was not written; the error names the reader that keeps the slot, and since
 *         when. VERBENA_REMOTE_ERROR: a reader is dead, and the error names it; every call returns it until
 *         verbena_queue_drop_reader() */
VERBENA_API verbena_result verbena_queue_enqueue(verbena_queue* queue, const verbena_queue_part* parts,
                                                 size_t count, int64_t timeout_ms);
/* Reserves the next chunk, which the caller fills in place; commit then writes a message of its first `length`
 * bytes, at most chunk_bytes. Errors are those of verbena_queue_enqueue().
 * @param data  receives the address of the chunk, which the queue owns */
VERBENA_API verbena_result verbena_queue_reserve(verbena_queue* queue, int64_t timeout_ms, void** data);
VERBENA_API verbena_result verbena_queue_commit(verbena_queue* queue, size_t length);
/* Continues without a reader. */
VERBENA_API verbena_result verbena_queue_drop_reader(verbena_queue* queue, uint32_t reader);

/* ---- A reader ---- */

typedef struct {
  const void* data; /* owned by the queue; in the ring itself if the message is in one chunk */
  size_t length;
  uint64_t ticket;
} verbena_queue_message;

/* Takes the next message. The caller may read it until verbena_queue_release(); its chunk is not overwritten
 * meanwhile. Fewer messages than there are chunks may be unreleased.
 * @return VERBENA_TIMEOUT, without a log line: no message came in time. VERBENA_REMOTE_ERROR: the writer has
 *         destroyed the queue or is dead, and all its messages were taken */
VERBENA_API verbena_result verbena_queue_dequeue(verbena_queue* queue, int64_t timeout_ms,
                                                 verbena_queue_message* message);
/* Gives back a message, in any order, each once.
 * @param ticket  verbena_queue_message::ticket
 * @return VERBENA_INVALID_USAGE: there is no such unreleased message */
VERBENA_API verbena_result verbena_queue_release(verbena_queue* queue, uint64_t ticket);

#ifdef __cplusplus
}
#endif

#endif
