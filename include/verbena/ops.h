/* Collectives between GPUs of one host, or of several, as kernels of libverbena_ops.so: all-reduce,
 * all-gather, reduce-scatter, broadcast, all-to-all, over a team of verbena.h. Tensors are raw pointers to
 * memory of the GPU, allocated in whatever way: nothing is registered and nothing is exchanged when a CUDA
 * graph has been captured. Results have the same bits on every rank.
 *
 * Calls with a stream put work into it and return: they never synchronise, and are legal while the stream is
 * captured. All members of the team make the same calls, in the same order, with the same counts, types and
 * choices; streams and addresses are each rank's own. Calls of one verbena_ops run one after the other: it
 * serves one stream at a time, and whoever goes on in another stream orders the two by an event. Streams that
 * run at the same time have a verbena_ops each.
 *
 * Every wait in a kernel ends after VERBENA_SYMM_TIMEOUT_MS. From then on no call computes anything: kernels,
 * also those of graphs that are replayed, fill their outputs with bytes of 0xff (NaN in every floating-point
 * type, -1 in int32), and the next call of each rank returns the error, which names the rank that did not
 * come: VERBENA_TIMEOUT, or VERBENA_INVALID_ARGUMENT where counts in a GPU's memory cannot be. Nothing else
 * has to be asked. verbena_ops_reset() on all ranks makes the communicator usable again. An all-gather by
 * copy engines is the exception: the driver's copies cannot be taken back, and go on.
 *
 * docs/collectives.md lists what may differ among ranks and what may not; VERBENA_OPS_CHECK=1 compares each
 * call's arguments among the ranks.
 */
#ifndef VERBENA_OPS_H
#define VERBENA_OPS_H

#include "verbena/verbena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_ops verbena_ops;
/* A cudaStream_t or CUstream. */
typedef void* verbena_stream;

typedef enum {
  VERBENA_OPS_FLOAT32 = 0,
  VERBENA_OPS_FLOAT16 = 1,
  VERBENA_OPS_BFLOAT16 = 2,
  VERBENA_OPS_INT32 = 3,
  VERBENA_OPS_E4M3 = 4 /* 8 bits, no infinities */
} verbena_ops_type;

/* Floating-point numbers are summed in float, in the order of ranks, and rounded once; across hosts in
 * the order of ranks in each host, then of hosts by their first ranks. int32 wraps round, and its
 * mean is cut towards zero. The least or largest of numbers with a NaN among them is a NaN. */
typedef enum {
  VERBENA_OPS_SUM = 0,
  VERBENA_OPS_MEAN = 1,
  VERBENA_OPS_MIN = 2,
  VERBENA_OPS_MAX = 3
} verbena_ops_reduction;

/* How data travels. One shot: each rank sends its whole tensor to every other one; two shots: rank r sums the
 * r-th part and sends the sum to all; of a broadcast, it gets that part and sends it to all. Packets are
 * stores of 16 bytes that need no flag, for all but large tensors; bulk: chunks with a flag behind each.
 * Results are the same, bit for bit. Direct, if it is asked for or
 * verbena_ops_options::has_windows, is for an all-reduce whose input and output lie in windows of the
 * context, each at the same place on all ranks and at a multiple of 16 bytes: inputs are read, and outputs
 * written, where they lie. If they are asked for, copy engines: an all-gather in one row whose output lies in
 * a window of the context, at the same place on all ranks, goes there without the SMs' work, but for the
 * moments before and behind it in which the ranks wait for each other. */
typedef enum {
  VERBENA_OPS_AUTO = 0,
  VERBENA_OPS_ONE_SHOT = 1,
  VERBENA_OPS_TWO_SHOT = 2,
  VERBENA_OPS_BULK_ONE_SHOT = 3,
  VERBENA_OPS_BULK_TWO_SHOT = 4,
  VERBENA_OPS_COPY_ENGINES = 5,
  VERBENA_OPS_DIRECT = 6,
  /* All-reduces alone, sums of float16 and bfloat16: quantised bulk two shots, which change the results
   * (docs/quantisation.md), the same on all ranks. Terms and sums as e4m3 (a scale for 64 numbers), as
   * integers of 8, 6 or 4 bits (a lowest and a highest number for 128, 128, 32), as MXFP8; or terms by the
   * first and sums by the second. Across hosts each host's sums are the terms, and nothing else is coded.
   * Never chosen unless asked for. */
  VERBENA_OPS_FP8 = 16,
  VERBENA_OPS_INT8 = 17,
  VERBENA_OPS_INT6 = 18,
  VERBENA_OPS_INT4 = 19,
  VERBENA_OPS_MXFP8 = 20,
  VERBENA_OPS_FP8_INT8 = 21,
  VERBENA_OPS_INT4_INT8 = 22
} verbena_ops_algorithm;

/* Zeros are defaults. The same on all ranks. */
typedef struct {
  /* GPU memory of the workspaces for packets and for chunks; 0: 1 MiB and 512 KiB for each of `blocks`, at
   * least 32 and 16 MiB, at most 128 and 64 MiB; across hosts twice 64 MiB, for chunks alone. */
  size_t packet_bytes, chunk_bytes;
  /* Most blocks of a kernel, 1 to 512, by chunks of twice as many; 0: 128, or less on GPUs of fewer
   * multiprocessors, and at most half of these for a communicator that is not the only one of a process.
   * Blocks wait for those of other ranks: where kernels of several communicators run at the same time and are
   * launched in another order on some rank, all their blocks together must fit on each GPU. */
  uint32_t blocks;
  /* 1: a kernel lets the next one of its stream begin before it has ended (programmatic dependent launch).
   * Only where every kernel behind it that is launched so waits for it. */
  uint32_t lets_next_start;
  /* Measurements of this platform (verbena-coll --calibrate); null: VERBENA_TUNING_FILE's. The file's content
   * is the same on all ranks. */
  const char* tuning_file;
  /* For tests of programmatic dependent launch: how long each kernel does nothing in front of its wait for
   * the kernels before it, and behind what lets the next one begin. */
  uint32_t pause_before_ns, pause_after_ns;
  /* 1: the promise that in each all-reduce the ranks agree: either input and output of all ranks lie in
   * windows, each at the same offset on all ranks, or no rank has both in windows. verbena_ops_all_reduce()
   * then takes the direct algorithm where it is faster. The same on all ranks. */
  uint32_t has_windows;
} verbena_ops_options;

/* Which algorithm, and by how many blocks and threads; zeros choose. Exchanges, which is all
 * but all-reduce, take one shot: two are one for them, but for a broadcast by chunks of three ranks or more.
 */
typedef struct {
  verbena_ops_algorithm algorithm;
  uint32_t blocks;      /* at most verbena_ops_options::blocks, of bulk algorithms and codes twice that */
  uint32_t threads;     /* of a block: a multiple of 32, at most 512 */
  uint32_t chunk_bytes; /* of bulk algorithms: a multiple of 16 */
} verbena_ops_choice;

/* Collective over the context, with its GPU current: members give the team, of at most 16 ranks, other ranks
 * null; null options are defaults. All ranks get a handle; those of no member serve the collective calls
 * alone. The team may be freed before it.
 *
 * Loads and stores reach all of the team, or it has equally many ranks of each of several hosts, in a context
 * of verbena_context_create(). Then there are VERBENA_OPS_BULK_TWO_SHOT and its quantised forms alone: the
 * setting and measurements do not count, other algorithms in a `choice`, copy engines and
 * verbena_ops_reduce_scatter_norm_all_gather() are refused with VERBENA_INVALID_USAGE. */
VERBENA_API verbena_result verbena_ops_create(verbena_context* context, const verbena_team* team,
                                              const verbena_ops_options* options, verbena_ops** ops);
/* Collective over the context. No kernel of any rank uses it any more. Before the context's end. */
VERBENA_API verbena_result verbena_ops_destroy(verbena_ops* ops);
/* Collective over the context, after an error: waits until this rank's GPU has nothing left to do, then
 * clears the workspaces of all ranks. VERBENA_CUDA_ERROR while a stream of this thread is captured. */
VERBENA_API verbena_result verbena_ops_reset(verbena_ops* ops);
/* VERBENA_SUCCESS, or why a call's result is not there: VERBENA_TIMEOUT and who did not come;
 * VERBENA_INVALID_ARGUMENT and whose call could not be; other results as verbena_context_get_error(). The
 * text is cut to `length` bytes with its zero; null: none. Takes some microseconds, as it reads memory of the
 * GPU. */
VERBENA_API verbena_result verbena_ops_get_error(verbena_ops* ops, char* text, size_t length);
VERBENA_API uint32_t verbena_ops_rank(const verbena_ops* ops);
VERBENA_API uint32_t verbena_ops_size(const verbena_ops* ops);

typedef enum {
  VERBENA_OPS_ALL_REDUCE = 0,
  VERBENA_OPS_ALL_GATHER = 1,
  VERBENA_OPS_REDUCE_SCATTER = 2,
  VERBENA_OPS_BROADCAST = 3,
  VERBENA_OPS_ALL_TO_ALL = 4
} verbena_ops_operation;

/* What a call of so many bytes would be done by: what VERBENA_OPS_ALGORITHM says, or what was measured to be
 * the fastest, or the library's own rules. Of an all-reduce the tensor's bytes count, of all others a
 * message's. */
VERBENA_API verbena_result verbena_ops_choose(const verbena_ops* ops, verbena_ops_operation operation,
                                              size_t bytes, verbena_ops_choice* choice);

/* `count` elements of each rank become one. `output` may be `input`; they do not overlap in another way. Null
 * `choice`: chosen. */
VERBENA_API verbena_result verbena_ops_all_reduce(verbena_ops* ops, const void* input, void* output,
                                                  size_t count, verbena_ops_type type,
                                                  verbena_ops_reduction reduction,
                                                  const verbena_ops_choice* choice, verbena_stream stream);

/* The same, quantised, where that is faster: by `codec`, VERBENA_OPS_FP8 to VERBENA_OPS_INT4_INT8, or as
 * verbena_ops_all_reduce() does it, for a tensor so small or numbers of 32 bits. `seed` other than 0 rounds
 * stochastically, right on average, other numbers in each call. `choice` chooses among all algorithms. */
VERBENA_API verbena_result verbena_ops_all_reduce_coded(verbena_ops* ops, const void* input, void* output,
                                                        size_t count, verbena_ops_type type,
                                                        verbena_ops_algorithm codec, uint64_t seed,
                                                        const verbena_ops_choice* choice,
                                                        verbena_stream stream);
/* What that would be done by. */
VERBENA_API verbena_result verbena_ops_choose_coded(const verbena_ops* ops, verbena_ops_algorithm codec,
                                                    size_t bytes, verbena_ops_choice* choice);

/* How rows are quantised, one byte a number: number = byte * scale. FP8 is e4m3. */
typedef enum {
  VERBENA_OPS_NOT_QUANTISED = 0,
  VERBENA_OPS_FP8_TENSOR = 1,         /* by one float, which `scales` gives */
  VERBENA_OPS_FP8_TOKEN = 2,          /* a float for each row: its largest magnitude / 448 */
  VERBENA_OPS_FP8_BLOCK = 3,          /* a float for each 128 numbers of a row */
  VERBENA_OPS_FP8_BLOCK_POWER = 4,    /* the same, powers of two, rounded up */
  VERBENA_OPS_FP8_BLOCK_EXPONENT = 5, /* their exponents (UE8M0) alone, those of four blocks in a word */
  VERBENA_OPS_MXFP8_BLOCK = 6,        /* an exponent (E8M0), a byte, for each 32 numbers */
  VERBENA_OPS_MXFP8_SWIZZLED = 7, /* in tiles of 128 rows of 4 exponents, 512 bytes, zeros behind the rows */
  VERBENA_OPS_INT8_TOKEN = 8      /* a float for each row: its largest magnitude / 127 */
} verbena_ops_quantisation;

/* RMSNorm of `rows` rows of `hidden` numbers of a tensor x of float16 or bfloat16: h = x + residual_in;
 * residual_out = h; output = h / sqrt(mean(h^2) + epsilon) * (weight + weight_offset); and `output`
 * quantised. Tensors begin where they are given, their rows so many elements (steps) apart. Null:
 * there is no such tensor, or a weight of ones. residual_out may be residual_in; nothing else that is written
 * overlaps. */
typedef struct {
  size_t rows, hidden;
  const void* weight;
  float epsilon, weight_offset;
  uint32_t rounds_sum;    /* 1: h is rounded to the type before it is squared */
  uint32_t rounds_normed; /* 1: so is h / sqrt(...) before it is multiplied by the weight */
  const void* residual_in;
  void* residual_out;
  void* output;
  size_t residual_in_step, residual_out_step, output_step;
  size_t padding; /* columns of output and quantised rows behind `hidden` that become 0 */
  verbena_ops_quantisation quantisation;
  void* quantised; /* bytes */
  size_t quantised_step;
  void* scales; /* of block b of row r at r * scale_row_step + b * scale_block_step, in floats, words or bytes
                 */
  size_t scale_row_step, scale_block_step;
  float least_scale; /* of those computed as floats; 0: 1e-10 */
} verbena_ops_norm;

/* On this rank alone; x has rows x_step elements apart, and may be `output` or
 * residual_out. */
VERBENA_API verbena_result verbena_ops_norm_rows(verbena_ops* ops, const void* x, size_t x_step,
                                                 verbena_ops_type type, const verbena_ops_norm* norm,
                                                 verbena_stream stream);
/* x is the sum of all ranks' `input`, contiguous rows, which comes to lie in `sum`: that may be `input`, or
 * `output` where output_step is `hidden`, which is the fastest. One kernel, in which rows stay in registers,
 * for few rows, or where `choice` names VERBENA_OPS_ONE_SHOT and they have room there and in packet_bytes;
 * two kernels otherwise. The same bits as by verbena_ops_all_reduce() and verbena_ops_norm_rows(). `codec` as
 * verbena_ops_all_reduce_coded() has it, or VERBENA_OPS_AUTO for none. */
VERBENA_API verbena_result verbena_ops_all_reduce_norm(verbena_ops* ops, const void* input, void* sum,
                                                       verbena_ops_type type, const verbena_ops_norm* norm,
                                                       verbena_ops_algorithm codec,
                                                       const verbena_ops_choice* choice,
                                                       verbena_stream stream);
/* The same in one kernel, each rank norming its share of the rows, the r-th rank the r-th (rows / ranks,
 * rounded up), and all getting `output` and the quantised rows of all; scales lie in rows or columns, not in
 * tiles. `sum` has room for the share's rows; residual_in and residual_out have those alone. */
VERBENA_API verbena_result verbena_ops_reduce_scatter_norm_all_gather(verbena_ops* ops, const void* input,
                                                                      void* sum, verbena_ops_type type,
                                                                      const verbena_ops_norm* norm,
                                                                      const verbena_ops_choice* choice,
                                                                      verbena_stream stream);

/* Tensors of the following are `rows` rows, a message of each rank in every row: one row for the first
 * dimension of a tensor, as many as the dimensions before it have for another one. Lengths are in bytes where
 * nothing is computed. Null `choice`: chosen. */

/* `output` is rows of team_size * row_bytes, the r-th row_bytes of each row from rank r, whose `input` is
 * rows of row_bytes. In one row `input` may be this rank's part of the output. */
VERBENA_API verbena_result verbena_ops_all_gather(verbena_ops* ops, const void* input, void* output,
                                                  size_t rows, size_t row_bytes,
                                                  const verbena_ops_choice* choice, verbena_stream stream);
/* `input` is rows of team_size * row_count elements, `output` rows of row_count: this rank's of what the
 * ranks' inputs become together. In one row `output` may be this rank's part of the input. */
VERBENA_API verbena_result verbena_ops_reduce_scatter(verbena_ops* ops, const void* input, void* output,
                                                      size_t rows, size_t row_count, verbena_ops_type type,
                                                      verbena_ops_reduction reduction,
                                                      const verbena_ops_choice* choice,
                                                      verbena_stream stream);
/* `output` becomes rank `root`'s `input`, which no other rank needs. There it may be `input`. */
VERBENA_API verbena_result verbena_ops_broadcast(verbena_ops* ops, const void* input, void* output,
                                                 size_t length_bytes, uint32_t root,
                                                 const verbena_ops_choice* choice, verbena_stream stream);
/* Of `message_bytes` to each rank. `input` is split: rows of team_size parts, the r-th part of each row for
 * rank r. `output` is joined: rows of team_size parts, the r-th of each from rank r. 1: all parts behind each
 * other. They do not overlap. */
VERBENA_API verbena_result verbena_ops_all_to_all(verbena_ops* ops, const void* input, void* output,
                                                  size_t message_bytes, size_t split_rows, size_t joined_rows,
                                                  const verbena_ops_choice* choice, verbena_stream stream);

/* The same where lengths differ. Counts and offsets are int64, [team_size], in memory of the GPU, in units of
 * unit_bytes (a row, an element); the kernel reads them, so that they may change from replay to replay of a
 * graph. Null offsets: each part lies behind the one before. What lies beyond input_bytes or output_bytes is
 * refused by the kernel, which then does nothing (verbena_ops_get_error). */
typedef struct {
  size_t unit_bytes, input_bytes, output_bytes;
  size_t expected_bytes; /* of a message, the same on all ranks: by it the algorithm is chosen */
} verbena_ops_extent;
/* counts[r] units come from rank r and lie at offsets[r] of the output; counts are the same on all ranks. */
VERBENA_API verbena_result verbena_ops_all_gather_v(verbena_ops* ops, const void* input, void* output,
                                                    const int64_t* counts, const int64_t* offsets,
                                                    const verbena_ops_extent* extent,
                                                    const verbena_ops_choice* choice, verbena_stream stream);
/* counts[r] units, those at offsets[r] of all inputs, become rank r's output; counts are the same on all
 * ranks. */
VERBENA_API verbena_result verbena_ops_reduce_scatter_v(
    verbena_ops* ops, const void* input, void* output, const int64_t* counts, const int64_t* offsets,
    const verbena_ops_extent* extent, verbena_ops_type type, verbena_ops_reduction reduction,
    const verbena_ops_choice* choice, verbena_stream stream);
/* send_counts[r] units, at send_offsets[r] of the input, go to rank r; receive_counts[r], at
 * receive_offsets[r] of the output, come from it. Each rank knows its own alone. */
VERBENA_API verbena_result verbena_ops_all_to_all_v(verbena_ops* ops, const void* input, void* output,
                                                    const int64_t* send_counts, const int64_t* send_offsets,
                                                    const int64_t* receive_counts,
                                                    const int64_t* receive_offsets,
                                                    const verbena_ops_extent* extent,
                                                    const verbena_ops_choice* choice, verbena_stream stream);

/* Calls between the two are put into the stream of group_end() by as few kernels as possible, in their order;
 * the streams that they name do not count. A call does not use what one before it in the group computes,
 * unless by the same block: of the same algorithm, length and place. */
VERBENA_API verbena_result verbena_ops_group_begin(verbena_ops* ops);
VERBENA_API verbena_result verbena_ops_group_end(verbena_ops* ops, verbena_stream stream);

/* For measurements: the stream does nothing for so long. */
VERBENA_API verbena_result verbena_ops_pause(verbena_ops* ops, uint64_t length_ns, verbena_stream stream);

#ifdef __cplusplus
}
#endif

#endif
