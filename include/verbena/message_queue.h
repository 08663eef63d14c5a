/* A broadcast queue from one writer to many readers. Each reader gets every message, in order. Readers on the
 * writer's host use shared memory; readers on other hosts use TCP. A waiting call spins for a limited time,
 * then sleeps on a futex, so an idle queue uses no CPU. C API of libverbena.so.
 *
 * Setup: create a writer, send its handle to the readers by any means, and attach each reader. Then the
 * writer and all readers call verbena_queue_wait_until_ready().
 *
 * Threads: one thread at a time may use a queue, except that verbena_queue_cancel() and
 * verbena_queue_shutdown() may be called from any thread at any time. In a forked child process, all calls
 * return VERBENA_INVALID_USAGE, and destroying the queue has no effect.
 *
 * Timeouts are in milliseconds; -1 waits without a timeout. If a signal handler runs on the thread of a
 * waiting call, the call returns VERBENA_TIMEOUT early, so that an interpreter such as Python can handle the
 * signal. If a process exits, its peers notice within milliseconds.
 *
 * Security: if VERBENA_JOB_KEY_FILE is set, both ends of a connection must prove that they know the job key.
 */
#ifndef VERBENA_MESSAGE_QUEUE_H
#define VERBENA_MESSAGE_QUEUE_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_queue verbena_queue;

/* Value of spin_us for readers. If messages come at regular intervals, a waiting reader sleeps until shortly
 * before the next message is expected, and spins until shortly after that time. The reader spins for at most
 * a quarter of the interval. If the interval is shorter than 0.8 ms, the reader spins all the time. If
 * messages come at irregular intervals, a wait spins for 20 us before it sleeps. */
#define VERBENA_QUEUE_SPIN_ADAPTIVE (-2)

/* Opaque handle of a queue. The application copies the handle to the readers. */
typedef struct {
  uint8_t bytes[128];
} verbena_queue_handle;

/* Options of verbena_queue_create(). */
typedef struct {
  uint32_t count_readers; /* 1 to 256 */
  uint32_t count_chunks;  /* number of chunks of the ring, 2 to 65536; limits the messages in flight */
  size_t chunk_bytes;     /* size of a chunk, 1 or more; longer messages take several chunks */
  int64_t spin_us;        /* how long a call spins before it sleeps, microseconds; -1 means that it never
                             sleeps, and VERBENA_QUEUE_SPIN_ADAPTIVE means 20 us */
  const char* address;    /* numeric IP address to listen on; NULL selects the address of
                             VERBENA_SOCKET_IFNAME */
  const uint32_t* reader_ranks; /* [count_readers] ranks of the readers, for error messages. NULL if no reader
                                   has a rank; an entry is VERBENA_QUEUE_ANY_READER if that reader has no
                                   rank */
} verbena_queue_options;

/* Creates a writer and a ring of chunks for the messages. The ring is anonymous shared memory of count_chunks
 * * chunk_bytes bytes. The system allocates each page of the ring on its first use.
 * @param options  copied by the call
 * @param queue    receives the queue; free it with verbena_queue_destroy() */
VERBENA_API verbena_result verbena_queue_create(const verbena_queue_options* options, verbena_queue** queue);
/* Returns the handle that readers pass to verbena_queue_attach(). */
VERBENA_API verbena_result verbena_queue_get_handle(const verbena_queue* queue, verbena_queue_handle* handle);
/* Returns the address to which readers connect, such as "10.0.0.1:4711" or "[fd00::1]:4711".
 * @param text    receives the address, truncated to `length` bytes including the terminating NUL
 * @param length  size of `text` in bytes */
VERBENA_API verbena_result verbena_queue_get_address(const verbena_queue* queue, char* text, size_t length);
#define VERBENA_QUEUE_ANY_READER 0xffffffffu
/* Creates a reader, without waiting until the reader is connected.
 * @param handle   from verbena_queue_get_handle()
 * @param reader   this reader's number, 0 to count_readers - 1, unique; VERBENA_QUEUE_ANY_READER selects the
 *                 highest free number
 * @param spin_us  how long a call spins before it sleeps, microseconds; -1 means that it never sleeps. With
 *                 VERBENA_QUEUE_SPIN_ADAPTIVE, the reader derives the time from the intervals between
 *                 messages
 * @param queue    receives the queue; free it with verbena_queue_destroy() */
VERBENA_API verbena_result verbena_queue_attach(const verbena_queue_handle* handle, uint32_t reader,
                                                int64_t spin_us, verbena_queue** queue);
/* Waits until the writer and all readers are connected.
 * @param timeout_ms  milliseconds; -1 selects VERBENA_BOOTSTRAP_TIMEOUT_MS
 * @return VERBENA_TIMEOUT if the writer or a reader is not connected; the error names all missing ends */
VERBENA_API verbena_result verbena_queue_wait_until_ready(verbena_queue* queue, int64_t timeout_ms);
/* Returns 1 if this end uses only shared memory and no TCP, otherwise 0. For a reader, the result is 1 if the
 * reader is on the writer's host. For the writer, the result is 1 if all readers are on the writer's host.
 * The result is valid once the queue is ready. */
VERBENA_API int verbena_queue_is_local(const verbena_queue* queue);
/* Pins the ring's memory, so that cudaMemcpyAsync() copies directly between messages and the current GPU.
 * Call this function on the writer or on a local reader, once the queue is ready.
 * @return VERBENA_INVALID_USAGE if no GPU is current, or if this end has no ring */
VERBENA_API verbena_result verbena_queue_pin(verbena_queue* queue);
/* Shuts this end down. Any thread may call this function, at any time and more than once.
 *
 * If the writer shuts down, readers still get all messages that it has written, and then
 * VERBENA_REMOTE_ERROR. If a reader shuts down, the writer continues without this reader, once the reader has
 * released all its messages. Calls in progress on other threads return VERBENA_INVALID_USAGE before this call
 * returns. All later calls of this end return VERBENA_INVALID_USAGE, except verbena_queue_release(). The
 * handle stays valid until verbena_queue_destroy(). */
VERBENA_API verbena_result verbena_queue_shutdown(verbena_queue* queue);
/* Shuts down and frees the queue. No other thread may be using the handle.
 * @return VERBENA_INVALID_USAGE if a message has not been released; in this case the queue does not change */
VERBENA_API verbena_result verbena_queue_destroy(verbena_queue* queue);
/* Makes the call in progress, or the next call, return VERBENA_INVALID_USAGE. Any thread may call this
 * function. */
VERBENA_API void verbena_queue_cancel(verbena_queue* queue);

/* ---- The writer ---- */

typedef struct {
  const void* data; /* owned by the caller; read by the call */
  size_t length;    /* bytes */
} verbena_queue_part;

/* Writes one message of any length. The message is the concatenation of all parts.
 * @param parts  [count]
 * @param count  number of parts
 * @return VERBENA_TIMEOUT if a reader did not free a chunk in time: the message was not written, and the
 *         error names the reader and says how long it has held the chunk;
 *         VERBENA_REMOTE_ERROR if a reader has died: the error names the reader, and all later calls fail
 *         until verbena_queue_drop_reader() */
VERBENA_API verbena_result verbena_queue_enqueue(verbena_queue* queue, const verbena_queue_part* parts,
                                                 size_t count, int64_t timeout_ms);
/* Reserves the next chunk, so that the caller can write a message in place. Returns the same errors as
 * verbena_queue_enqueue().
 * @param data  receives the address of the chunk, which the queue owns */
VERBENA_API verbena_result verbena_queue_reserve(verbena_queue* queue, int64_t timeout_ms, void** data);
/* Sends the first `length` bytes of the reserved chunk as a message.
 * @param length  0 to chunk_bytes
 * @return VERBENA_INVALID_USAGE if no chunk is reserved, or if `length` is too large */
VERBENA_API verbena_result verbena_queue_commit(verbena_queue* queue, size_t length);
/* Makes the writer continue without a reader, such as one that has died.
 * @param reader  the reader's number */
VERBENA_API verbena_result verbena_queue_drop_reader(verbena_queue* queue, uint32_t reader);

/* ---- A reader ---- */

typedef struct {
  const void* data; /* owned by the queue; points into the ring if the message fits in one chunk */
  size_t length;    /* bytes */
  uint64_t ticket;  /* for verbena_queue_release() */
} verbena_queue_message;

/* Takes the next message. The caller may read the message until verbena_queue_release(). Until then, the
 * writer cannot reuse the message's chunks, so a reader that holds messages for a long time blocks the
 * writer.
 * @param message  receives the message
 * @return VERBENA_TIMEOUT, without a log line, if no message came in time;
 *         VERBENA_INVALID_USAGE if this reader's unreleased messages fill the whole ring;
 *         VERBENA_REMOTE_ERROR if the writer has shut down or died, and all its messages have been taken */
VERBENA_API verbena_result verbena_queue_dequeue(verbena_queue* queue, int64_t timeout_ms,
                                                 verbena_queue_message* message);
/* Releases a message. The writer may then reuse the message's chunks. Messages may be released in any order.
 * @param ticket  verbena_queue_message::ticket
 * @return VERBENA_INVALID_USAGE if no unreleased message has this ticket */
VERBENA_API verbena_result verbena_queue_release(verbena_queue* queue, uint64_t ticket);

#ifdef __cplusplus
}
#endif

#endif
