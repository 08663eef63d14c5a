/* Collectives between the GPUs of one or several hosts: all-reduce, all-gather, reduce-scatter, broadcast and
 * all-to-all. The collectives run as kernels on a CUDA stream, between the members of a team (verbena.h). The
 * library is libverbena_ops.so. Tensors are pointers to GPU memory from any allocator; no call registers
 * memory. Capturing or replaying a CUDA graph needs no host-side communication between the ranks. Every rank
 * gets bitwise identical results.
 *
 *   verbena_ops_create(context, team, NULL, &ops);               // once, on all ranks
 *   verbena_ops_all_reduce(ops, input, output, count, VERBENA_OPS_BFLOAT16, VERBENA_OPS_SUM, NULL, stream);
 *   verbena_ops_destroy(ops);
 *
 * Ranks: all members of the team must make the same calls, in the same order, with the same counts, types and
 * `choice` arguments. Streams and addresses may differ between ranks. docs/collectives.md lists all arguments
 * and settings that must be the same on all ranks. With VERBENA_OPS_CHECK=1, the ranks compare the arguments
 * of each call and report differences.
 *
 * Streams and capture: a call that takes a stream enqueues kernels on it and returns without synchronising.
 * Such a call may be captured in a CUDA graph. The calls of one verbena_ops must run one after the other. To
 * continue on a different stream, make the new stream wait for an event that was recorded on the old stream.
 * Use a separate verbena_ops for each stream that runs concurrently.
 *
 * Threads: only one thread at a time may use a verbena_ops.
 *
 * Memory: the caller owns all tensors and must keep them until the kernels have finished.
 *
 * Errors: every call returns VERBENA_SUCCESS or an error, except verbena_ops_rank() and verbena_ops_size().
 * After an error, verbena_last_error() returns the reason. If an argument is out of range, a call enqueues
 * nothing and returns VERBENA_INVALID_ARGUMENT.
 *
 * Timeouts: kernels never hang. If a rank is late by more than VERBENA_SYMM_TIMEOUT_MS, the kernels that wait
 * for this rank give up. From then on, every kernel of the verbena_ops (also in replayed graphs) computes
 * nothing and fills its output with 0xff bytes (NaN in every floating-point type, -1 in int32). The next call
 * on each rank returns VERBENA_TIMEOUT, and its error text names the late rank. If a call's counts in GPU
 * memory are out of range, the kernels give up in the same way, but the next call returns
 * VERBENA_INVALID_ARGUMENT. To continue, call verbena_ops_reset() on all ranks. There is one exception: an
 * all-gather by copy engines continues after a timeout, because the driver's copies cannot be cancelled.
 */
#ifndef VERBENA_OPS_H
#define VERBENA_OPS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_ops verbena_ops;
/* A cudaStream_t or CUstream of the context's GPU; NULL is the default stream. */
typedef void* verbena_stream;

typedef enum {
  VERBENA_OPS_FLOAT32 = 0,
  VERBENA_OPS_FLOAT16 = 1,
  VERBENA_OPS_BFLOAT16 = 2,
  VERBENA_OPS_INT32 = 3,
  VERBENA_OPS_E4M3 = 4 /* FP8: 8 bits, no infinities */
} verbena_ops_type;

/* The operation that combines the ranks' elements. Floating-point elements are converted to float, added in
 * rank order, and rounded once. Across hosts, the elements of each host's ranks are added first, in rank
 * order. Then the sums of the hosts are added, in the order of each host's lowest rank. int32 wraps on
 * overflow, and its MEAN truncates toward zero. MIN and MAX propagate NaN. */
typedef enum {
  VERBENA_OPS_SUM = 0,
  VERBENA_OPS_MEAN = 1,
  VERBENA_OPS_MIN = 2,
  VERBENA_OPS_MAX = 3
} verbena_ops_reduction;

/* The algorithm of a call. All algorithms give bitwise identical results, except the quantised algorithms.
 *
 * AUTO             the library chooses: see verbena_ops_choose()
 * ONE_SHOT         each rank sends its whole tensor to every other rank, in packets
 * TWO_SHOT         rank r reduces the r-th part of the tensor and sends the result to all ranks, in packets.
 *                  In a broadcast, rank r receives the r-th part from the root and sends it to all ranks
 * BULK_ONE_SHOT, BULK_TWO_SHOT   the same as ONE_SHOT and TWO_SHOT, but for large tensors: the ranks send
 *                                chunks, with a flag after each chunk, instead of packets
 * DIRECT           an all-reduce that reads the peers' inputs and writes the peers' outputs in place. Input
 *                  and output must lie in windows of the context, each at the same offset on all ranks and
 *                  aligned to 16 bytes. AUTO chooses DIRECT only with verbena_ops_options::has_windows
 * COPY_ENGINES     an all-gather whose data is moved by copy engines. SMs are busy only in the barriers
 *                  before and after the copies. The gather must have a single row, and its output must lie in
 *                  a window of the context, at the same offset on all ranks. AUTO never chooses COPY_ENGINES
 *
 * A packet is a 16-byte store without a flag; the receiver recognises the packet's arrival by the data. */
typedef enum {
  VERBENA_OPS_AUTO = 0,
  VERBENA_OPS_ONE_SHOT = 1,
  VERBENA_OPS_TWO_SHOT = 2,
  VERBENA_OPS_BULK_ONE_SHOT = 3,
  VERBENA_OPS_BULK_TWO_SHOT = 4,
  VERBENA_OPS_COPY_ENGINES = 5,
  VERBENA_OPS_DIRECT = 6,
  /* Codecs of quantised all-reduces, which sum float16 or bfloat16 elements by the bulk two-shot algorithm.
   * All ranks get the same rounded result; docs/quantisation.md has the error bounds. AUTO never chooses a
   * codec. FP8 is e4m3 with one scale per 64 elements. INT8 and INT6 are integers with one minimum and one
   * maximum per 128 elements; INT4 has one minimum and one maximum per 32 elements. If the name contains two
   * formats, the ranks' contributions are sent in the first format and the sums in the second. Across hosts,
   * only the sum of each host is quantised. */
  VERBENA_OPS_FP8 = 16,
  VERBENA_OPS_INT8 = 17,
  VERBENA_OPS_INT6 = 18,
  VERBENA_OPS_INT4 = 19,
  VERBENA_OPS_MXFP8 = 20,
  VERBENA_OPS_FP8_INT8 = 21,
  VERBENA_OPS_INT4_INT8 = 22,
  /* BULK_TWO_SHOT across hosts, with lossless compression of the data that NICs carry. The results have the
   * same bits as without compression, and NICs carry fewer bytes. An all-reduce or a reduce-scatter
   * compresses bfloat16 elements, and each host's sums of bfloat16 or float16 elements. Elements of all other
   * types are sent uncompressed. All other calls treat their data as bfloat16 elements, so use LOSSLESS only
   * for bfloat16 tensors. Between ranks of a single host, LOSSLESS has the effect of AUTO. Across hosts, AUTO
   * chooses LOSSLESS for all-reduces and reduce-scatters of bfloat16 elements in two cases:
   * VERBENA_OPS_ALGORITHM is "lossless", or LOSSLESS is faster than BULK_TWO_SHOT in the measurements of the
   * tuning file. Other calls have no type argument: see AUTO_BFLOAT16. */
  VERBENA_OPS_LOSSLESS = 32,
  /* AUTO, and a promise of the caller: the tensors of this all-gather, broadcast or all-to-all consist of
   * bfloat16 elements, so AUTO may choose LOSSLESS. In calls that reduce, AUTO_BFLOAT16 is the same as
   * AUTO. */
  VERBENA_OPS_AUTO_BFLOAT16 = 33
} verbena_ops_algorithm;

/* Options of verbena_ops_create(), the same on all ranks. 0 and NULL select the defaults. */
typedef struct {
  /* Bytes of GPU memory for packets and for chunks. 0 means 1 MiB per block for packets (32 to 128 MiB in
   * all), and 512 KiB per block for chunks (16 to 64 MiB in all). Across hosts, packet_bytes has no effect,
   * and chunk_bytes is 64 MiB by default. The library then allocates chunk_bytes twice, for chunks between
   * hosts and for chunks within the host. */
  size_t packet_bytes, chunk_bytes;
  /* Max blocks of a kernel, 1 to 512; bulk algorithms use up to twice as many. 0 selects 128, but at most the
   * number of multiprocessors of the team's smallest GPU. If the process already has a verbena_ops, 0 selects
   * at most half of the multiprocessors. Blocks wait for blocks of other ranks. Therefore, if ranks may
   * launch concurrent kernels of several verbena_ops in different orders, the blocks of all these kernels
   * together must fit on each GPU. */
  uint32_t blocks;
  /* 1 if the library's kernels should use programmatic dependent launch (PDL): the stream's next kernel may
   * then start before the library's kernel has finished. Set this only if every kernel of the stream that is
   * launched with PDL waits for its predecessor. */
  uint32_t programmatic_launch;
  /* Path of a tuning file, which verbena-bench coll --calibrate writes and verbena_ops_create() reads. If
   * NULL, VERBENA_TUNING_FILE names the file. The content must be the same on all ranks. */
  const char* tuning_file;
  /* For tests of PDL: how long each kernel pauses before it waits for its predecessor, and after it has let
   * its successor start. */
  uint32_t pause_before_ns, pause_after_ns;
  /* 1 if the caller promises the following about every all-reduce: if one rank passes an input and an output
   * that both lie in windows, then all ranks do so, with the same offsets. verbena_ops_all_reduce() then uses
   * VERBENA_OPS_DIRECT for the tensor sizes at which DIRECT is faster. */
  uint32_t has_windows;
} verbena_ops_options;

/* An algorithm and the shape of its kernel, the same on all ranks. The library chooses a value for each field
 * that is 0. Only all-reduces, and bulk broadcasts between three or more ranks, have both a one-shot and a
 * two-shot algorithm; all other calls always use one-shot. */
typedef struct {
  verbena_ops_algorithm algorithm;
  uint32_t blocks;      /* at most verbena_ops_options::blocks; twice that for bulk algorithms and codecs */
  uint32_t threads;     /* threads per block: a multiple of 32, at most 512 */
  uint32_t chunk_bytes; /* for bulk algorithms: a multiple of 16 */
} verbena_ops_choice;

/* Creates a communicator. Collective over the context; on each rank, the context's GPU must be current. The
 * call allocates GPU memory and loads kernels, so it must not be made during graph capture.
 * @param context  must outlive the communicator
 * @param team     1 to 16 ranks; may be freed before the communicator. NULL on ranks that are not members.
 *                 These ranks use their communicator only in the collective calls (create, reset and destroy)
 * @param options  copied by the call; NULL selects the defaults
 * @param ops      receives the communicator, unchanged after an error; free it with verbena_ops_destroy()
 * @return VERBENA_INVALID_ARGUMENT if an option is out of range;
 *         VERBENA_INVALID_USAGE if options or settings differ between the ranks;
 *         VERBENA_CUDA_ERROR if the kernels cannot be loaded or memory cannot be allocated
 *
 * All ranks of the team must reach each other by loads and stores, unless the team spans hosts. A team across
 * hosts needs the same number of ranks on every host, and a context that verbena_context_create() has
 * created. Across hosts, calls use VERBENA_OPS_BULK_TWO_SHOT, VERBENA_OPS_LOSSLESS or a codec, and
 * VERBENA_OPS_ALGORITHM has no effect if it names another algorithm. Across hosts, a call returns
 * VERBENA_INVALID_USAGE if its `choice` has any other algorithm, and
 * verbena_ops_reduce_scatter_norm_all_gather() always returns this result. */
VERBENA_API verbena_result verbena_ops_create(verbena_context* context, const verbena_team* team,
                                              const verbena_ops_options* options, verbena_ops** ops);
/* Frees the communicator. Collective over the context, before verbena_context_destroy(). No kernel on any
 * rank may still be using the communicator. */
VERBENA_API verbena_result verbena_ops_destroy(verbena_ops* ops);
/* Makes the communicator usable again after a failure. Collective over the context. Each rank waits until its
 * GPU is idle. Then all ranks clear their workspaces.
 * @return VERBENA_CUDA_ERROR if this thread is capturing a stream */
VERBENA_API verbena_result verbena_ops_reset(verbena_ops* ops);
/* Checks whether the results of earlier calls are valid. Reads GPU memory, which takes a few microseconds.
 * @param text    receives the reason, truncated to `length` bytes including the terminating NUL; may be NULL
 * @param length  size of `text` in bytes
 * @return VERBENA_SUCCESS if the results are valid;
 *         VERBENA_TIMEOUT if a wait timed out: the text names the late rank;
 *         VERBENA_INVALID_ARGUMENT if a rank's arguments were invalid: the text names that rank;
 *         any error of verbena_context_get_error() */
VERBENA_API verbena_result verbena_ops_get_error(verbena_ops* ops, char* text, size_t length);
/* Return this rank's number in the team, and the number of members; 0 on ranks that are not members. */
VERBENA_API uint32_t verbena_ops_rank(const verbena_ops* ops);
VERBENA_API uint32_t verbena_ops_size(const verbena_ops* ops);

typedef enum {
  VERBENA_OPS_ALL_REDUCE = 0,
  VERBENA_OPS_ALL_GATHER = 1,
  VERBENA_OPS_REDUCE_SCATTER = 2,
  VERBENA_OPS_BROADCAST = 3,
  VERBENA_OPS_ALL_TO_ALL = 4
} verbena_ops_operation;

/* Returns the algorithm that a call would use for bfloat16 elements. For other types, the result
 * VERBENA_OPS_LOSSLESS stands for VERBENA_OPS_BULK_TWO_SHOT. If VERBENA_OPS_ALGORITHM is set, it determines
 * the algorithm. Otherwise the tuning file determines the algorithm or, without a tuning file, the library's
 * built-in rules.
 * @param bytes   for an all-reduce: size of the tensor; for all other operations: size of one rank's message
 * @param choice  receives the algorithm and its grid */
VERBENA_API verbena_result verbena_ops_choose(const verbena_ops* ops, verbena_ops_operation operation,
                                              size_t bytes, verbena_ops_choice* choice);

/* Reduces `input` element by element across all ranks. Every rank gets the result.
 * @param input      `count` elements of `type` in GPU memory; needs no alignment
 * @param output     receives `count` elements; either `input` itself, or memory that does not overlap `input`
 * @param count      number of elements, the same on all ranks
 * @param reduction  sum, mean, minimum or maximum
 * @param choice     algorithm and shape of the kernel; if NULL, the library chooses them */
VERBENA_API verbena_result verbena_ops_all_reduce(verbena_ops* ops, const void* input, void* output,
                                                  size_t count, verbena_ops_type type,
                                                  verbena_ops_reduction reduction,
                                                  const verbena_ops_choice* choice, verbena_stream stream);

/* Sums `input` across all ranks, and quantises the messages between the ranks. The call falls back to the
 * exact verbena_ops_all_reduce() for 32-bit elements, and for tensors that the exact algorithm sums faster,
 * such as small tensors.
 * @param codec   VERBENA_OPS_FP8 to VERBENA_OPS_INT4_INT8
 * @param seed    0 rounds to nearest; any other value rounds stochastically, with different random numbers in
 *                each call
 * @param choice  any exact or quantised algorithm; if NULL, the library chooses one
 * The other parameters are the same as in verbena_ops_all_reduce(). */
VERBENA_API verbena_result verbena_ops_all_reduce_quantised(verbena_ops* ops, const void* input, void* output,
                                                            size_t count, verbena_ops_type type,
                                                            verbena_ops_algorithm codec, uint64_t seed,
                                                            const verbena_ops_choice* choice,
                                                            verbena_stream stream);
/* Returns the algorithm that verbena_ops_all_reduce_quantised() would use for a tensor of `bytes` bytes:
 * `codec`, or an exact algorithm. */
VERBENA_API verbena_result verbena_ops_choose_quantised(const verbena_ops* ops, verbena_ops_algorithm codec,
                                                        size_t bytes, verbena_ops_choice* choice);

/* Formats of quantised rows. Each element is stored as one byte, an e4m3 (FP8) or int8 number; the value of
 * the element is this number times the scale. */
typedef enum {
  VERBENA_OPS_NOT_QUANTISED = 0,
  VERBENA_OPS_FP8_TENSOR = 1,         /* one float scale for the tensor, which the caller passes in
                                         `scales` */
  VERBENA_OPS_FP8_TOKEN = 2,          /* one float scale per row: the row's largest magnitude / 448 */
  VERBENA_OPS_FP8_BLOCK = 3,          /* one float scale per 128 elements of a row */
  VERBENA_OPS_FP8_BLOCK_POWER = 4,    /* FP8_BLOCK with scales rounded up to powers of two */
  VERBENA_OPS_FP8_BLOCK_EXPONENT = 5, /* FP8_BLOCK_POWER with UE8M0 scales, four per 32-bit word */
  VERBENA_OPS_MXFP8_BLOCK = 6,        /* one E8M0 scale (one byte) per 32 elements */
  VERBENA_OPS_MXFP8_SWIZZLED = 7,     /* MXFP8_BLOCK with scales in zero-padded tiles of 512 bytes (128 rows
                                         by 4 scales) */
  VERBENA_OPS_INT8_TOKEN = 8          /* one float scale per row: the row's largest magnitude / 127 */
} verbena_ops_quantisation;

/* Parameters of an RMSNorm of a tensor x with [rows][hidden] elements, which are float16 or bfloat16. A
 * residual may be added before the norm, and the output may be quantised after the norm:
 *   h = x + residual_in;  residual_out = h;
 *   output = h / sqrt(mean(h^2) + epsilon) * (weight + weight_offset);  quantised = quantise(output)
 * All pointers are GPU addresses; the caller owns the memory. A tensor whose pointer is NULL is not read or
 * written; if `weight` is NULL, all weights are 1. residual_out may point to residual_in. Apart from this
 * exception, no output may overlap another tensor. Strides are distances between the starts of rows, in
 * elements; quantised_stride is in bytes. */
typedef struct {
  size_t rows, hidden;
  const void* weight; /* [hidden] */
  float epsilon, weight_offset;
  uint32_t rounds_sum;    /* 1 to round h to the type of x before it is squared */
  uint32_t rounds_normed; /* 1 to round h / sqrt(...) to the type of x before the multiplication by the
                             weight */
  const void* residual_in;
  void* residual_out;
  void* output;
  size_t residual_in_stride, residual_out_stride, output_stride;
  size_t padding; /* number of columns after `hidden` that are set to 0, in `output` and `quantised` */
  verbena_ops_quantisation quantisation;
  void* quantised; /* one byte per element */
  size_t quantised_stride;
  /* The scale of block b of row r is element r * scale_row_stride + b * scale_block_stride of `scales`.
   * The elements of `scales` are floats, 32-bit words or bytes, depending on `quantisation`. */
  void* scales;
  size_t scale_row_stride, scale_block_stride;
  float min_scale; /* lower bound of the float scales that are computed; 0 means 1e-10 */
} verbena_ops_norm;

/* Normalises the rows of x on this rank only, without communication.
 * @param x         [norm->rows][norm->hidden]; may point to norm->output or norm->residual_out
 * @param x_stride  distance between rows of x, in elements
 * @param type      VERBENA_OPS_FLOAT16 or VERBENA_OPS_BFLOAT16
 * @param norm      parameters of the norm, copied by the call */
VERBENA_API verbena_result verbena_ops_norm_rows(verbena_ops* ops, const void* x, size_t x_stride,
                                                 verbena_ops_type type, const verbena_ops_norm* norm,
                                                 verbena_stream stream);
/* Sums `input` across all ranks and normalises the rows of the sum. The results have the same bits as
 * verbena_ops_all_reduce() followed by verbena_ops_norm_rows(). If there are few rows, a single kernel sums
 * and normalises the rows, and keeps them in registers. A `choice` with VERBENA_OPS_ONE_SHOT also selects
 * that kernel, if the rows fit into the registers and into packet_bytes. Otherwise the call uses two kernels.
 * @param input  [norm->rows][norm->hidden] of `type`, contiguous
 * @param sum    receives the sum, contiguous; may point to `input`. If norm->output_stride is norm->hidden,
 *               `sum` may also point to norm->output, which is fastest
 * @param codec  quantises the messages, as in verbena_ops_all_reduce_quantised(); VERBENA_OPS_AUTO selects an
 *               exact sum */
VERBENA_API verbena_result verbena_ops_all_reduce_norm(verbena_ops* ops, const void* input, void* sum,
                                                       verbena_ops_type type, const verbena_ops_norm* norm,
                                                       verbena_ops_algorithm codec,
                                                       const verbena_ops_choice* choice,
                                                       verbena_stream stream);
/* The outputs of this rank's experts for norm->rows tokens. The finalize step adds the rows of each token:
 *   x[r] = shared[r] + sum over k of weights[r][k] * rows[indices[r][k]]
 * The terms are added as floats in the order of k, after the shared row; x is rounded once. All pointers are
 * GPU addresses; the caller owns the memory. Strides are distances between the starts of rows, in elements.
 */
typedef struct {
  const void* rows; /* [any number of rows][norm->hidden], of the type of x */
  size_t row_stride;
  const int32_t* indices; /* [norm->rows][top_k]; a negative index adds nothing. The call does not check that
                             an index is less than the number of rows */
  const float* weights;   /* [norm->rows][top_k]; NULL if all weights are 1 */
  uint32_t top_k;
  const void* shared; /* [norm->rows][norm->hidden], for example the outputs of a shared expert; or NULL */
  size_t shared_stride;
} verbena_ops_moe_finalize;
/* Finalizes the outputs of the experts, and then does the same as verbena_ops_all_reduce_norm() with
 * `input` = x. If that call would use one kernel, this call also uses one kernel, which does not write x to
 * memory. Otherwise the call writes x to `sum`, and uses one kernel more than that call. The results have the
 * same bits in both cases.
 * @param finalize  the outputs of this rank's experts, copied by the call; top_k, strides and addresses may
 *                  differ between ranks
 * @param sum       receives the sum, as in verbena_ops_all_reduce_norm(); must not overlap the tensors of
 *                  `finalize` */
VERBENA_API verbena_result verbena_ops_moe_finalize_all_reduce_norm(
    verbena_ops* ops, const verbena_ops_moe_finalize* finalize, void* sum, verbena_ops_type type,
    const verbena_ops_norm* norm, verbena_ops_algorithm codec, const verbena_ops_choice* choice,
    verbena_stream stream);
/* Does the same as verbena_ops_all_reduce_norm() in one kernel that splits the norm between the ranks. Rank r
 * normalises only the r-th share of the rows; a share has ceil(rows / ranks) rows. Then all ranks gather the
 * results, so every rank gets all rows of `output` and of the quantised output. VERBENA_OPS_MXFP8_SWIZZLED is
 * not supported.
 * @param sum  receives the rows of this rank's share. norm->residual_in and norm->residual_out also contain
 *             only the rows of this share */
VERBENA_API verbena_result verbena_ops_reduce_scatter_norm_all_gather(verbena_ops* ops, const void* input,
                                                                      void* sum, verbena_ops_type type,
                                                                      const verbena_ops_norm* norm,
                                                                      const verbena_ops_choice* choice,
                                                                      verbena_stream stream);

/* The tensors of the following calls consist of rows, and each row has one part for each rank. To gather,
 * scatter or split along dimension d of a tensor, set `rows` to the product of the dimensions before d (1 if
 * d is 0). Calls that only move data take lengths in bytes; calls that reduce take lengths in elements. If
 * `choice` is NULL, the library chooses. */

/* Concatenates the ranks' inputs along each row. Every rank gets the result.
 * @param input   [rows][row_bytes]. If `rows` is 1, the call can work in place: `input` may point to this
 *                rank's part of `output`
 * @param output  [rows][ranks][row_bytes]: part r of each row comes from rank r */
VERBENA_API verbena_result verbena_ops_all_gather(verbena_ops* ops, const void* input, void* output,
                                                  size_t rows, size_t row_bytes,
                                                  const verbena_ops_choice* choice, verbena_stream stream);
/* Reduces the ranks' inputs element by element; each rank gets its part of the result.
 * @param input      [rows][ranks][row_count] elements of `type`
 * @param output     [rows][row_count]: this rank's part of the result. If `rows` is 1, the call can work in
 *                   place: `output` may point to this rank's part of `input`
 * @param row_count  number of elements per rank in each row; a full row of `input` has ranks * row_count
 *                   elements */
VERBENA_API verbena_result verbena_ops_reduce_scatter(verbena_ops* ops, const void* input, void* output,
                                                      size_t rows, size_t row_count, verbena_ops_type type,
                                                      verbena_ops_reduction reduction,
                                                      const verbena_ops_choice* choice,
                                                      verbena_stream stream);
/* Copies the root's `input` to the `output` of every rank.
 * @param input   `length_bytes` bytes on rank `root`; may point to `output`. Has no effect on all other ranks
 * @param output  receives `length_bytes` bytes
 * @param root    a rank of the team */
VERBENA_API verbena_result verbena_ops_broadcast(verbena_ops* ops, const void* input, void* output,
                                                 size_t length_bytes, uint32_t root,
                                                 const verbena_ops_choice* choice, verbena_stream stream);
/* Sends `message_bytes` bytes to each rank and receives `message_bytes` bytes from each rank. `input` and
 * `output` must not overlap.
 * @param input          [split_rows][ranks][...]: part r of each row goes to rank r
 * @param output         [joined_rows][ranks][...]: part r of each row comes from rank r
 * @param message_bytes  size of the message to one rank, which consists of one part of every row
 * @param split_rows     number of rows of the input; 1 if the message to each rank is contiguous
 * @param joined_rows    number of rows of the output; 1 if the message from each rank is contiguous */
VERBENA_API verbena_result verbena_ops_all_to_all(verbena_ops* ops, const void* input, void* output,
                                                  size_t message_bytes, size_t split_rows, size_t joined_rows,
                                                  const verbena_ops_choice* choice, verbena_stream stream);

/* In the next three calls, the ranks' parts may have different lengths. Counts and offsets are arrays of one
 * int64 for each rank, in GPU memory. A count of 1 means unit_bytes bytes, for example one row or one
 * element; offsets use the same unit. The kernel reads the arrays, so their content may change between
 * replays of a graph. If the offsets are NULL, the parts are contiguous. If a part extends past input_bytes
 * or output_bytes, the kernel does nothing, and verbena_ops_get_error() returns VERBENA_INVALID_ARGUMENT. */
typedef struct {
  size_t unit_bytes, input_bytes, output_bytes;
  size_t expected_bytes; /* size of a typical message, used to choose the algorithm; the same on all ranks */
} verbena_ops_sizes;
/* Gathers parts of different lengths: counts[r] units from rank r are written at offsets[r] in the output of
 * every rank. The counts must be the same on all ranks. */
VERBENA_API verbena_result verbena_ops_all_gather_v(verbena_ops* ops, const void* input, void* output,
                                                    const int64_t* counts, const int64_t* offsets,
                                                    const verbena_ops_sizes* sizes,
                                                    const verbena_ops_choice* choice, verbena_stream stream);
/* Reduces the ranks' inputs element by element; rank r gets the counts[r] units that start at offsets[r] in
 * the result. The counts must be the same on all ranks. */
VERBENA_API verbena_result verbena_ops_reduce_scatter_v(verbena_ops* ops, const void* input, void* output,
                                                        const int64_t* counts, const int64_t* offsets,
                                                        const verbena_ops_sizes* sizes, verbena_ops_type type,
                                                        verbena_ops_reduction reduction,
                                                        const verbena_ops_choice* choice,
                                                        verbena_stream stream);
/* Sends send_counts[r] units to rank r, starting at send_offsets[r] in the input. Receives receive_counts[r]
 * units from rank r, and writes these units at receive_offsets[r] in the output. Each rank passes its own
 * counts. */
VERBENA_API verbena_result verbena_ops_all_to_all_v(verbena_ops* ops, const void* input, void* output,
                                                    const int64_t* send_counts, const int64_t* send_offsets,
                                                    const int64_t* receive_counts,
                                                    const int64_t* receive_offsets,
                                                    const verbena_ops_sizes* sizes,
                                                    const verbena_ops_choice* choice, verbena_stream stream);

/* Group the calls between verbena_ops_group_begin() and verbena_ops_group_end(). verbena_ops_group_end()
 * enqueues these calls, in order and in as few kernels as possible, on its `stream` argument. The stream
 * arguments of the grouped calls have no effect. A call must not read data that an earlier call of the group
 * writes. The only exception is two calls with the same algorithm, length and address: in these calls, the
 * same block writes and reads each part of the data. */
VERBENA_API verbena_result verbena_ops_group_begin(verbena_ops* ops);
VERBENA_API verbena_result verbena_ops_group_end(verbena_ops* ops, verbena_stream stream);

/* Makes the stream pause for length_ns nanoseconds, for use in measurements. */
VERBENA_API verbena_result verbena_ops_pause(verbena_ops* ops, uint64_t length_ns, verbena_stream stream);

#ifdef __cplusplus
}
#endif

#endif
