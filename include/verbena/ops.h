/* Collectives between GPUs of one host or of several, as kernels of libverbena_ops.so: all-reduce,
 * all-gather, reduce-scatter, broadcast and all-to-all over a team of verbena.h. Tensors are raw pointers to
 * GPU memory of any allocator. No call registers memory, and captured CUDA graphs need no exchange between
 * ranks. Results have the same bits on every rank.
 *
 *   verbena_ops_create(context, team, NULL, &ops);               // once, on all ranks
 *   verbena_ops_all_reduce(ops, input, output, count, VERBENA_OPS_BFLOAT16, VERBENA_OPS_SUM, NULL, stream);
 *   verbena_ops_destroy(ops);
 *
 * Ranks: all members of the team make the same calls, in the same order, with the same counts, types and
 * choices. Streams and addresses may differ between ranks. docs/collectives.md has the whole list;
 * VERBENA_OPS_CHECK=1 compares each call's arguments among the ranks.
 *
 * Streams and capture: a call with a stream enqueues kernels there and returns. Such calls never synchronise
 * and may be captured in a CUDA graph. Calls of one verbena_ops run one after the other: to continue in
 * another stream, order the two streams by an event. Streams that run at the same time need a verbena_ops
 * each. Threads: one thread at a time uses a verbena_ops.
 *
 * Memory: the caller owns all tensors and keeps them until the kernels have ended.
 *
 * Errors: every call but verbena_ops_rank() and verbena_ops_size() returns VERBENA_SUCCESS or an error, and
 * verbena_last_error() has the reason. VERBENA_INVALID_ARGUMENT names an argument that is out of range; the
 * call has enqueued nothing.
 *
 * Kernels never hang: every wait in a kernel ends after VERBENA_SYMM_TIMEOUT_MS. From then on all kernels of
 * the verbena_ops, also those of graphs that are replayed, compute nothing and fill their outputs with bytes
 * of 0xff (NaN in every floating-point type, -1 in int32). The next call on each rank returns
 * VERBENA_TIMEOUT, and its text names the rank that was late; it returns VERBENA_INVALID_ARGUMENT if counts
 * in GPU memory were out of range. verbena_ops_reset() on all ranks makes the verbena_ops usable again. The
 * one exception is an all-gather by copy engines: the driver's copies cannot be cancelled, and continue.
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

/* How elements are reduced across ranks. Floating-point elements are added in float in the order of ranks,
 * and rounded once; across hosts in the order of ranks within each host, then in the order of the hosts'
 * first ranks. int32 wraps on overflow, and its MEAN truncates toward zero. MIN and MAX propagate NaN. */
typedef enum {
  VERBENA_OPS_SUM = 0,
  VERBENA_OPS_MEAN = 1,
  VERBENA_OPS_MIN = 2,
  VERBENA_OPS_MAX = 3
} verbena_ops_reduction;

/* How data travels. All algorithms but the quantised ones give the same bits.
 *
 * AUTO             the library chooses: see verbena_ops_choose()
 * ONE_SHOT         each rank sends its whole tensor to every other rank, in packets
 * TWO_SHOT         rank r reduces the r-th part of the tensor and sends the result to all, in packets; in a
 *                  broadcast rank r receives the r-th part from the root and sends it to all
 * BULK_ONE_SHOT, BULK_TWO_SHOT   the same for large tensors: in chunks, with a flag after each chunk
 * DIRECT           an all-reduce whose input and output lie in windows of the context, each at the same offset
 *                  on all ranks and aligned to 16 bytes: kernels read inputs and write outputs in place.
 *                  Chosen only if asked for, or with verbena_ops_options::has_windows
 * COPY_ENGINES     an all-gather of one row whose output lies in a window of the context, at the same offset
 *                  on all ranks: copy engines move the data, and SMs are busy only while ranks wait for each
 *                  other before and after. Chosen only if asked for
 *
 * A packet is a store of 16 bytes that needs no flag. */
typedef enum {
  VERBENA_OPS_AUTO = 0,
  VERBENA_OPS_ONE_SHOT = 1,
  VERBENA_OPS_TWO_SHOT = 2,
  VERBENA_OPS_BULK_ONE_SHOT = 3,
  VERBENA_OPS_BULK_TWO_SHOT = 4,
  VERBENA_OPS_COPY_ENGINES = 5,
  VERBENA_OPS_DIRECT = 6,
  /* Codecs of quantised all-reduces: sums of float16 and bfloat16 by bulk two-shot. They round, alike on all
   * ranks (docs/quantisation.md has the error bounds), and are chosen only if asked for. FP8 is e4m3 with a
   * scale for each 64 elements. INT8, INT6 and INT4 are integers with a minimum and a maximum for each 128,
   * 128 and 32 elements. With two names, the ranks' contributions travel in the first format and sums in the
   * second. Across hosts only each host's sums are quantised. */
  VERBENA_OPS_FP8 = 16,
  VERBENA_OPS_INT8 = 17,
  VERBENA_OPS_INT6 = 18,
  VERBENA_OPS_INT4 = 19,
  VERBENA_OPS_MXFP8 = 20,
  VERBENA_OPS_FP8_INT8 = 21,
  VERBENA_OPS_INT4_INT8 = 22
} verbena_ops_algorithm;

/* Options of verbena_ops_create(), the same on all ranks. 0 and NULL are defaults. */
typedef struct {
  /* GPU memory of the workspaces for packets and for chunks, bytes. 0: 1 MiB and 512 KiB for each of `blocks`,
   * at least 32 and 16 MiB, at most 128 and 64 MiB; across hosts twice 64 MiB, for chunks alone. */
  size_t packet_bytes, chunk_bytes;
  /* Max blocks of a kernel, 1 to 512; bulk algorithms take up to twice as many. 0: 128, or fewer on GPUs with
   * fewer multiprocessors, and at most half of these if the process has another verbena_ops. Blocks wait for
   * blocks of other ranks: if kernels of several verbena_ops run at the same time, and ranks launch them in
   * different orders, all their blocks together must fit on each GPU. */
  uint32_t blocks;
  /* 1: programmatic dependent launch: the next kernel of the stream may start before this one has ended. Set
   * it only if every kernel that is launched that way waits for the one before it. */
  uint32_t programmatic_launch;
  /* Path of measurements of this platform (verbena-coll --calibrate), read by verbena_ops_create(); NULL:
   * VERBENA_TUNING_FILE. The content is the same on all ranks. */
  const char* tuning_file;
  /* For tests of programmatic dependent launch: how long each kernel pauses before it waits for the kernels
   * before it, and after it has let the next kernel start. */
  uint32_t pause_before_ns, pause_after_ns;
  /* 1: the caller promises that the ranks agree in each all-reduce: either input and output of all ranks lie
   * in windows, each at the same offset on all ranks, or no rank has both in windows.
   * verbena_ops_all_reduce() then uses VERBENA_OPS_DIRECT where it is faster. */
  uint32_t has_windows;
} verbena_ops_options;

/* An algorithm and the shape of its kernel; for each field that is 0 the library chooses. All calls but
 * all-reduces use one-shot: two-shot means the same for them, except for a bulk broadcast among three ranks
 * or more. The same on all ranks. */
typedef struct {
  verbena_ops_algorithm algorithm;
  uint32_t blocks;      /* at most verbena_ops_options::blocks; twice that for bulk algorithms and codecs */
  uint32_t threads;     /* of a block: a multiple of 32, at most 512 */
  uint32_t chunk_bytes; /* of bulk algorithms: a multiple of 16 */
} verbena_ops_choice;

/* Creates a communicator. Collective over the context, with each rank's GPU current. Allocates GPU memory and
 * loads the kernels: not for capture.
 * @param context  outlives the communicator
 * @param team     1 to 16 ranks; NULL on ranks that are not members, whose communicator serves only the
 *                 collective calls create, reset and destroy. The team may be freed before the communicator
 * @param options  copied; NULL: defaults
 * @param ops      receives the communicator, which verbena_ops_destroy() frees; unchanged after an error
 * @return VERBENA_INVALID_ARGUMENT if an option is out of range, VERBENA_INVALID_USAGE if the ranks' options
 *         or settings differ, VERBENA_CUDA_ERROR if the kernels or memory are not available
 *
 * The team's ranks reach each other by loads and stores, or the team has the same number of ranks on each of
 * several hosts, in a context of verbena_context_create(). Across hosts there are only
 * VERBENA_OPS_BULK_TWO_SHOT and its quantised forms: VERBENA_OPS_ALGORITHM and measurements have no effect;
 * other algorithms in a `choice`, copy engines and verbena_ops_reduce_scatter_norm_all_gather() are refused
 * with VERBENA_INVALID_USAGE. */
VERBENA_API verbena_result verbena_ops_create(verbena_context* context, const verbena_team* team,
                                              const verbena_ops_options* options, verbena_ops** ops);
/* Frees the communicator. Collective over the context, before verbena_context_destroy(). No kernel on any rank
 * may still be using the communicator. */
VERBENA_API verbena_result verbena_ops_destroy(verbena_ops* ops);
/* Makes the communicator usable again after an error. Collective over the context: waits until this rank's GPU
 * is idle, then clears the workspaces of all ranks.
 * @return VERBENA_CUDA_ERROR while a stream of this thread is being captured */
VERBENA_API verbena_result verbena_ops_reset(verbena_ops* ops);
/* Returns whether the results of earlier calls are valid. Takes a few microseconds: it reads GPU memory.
 * @param text    receives the reason, truncated to `length` bytes including its terminating zero; may be NULL
 * @param length  bytes
 * @return VERBENA_SUCCESS; VERBENA_TIMEOUT, and the text names the late rank; VERBENA_INVALID_ARGUMENT, and
 *         the text names the rank whose arguments were invalid; or an error of verbena_context_get_error() */
VERBENA_API verbena_result verbena_ops_get_error(verbena_ops* ops, char* text, size_t length);
/* Return this rank's number in the team, and the number of its ranks; 0 on ranks that are not members. */
VERBENA_API uint32_t verbena_ops_rank(const verbena_ops* ops);
VERBENA_API uint32_t verbena_ops_size(const verbena_ops* ops);

typedef enum {
  VERBENA_OPS_ALL_REDUCE = 0,
  VERBENA_OPS_ALL_GATHER = 1,
  VERBENA_OPS_REDUCE_SCATTER = 2,
  VERBENA_OPS_BROADCAST = 3,
  VERBENA_OPS_ALL_TO_ALL = 4
} verbena_ops_operation;

/* Returns the algorithm that a call would use: VERBENA_OPS_ALGORITHM if that is set, else the one that was
 * measured to be the fastest (verbena_ops_options::tuning_file), else the one of the library's rules.
 * @param bytes   of the tensor for an all-reduce, of one rank's message for all other operations
 * @param choice  receives the algorithm and its grid */
VERBENA_API verbena_result verbena_ops_choose(const verbena_ops* ops, verbena_ops_operation operation,
                                              size_t bytes, verbena_ops_choice* choice);

/* Reduces `input` element by element across all ranks. Every rank gets the result.
 * @param input      `count` elements of `type` in GPU memory, at any address
 * @param output     receives `count` elements; may be `input`, and must not overlap it otherwise
 * @param count      elements, the same on all ranks
 * @param reduction  sum, mean, minimum or maximum
 * @param choice     NULL: the library chooses */
VERBENA_API verbena_result verbena_ops_all_reduce(verbena_ops* ops, const void* input, void* output,
                                                  size_t count, verbena_ops_type type,
                                                  verbena_ops_reduction reduction,
                                                  const verbena_ops_choice* choice, verbena_stream stream);

/* Sums `input` across all ranks with quantised messages. Uses the exact verbena_ops_all_reduce() instead where
 * that is faster, as for small tensors, and for elements of 32 bits.
 * @param codec   VERBENA_OPS_FP8 to VERBENA_OPS_INT4_INT8
 * @param seed    0: rounds to nearest; otherwise rounds stochastically, differently in each call
 * @param choice  NULL: the library chooses; otherwise any algorithm, exact or quantised
 * The other parameters are those of verbena_ops_all_reduce(). */
VERBENA_API verbena_result verbena_ops_all_reduce_quantised(verbena_ops* ops, const void* input, void* output,
                                                            size_t count, verbena_ops_type type,
                                                            verbena_ops_algorithm codec, uint64_t seed,
                                                            const verbena_ops_choice* choice,
                                                            verbena_stream stream);
/* Returns the algorithm that verbena_ops_all_reduce_quantised() would use for a tensor of `bytes` bytes:
 * `codec`, or an exact algorithm. */
VERBENA_API verbena_result verbena_ops_choose_quantised(const verbena_ops* ops, verbena_ops_algorithm codec,
                                                        size_t bytes, verbena_ops_choice* choice);

/* How rows are quantised, to one byte an element: element = byte * scale. FP8 is e4m3. */
typedef enum {
  VERBENA_OPS_NOT_QUANTISED = 0,
  VERBENA_OPS_FP8_TENSOR = 1,         /* one float for the tensor, which the caller gives in `scales` */
  VERBENA_OPS_FP8_TOKEN = 2,          /* a float for each row: its largest magnitude / 448 */
  VERBENA_OPS_FP8_BLOCK = 3,          /* a float for each 128 elements of a row */
  VERBENA_OPS_FP8_BLOCK_POWER = 4,    /* the same, rounded up to powers of two */
  VERBENA_OPS_FP8_BLOCK_EXPONENT = 5, /* the exponents of these (UE8M0), four blocks in a 32-bit word */
  VERBENA_OPS_MXFP8_BLOCK = 6,        /* an exponent (E8M0), one byte, for each 32 elements */
  VERBENA_OPS_MXFP8_SWIZZLED = 7, /* the same in tiles of 128 rows of 4 exponents, 512 bytes, padded with 0 */
  VERBENA_OPS_INT8_TOKEN = 8      /* a float for each row: its largest magnitude / 127 */
} verbena_ops_quantisation;

/* RMSNorm of a tensor x, [rows][hidden] of float16 or bfloat16, with what models do around it:
 *   h = x + residual_in;  residual_out = h;
 *   output = h / sqrt(mean(h^2) + epsilon) * (weight + weight_offset);  quantised = quantise(output)
 * All pointers are GPU addresses of the caller's. NULL: there is no such tensor; weights are 1. residual_out
 * may be residual_in; otherwise nothing that is written may overlap. A stride is the distance from row to row,
 * in elements; for the quantised rows in bytes. */
typedef struct {
  size_t rows, hidden;
  const void* weight; /* [hidden] */
  float epsilon, weight_offset;
  uint32_t rounds_sum;    /* 1: h is rounded to the type before it is squared */
  uint32_t rounds_normed; /* 1: h / sqrt(...) is rounded before it is multiplied by the weight */
  const void* residual_in;
  void* residual_out;
  void* output;
  size_t residual_in_stride, residual_out_stride, output_stride;
  size_t padding; /* columns after `hidden` that are set to 0 in output and quantised rows */
  verbena_ops_quantisation quantisation;
  void* quantised; /* one byte an element */
  size_t quantised_stride;
  /* The scale of block b of row r is at r * scale_row_stride + b * scale_block_stride, in floats, words or
   * bytes. */
  void* scales;
  size_t scale_row_stride, scale_block_stride;
  float min_scale; /* min of the scales that are computed as floats; 0: 1e-10 */
} verbena_ops_norm;

/* Normalises the rows of x on this rank alone; no other rank takes part.
 * @param x       [norm->rows][norm->hidden]; may be norm->output or norm->residual_out
 * @param x_stride  stride of x, in elements
 * @param type    VERBENA_OPS_FLOAT16 or VERBENA_OPS_BFLOAT16
 * @param norm    read by the call */
VERBENA_API verbena_result verbena_ops_norm_rows(verbena_ops* ops, const void* x, size_t x_stride,
                                                 verbena_ops_type type, const verbena_ops_norm* norm,
                                                 verbena_stream stream);
/* Sums `input` across all ranks and normalises the rows of the sum: verbena_ops_all_reduce() followed by
 * verbena_ops_norm_rows(), with the same bits. Uses one kernel, which keeps rows in registers, for few rows,
 * or where `choice` names VERBENA_OPS_ONE_SHOT and the rows fit into registers and packet_bytes; otherwise two
 * kernels.
 * @param input  [norm->rows][norm->hidden] of `type`, contiguous
 * @param sum    receives the sum, contiguous; may be `input`, or norm->output if output_stride is `hidden`:
 *               that is the fastest
 * @param codec  of verbena_ops_all_reduce_quantised(); VERBENA_OPS_AUTO: the sum is exact */
VERBENA_API verbena_result verbena_ops_all_reduce_norm(verbena_ops* ops, const void* input, void* sum,
                                                       verbena_ops_type type, const verbena_ops_norm* norm,
                                                       verbena_ops_algorithm codec,
                                                       const verbena_ops_choice* choice,
                                                       verbena_stream stream);
/* The same in one kernel in which rank r normalises the r-th share of the rows, rows / ranks of them, rounded
 * up. Every rank gets `output` and the quantised rows of all shares; scales lie in rows or columns, not in
 * tiles.
 * @param sum  receives the rows of this rank's share; residual_in and residual_out have those rows alone */
VERBENA_API verbena_result verbena_ops_reduce_scatter_norm_all_gather(verbena_ops* ops, const void* input,
                                                                      void* sum, verbena_ops_type type,
                                                                      const verbena_ops_norm* norm,
                                                                      const verbena_ops_choice* choice,
                                                                      verbena_stream stream);

/* The tensors of the next calls are [rows][...], and every row has a part of each rank. To gather, scatter or
 * split along dimension d of a tensor, `rows` is the product of the dimensions before d: 1 for d = 0. Lengths
 * are bytes where nothing is computed. `choice` NULL: the library chooses. */

/* Concatenates the ranks' inputs along each row. Every rank gets the result.
 * @param input   [rows][row_bytes]; if `rows` is 1, it may be this rank's part of the output
 * @param output  [rows][ranks][row_bytes], the part of rank r from rank r */
VERBENA_API verbena_result verbena_ops_all_gather(verbena_ops* ops, const void* input, void* output,
                                                  size_t rows, size_t row_bytes,
                                                  const verbena_ops_choice* choice, verbena_stream stream);
/* Reduces the ranks' inputs element by element; each rank gets its part of the result.
 * @param input      [rows][ranks][row_count] elements of `type`
 * @param output     [rows][row_count]: the part of this rank; if `rows` is 1, it may be that part of the input
 * @param row_count  elements */
VERBENA_API verbena_result verbena_ops_reduce_scatter(verbena_ops* ops, const void* input, void* output,
                                                      size_t rows, size_t row_count, verbena_ops_type type,
                                                      verbena_ops_reduction reduction,
                                                      const verbena_ops_choice* choice,
                                                      verbena_stream stream);
/* Copies the root's `input` to the `output` of every rank.
 * @param input   length_bytes on rank `root`, where it may be `output`; ignored on other ranks
 * @param output  length_bytes
 * @param root    a rank of the team */
VERBENA_API verbena_result verbena_ops_broadcast(verbena_ops* ops, const void* input, void* output,
                                                 size_t length_bytes, uint32_t root,
                                                 const verbena_ops_choice* choice, verbena_stream stream);
/* Sends message_bytes to each rank, and receives as much from each. input and output must not overlap.
 * @param input          [split_rows][ranks][...]: the r-th part of each row goes to rank r
 * @param output         [joined_rows][ranks][...]: the r-th part of each row comes from rank r
 * @param message_bytes  of all rows of one rank's part
 * @param split_rows     1: the parts of each rank are contiguous
 * @param joined_rows    the same for the output */
VERBENA_API verbena_result verbena_ops_all_to_all(verbena_ops* ops, const void* input, void* output,
                                                  size_t message_bytes, size_t split_rows, size_t joined_rows,
                                                  const verbena_ops_choice* choice, verbena_stream stream);

/* The next three calls take parts of different lengths. Counts and offsets are int64 [ranks] in GPU memory, in
 * units of unit_bytes (a row, an element). The kernel reads them, so they may change between replays of a
 * graph. Offsets NULL: the parts are contiguous. If a part exceeds input_bytes or output_bytes the kernel does
 * nothing, and verbena_ops_get_error() reports VERBENA_INVALID_ARGUMENT. */
typedef struct {
  size_t unit_bytes, input_bytes, output_bytes;
  size_t expected_bytes; /* of a typical message, by which the algorithm is chosen; the same on all ranks */
} verbena_ops_sizes;
/* Gathers parts of different lengths: counts[r] units from rank r are written to offsets[r] of every rank's
 * output. Counts are the same on all ranks. */
VERBENA_API verbena_result verbena_ops_all_gather_v(verbena_ops* ops, const void* input, void* output,
                                                    const int64_t* counts, const int64_t* offsets,
                                                    const verbena_ops_sizes* sizes,
                                                    const verbena_ops_choice* choice, verbena_stream stream);
/* Reduces the ranks' inputs; rank r gets the counts[r] units at offsets[r] of the result. Counts are the same
 * on all ranks. */
VERBENA_API verbena_result verbena_ops_reduce_scatter_v(verbena_ops* ops, const void* input, void* output,
                                                        const int64_t* counts, const int64_t* offsets,
                                                        const verbena_ops_sizes* sizes, verbena_ops_type type,
                                                        verbena_ops_reduction reduction,
                                                        const verbena_ops_choice* choice,
                                                        verbena_stream stream);
/* Sends send_counts[r] units at send_offsets[r] of the input to rank r, and writes receive_counts[r] units from
 * rank r to receive_offsets[r] of the output. Each rank gives its own counts. */
VERBENA_API verbena_result verbena_ops_all_to_all_v(verbena_ops* ops, const void* input, void* output,
                                                    const int64_t* send_counts, const int64_t* send_offsets,
                                                    const int64_t* receive_counts,
                                                    const int64_t* receive_offsets,
                                                    const verbena_ops_sizes* sizes,
                                                    const verbena_ops_choice* choice, verbena_stream stream);

/* Group the calls between the two: group_end() enqueues them on its stream, in their order, in as few kernels
 * as possible. Streams of the calls themselves are ignored. A call must not read what an earlier call of its
 * group writes, unless the same block does both: same algorithm, length and address. */
VERBENA_API verbena_result verbena_ops_group_begin(verbena_ops* ops);
VERBENA_API verbena_result verbena_ops_group_end(verbena_ops* ops, verbena_stream stream);

/* Makes the stream wait for length_ns nanoseconds; for measurements. */
VERBENA_API verbena_result verbena_ops_pause(verbena_ops* ops, uint64_t length_ns, verbena_stream stream);

#ifdef __cplusplus
}
#endif

#endif
