/* Mixture of experts: moves tokens to the ranks of their experts (dispatch) and brings the experts' rows back
 * (combine), as kernels of libverbena_ops.so. Each call is one kernel, without a barrier; counts stay on the
 * GPU. Within a host, a dispatch sends a row only once to each rank, in one NVLink hop, even if several of
 * the row's experts are on that rank. Between hosts, a dispatch sends a row only once to each host, over
 * NICs, and the combine returns one sum from each host. Every run gives results with the same bits.
 *
 *   verbena_moe_create(context, team, &options, &moe);   // once, on all ranks
 *   verbena_moe_get_layout(moe, &layout);                // a handle has layout.bytes of GPU memory
 *   verbena_moe_dispatch(moe, &dispatch, stream);        // rows, ids -> output, handle
 *   ... the experts read the output, and the counts, ids and weights in the handle ...
 *   verbena_moe_combine(moe, &combine, stream);          // the experts' rows, handle -> one row per token
 *
 * Experts are numbered 0 to experts - 1. Each rank has (experts / ranks) experts, and the first expert of
 * rank r has number r * (experts / ranks). Every rank must make the same calls in the same order, with the
 * same row_bytes, scale_bytes, order and blocks. A dispatch must group its rows by rank on all ranks, or by
 * expert on all ranks. The number of tokens, the ids, the addresses and the streams may differ between ranks.
 * A rank without tokens must make the calls, too.
 *
 * Each token has top_k slots, with the id of an expert in each slot. If an id is negative, or is `experts` or
 * more, the slot has no expert: the slot is not sent and adds nothing to the combined row. A token without
 * any expert is not sent, and its combined row is zeros. An expert that appears twice in a token's ids counts
 * twice.
 *
 * Threads: only one thread at a time may use a verbena_moe. Streams: the calls of one verbena_moe must run
 * one after the other. To continue on a different stream, make the new stream wait for an event that was
 * recorded on the old stream. Use a separate verbena_moe for each of several batches that overlap. An
 * application may keep several handles: a combine takes the handle that its dispatch wrote. Graph capture:
 * dispatch and combine only enqueue kernels; they do not allocate memory and do not synchronise. Kernels read
 * ids, weights and rows when they run, so this data may change between replays.
 *
 * Every wait in a kernel ends after at most VERBENA_SYMM_TIMEOUT_MS. After a timeout, the call and all later
 * calls fill their outputs with 0xff bytes (NaN; ids and sources are -1) and set counts to 0. The next call
 * returns VERBENA_TIMEOUT and names the late rank. The CUDA context stays valid. To continue, call
 * verbena_moe_reset() on all ranks.
 *
 * Several hosts: a team may span 2 to 8 hosts, with the same number of ranks on each host. The context of the
 * team must use Verbena's own network (verbena_context_create()). The counterparts of a rank are the ranks
 * that have the same index on the other hosts. A rank sends its rows for another host to its counterpart on
 * that host. The counterpart forwards the rows to the other ranks of its host and, in a combine, adds up the
 * rows of its host. The counterpart forwards and adds rows in the phase RECEIVE. Therefore, between hosts, a
 * call makes progress only once all ranks have started RECEIVE.
 */
#ifndef VERBENA_MOE_H
#define VERBENA_MOE_H

#include "verbena/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An exchange: the workspaces with which the ranks of a team dispatch and combine. */
typedef struct verbena_moe verbena_moe;

/* Options of verbena_moe_create(). They must be the same on all ranks. */
typedef struct {
  uint32_t experts;         /* number of experts on all ranks, 1 to 4096, a multiple of the team's size */
  uint32_t max_tokens;      /* max tokens per rank, 1 to 16384; for R > 4 ranks, 1 to 2048 / R * 32 */
  uint32_t top_k;           /* experts per token, 1 to 32 */
  uint32_t hidden;          /* elements of a combined row, 16 bits each; a multiple of 8 */
  uint32_t max_row_bytes;   /* max size of a dispatched row, a multiple of 16; 0 means 2 * hidden */
  uint32_t max_scale_bytes; /* max size of the scales of a dispatched row; 0 if rows have no scales */
  /* 1 if calls may use VERBENA_MOE_EXACT. The workspace then has memory for top_k combined rows per token
   * instead of min(ranks, top_k). Must be 0 if the team spans hosts. */
  uint32_t exact;
  uint32_t blocks;              /* max blocks of a kernel, 1 to 256; 0 means as many as fit on every GPU */
  uint32_t programmatic_launch; /* like verbena_ops_options::programmatic_launch */
  /* 1 if ranks should access the rows in each other's windows (verbena_window_allocate()), for long batches
   * and few blocks. A dispatch then stores each row directly in the outputs of the experts' ranks, and a
   * combine loads the experts' rows directly. The workspace needs no memory for rows. All ranks of the team
   * must be on one host. Calls may use only VERBENA_MOE_BY_RANK, VERBENA_MOE_ROWS and VERBENA_MOE_BOTH, and
   * must pass the same quantisation and column_scales on all ranks. Output, output_scales and handle of a
   * dispatch, and rows of a combine, must lie in windows, at their symmetric addresses, and be aligned to 16
   * bytes; their offsets in the windows may differ between ranks. A call waits for all other ranks at its
   * beginning and at its end. After a failed call, other ranks may still access this memory until
   * verbena_moe_reset(): do not free it earlier, and do not rely on the bytes 0xff of failed calls. */
  uint32_t in_windows;
} verbena_moe_options;

/* How the rows of a dispatch's output are grouped. */
typedef enum {
  /* The output has shape [ranks][max_tokens] and contains each received row once. The rows from source rank r
   * are the first counts[r] rows of entry r, in the order of r's tokens. */
  VERBENA_MOE_BY_RANK = 0,
  /* The output has shape [experts / ranks][ranks * max_tokens] and contains each received row once for each
   * of the row's experts on this rank. The rows for expert e are the first expert_counts[e] rows of entry e,
   * in the order of source ranks, then of tokens. */
  VERBENA_MOE_BY_EXPERT = 1,
  /* The output has shape [output_rows] and contains the groups of VERBENA_MOE_BY_EXPERT one after the other.
   * The group of expert e begins at row expert_begins[e], a multiple of `alignment`. */
  VERBENA_MOE_RAGGED = 2
} verbena_moe_grouping;

/* Byte offsets of the tensors in a handle. In tensors of shape [ranks][max_tokens], received row i of source
 * rank r has index r * max_tokens + i, for every grouping. */
typedef struct {
  size_t bytes;   /* size of a handle */
  size_t counts;  /* int32 [ranks]: number of rows received from each rank */
  size_t sources; /* int32 [ranks][max_tokens]: token index of each row, on its source rank; -1 after the
                     last */
  size_t ids;     /* int32 [ranks][max_tokens][top_k]: experts of this rank, 0 to experts / ranks - 1;
                     -1 if the slot's expert is on another rank, and after the last row */
  size_t weights; /* float [ranks][max_tokens][top_k]: weights of the ids; 0 where the id is -1 */
  /* The next three tensors describe groups, for dispatches that group rows by expert: */
  size_t places; /* int32 [ranks][max_tokens][top_k]: the output row for each id; -1 where the id is -1 */
  size_t expert_counts; /* int32 [experts / ranks]: number of rows in the group of each expert */
  size_t expert_begins; /* int32 [experts / ranks]: the first row of each group */
  /* The routing of this rank's own tokens. To dispatch other rows to the same experts, pass these tensors as
   * `ids` (with id_bits 32) and `weights` to another dispatch. That dispatch must write a different
   * handle. */
  size_t own_ids;     /* int32 [max_tokens][top_k]; -1: no expert */
  size_t own_weights; /* float [max_tokens][top_k] */
} verbena_moe_layout;

/* How a combine adds a token's rows. All sums are float; each rank rounds once, to nearest. */
typedef enum {
  /* `rows` has one row for each received row: [ranks][max_tokens][hidden]. The caller has already added up
   * the rows of this rank's experts, with their weights; the call ignores the weights in the handle. The
   * source rank adds the rows in the order of ranks. Every other host sends one sum: the host adds its ranks'
   * rows in the order of ranks, and rounds the sum. The source rank adds these sums, in the order of hosts,
   * to the sum of its own host. */
  VERBENA_MOE_ROWS = 0,
  /* `rows` has one row for each expert of each received row: [ranks][max_tokens][top_k][hidden]; slots whose
   * id is -1 are not read. If the dispatch grouped its output by expert, `rows` must be grouped in the same
   * way. The experts' rank adds the rows with their weights in top-k order, and rounds the sum. The source
   * rank adds these sums like the rows of VERBENA_MOE_ROWS. */
  VERBENA_MOE_REDUCED = 1,
  /* `rows` has the same shape as for VERBENA_MOE_REDUCED. Each row is sent to the source rank, which adds the
   * rows with their weights in top-k order. This order sends up to top_k / ranks times as many bytes as
   * VERBENA_MOE_REDUCED. All ranks must be on one host. */
  VERBENA_MOE_EXACT = 2
} verbena_moe_order;

/* A call may be split into phases, which are separate kernels: SEND sends this rank's rows, and RECEIVE waits
 * for the other ranks' rows. Kernels that run between the two phases can use all multiprocessors. All phases
 * of a call must have the same arguments, except for `phase` and `blocks`; otherwise RECEIVE returns
 * VERBENA_INVALID_USAGE. The memory to which the arguments point must not change between the phases, and the
 * output is complete after RECEIVE. A verbena_moe can have at most one dispatch and one combine in flight.
 * All ranks must split a call into the same phases. */
typedef enum {
  VERBENA_MOE_BOTH = 0,
  VERBENA_MOE_SEND = 1,
  VERBENA_MOE_RECEIVE = 2,
  /* An optional phase between SEND and RECEIVE, for a dispatch that groups by expert. It waits for the ids of
   * all rows, and writes the counts, sources, ids and weights of the handle. The caller can then count the
   * rows before it allocates the output: RECEIVE may pass values of `output`, `output_scales`, `output_rows`,
   * `row_sources` and `row_experts` that differ from the values in the earlier phases. */
  VERBENA_MOE_RECEIVE_IDS = 3
} verbena_moe_phase;

/* Arguments of verbena_moe_dispatch(). All pointers are GPU addresses. The caller owns all memory and must
 * keep it until the kernel has finished. */
typedef struct {
  uint32_t tokens;      /* number of this rank's tokens, at most max_tokens */
  uint32_t row_bytes;   /* size of a row, a multiple of 16, at most max_row_bytes; elements of any type */
  const void* rows;     /* [tokens]; each row is aligned to 16 bytes */
  size_t row_stride;    /* bytes between the starts of rows, a multiple of 16; 0 means row_bytes */
  uint32_t scale_bytes; /* size of a row's scales, which are copied unchanged; 0 if rows have no scales */
  uint32_t id_bits;     /* 32 or 64 */
  const void* scales;   /* [tokens] */
  size_t scale_stride;  /* bytes between the scales of two rows; 0 means scale_bytes */
  const void* ids;      /* int32 or int64 [tokens][top_k], aligned to an element */
  size_t id_stride;     /* elements between the ids of two tokens; 0 means top_k */
  const float* weights; /* [tokens][top_k], aligned to an element; if NULL, all weights are 1 */
  void* output;         /* rows of row_bytes, in the shape that `grouping` gives, aligned to 16 bytes; rows
                           without a token are not written */
  void* output_scales;  /* scale_bytes for each row of the output; NULL if scale_bytes is 0 and rows are not
                           quantised. Scales of quantised rows are aligned to 4 bytes. */
  void* handle;         /* receives a handle of verbena_moe_layout::bytes, aligned to 16 bytes */
  uint32_t blocks;      /* blocks of the kernel, at most the option `blocks`; 0 means the option's value */
  verbena_moe_phase phase;
  /* VERBENA_OPS_NOT_QUANTISED, or one of VERBENA_OPS_FP8_BLOCK, _FP8_BLOCK_POWER and _FP8_BLOCK_EXPONENT, to
   * quantise rows of `type` while they are sent. A row of n elements then has row_bytes = 2 * n, a multiple
   * of 32; scale_bytes must be 0 and scales NULL; each output row has n bytes (e4m3). Each row of
   * output_scales has (n + 127) / 128 floats. For _FP8_BLOCK_EXPONENT, a row has (n + 511) / 512 words
   * instead; each word contains four UE8M0 exponents, with the first exponent in the lowest byte. The value
   * of an element is its e4m3 byte times the scale. Each group of 128 elements has one scale: the largest
   * magnitude of these elements / 448, but at least 1e-4 / 448. max_row_bytes and max_scale_bytes limit the
   * sizes of the quantised rows and of their float scales. */
  verbena_ops_quantisation quantisation;
  verbena_ops_type type; /* type of rows to quantise: VERBENA_OPS_BFLOAT16 or VERBENA_OPS_FLOAT16 */
  verbena_moe_grouping grouping;
  /* For VERBENA_MOE_RAGGED: each group begins at a row whose index is a multiple of `alignment`, at most
   * 65536; 0 means 1. */
  uint32_t alignment;
  /* For VERBENA_MOE_RAGGED: number of rows of the output. verbena_moe_max_rows() returns a number that is
   * enough for any routing. If the groups need more rows than this number, the call fails on all ranks, as
   * after a timeout. */
  uint32_t output_rows;
  /* 1 if the scales of quantised rows should be stored in columns: [groups][scales of a row][rows of a
   * group], so that the scales of successive rows are contiguous. VERBENA_MOE_RAGGED has a single group. */
  uint32_t column_scales;
  /* int32 [rows of the output], for rows that are grouped by expert; may be NULL. row_sources receives, for
   * each row of the output, the index of the received row, as in the handle. row_experts receives the expert
   * of each row, 0 to experts / ranks - 1. Rows without a token get -1. */
  int32_t* row_sources;
  int32_t* row_experts;
} verbena_moe_dispatch_arguments;

/* Arguments of verbena_moe_combine(). All pointers are GPU addresses. The caller owns all memory and must
 * keep it until the kernel has finished. */
typedef struct {
  uint32_t tokens; /* number of this rank's tokens, as in the dispatch that wrote the handle */
  verbena_moe_order order;
  verbena_ops_type type; /* type of rows and output: VERBENA_OPS_BFLOAT16 or VERBENA_OPS_FLOAT16 */
  uint32_t blocks;       /* like verbena_moe_dispatch_arguments::blocks */
  verbena_moe_phase phase;
  const void*
      rows; /* the shape depends on `order`; aligned to 16 bytes; NULL if a ragged output has no rows */
  const void* handle;            /* the handle that this rank's dispatch has written */
  void* output;                  /* [tokens][hidden], aligned to 16 bytes */
  verbena_moe_grouping grouping; /* grouping of the dispatch */
  /* For VERBENA_MOE_EXACT: [tokens][top_k] weights to use instead of the weights of the dispatch, or NULL to
   * use the weights of the dispatch. Must be NULL for all other orders, because for these orders the experts'
   * ranks compute sums with the weights of the dispatch. */
  const float* weights;
} verbena_moe_combine_arguments;

/* Returns the size in bytes of the workspace that an exchange between `ranks` ranks of one host allocates on
 * each rank. The size does not depend on options->blocks. Returns 0 if the options are invalid. */
VERBENA_API size_t verbena_moe_workspace_bytes(const verbena_moe_options* options, uint32_t ranks);

/* Like verbena_moe_workspace_bytes(), but for an exchange that spans `hosts` hosts. Each host has `ranks` /
 * `hosts` ranks. */
VERBENA_API size_t verbena_moe_workspace_bytes_across(const verbena_moe_options* options, uint32_t ranks,
                                                      uint32_t hosts);

/* Returns a number of rows that is enough for the output of a dispatch between `ranks` ranks, for any
 * routing. Returns 0 if the options or the alignment are invalid.
 * @param alignment  for VERBENA_MOE_RAGGED: alignment of the groups, in rows, at most 65536; 0 means 1 */
VERBENA_API size_t verbena_moe_max_rows(const verbena_moe_options* options, uint32_t ranks,
                                        verbena_moe_grouping grouping, uint32_t alignment);

/* Creates an exchange. Collective over the context; on each rank, the context's GPU must be current. The call
 * allocates memory, so it must not be made during graph capture.
 * @param context  must outlive the exchange
 * @param team     1 to 32 ranks, on one host or evenly distributed over several hosts; ranks of the same host
 *                 must reach each other by loads and stores. May be freed before the exchange. NULL on ranks
 *                 that are not members. These ranks use their exchange only in the collective calls
 * @param options  copied by the call
 * @param moe      receives the exchange, unchanged after an error; free it with verbena_moe_destroy()
 * @return VERBENA_INVALID_ARGUMENT on ranks whose options are invalid, and VERBENA_REMOTE_ERROR on all other
 *         ranks;
 *         VERBENA_INVALID_USAGE if the ranks' options differ;
 *         VERBENA_INVALID_USAGE if the team spans hosts, and one of the following is true: the hosts have
 *         different numbers of ranks; there are more than 8 hosts; the option `exact` or `in_windows` is set;
 *         the context uses another library's network */
VERBENA_API verbena_result verbena_moe_create(verbena_context* context, const verbena_team* team,
                                              const verbena_moe_options* options, verbena_moe** moe);
/* Destroys the exchange. Collective over the context; call it before verbena_context_destroy(). No kernel on
 * any rank may still be using the exchange. */
VERBENA_API verbena_result verbena_moe_destroy(verbena_moe* moe);
/* Makes the exchange usable again after an error. Collective over the context. Each rank waits until its GPU
 * is idle. Then all ranks clear their workspaces. Must not be called during graph capture. */
VERBENA_API verbena_result verbena_moe_reset(verbena_moe* moe);
/* Checks whether the results of earlier calls are valid. Returns the same errors as verbena_ops_get_error().
 * @param text    receives the reason, truncated to `length` bytes including the terminating NUL; may be NULL
 * @param length  size of `text` in bytes */
VERBENA_API verbena_result verbena_moe_get_error(verbena_moe* moe, char* text, size_t length);
/* Sets which ranks take part in later calls. Initially all ranks take part. Later calls ignore ids of experts
 * on excluded ranks, receive no rows from excluded ranks, and do not wait for them. All ranks of the mask
 * must set the same mask between the same two calls; excluded ranks must make no calls. The function does not
 * communicate. A graph keeps the mask with which it was captured. A handle may be used only with the mask of
 * its dispatch. To continue without a late rank, call verbena_moe_reset(), which keeps the mask, and then
 * this function. If the team spans hosts, exclude either whole hosts, or the ranks with the same index on
 * every host.
 * @param living  bit r is set if rank r of the team takes part; this rank's own bit must be set
 * @return VERBENA_INVALID_USAGE between the phases of a call;
 *         VERBENA_INVALID_USAGE if the mask has a rank that was excluded from a call since the last reset;
 *         that rank's memory is not in the same state as the memory of the other ranks */
VERBENA_API verbena_result verbena_moe_set_mask(verbena_moe* moe, uint64_t living);
/* Returns the mask that verbena_moe_set_mask() has set, or a mask of all ranks.
 * @param living  receives the mask */
VERBENA_API verbena_result verbena_moe_get_mask(const verbena_moe* moe, uint64_t* living);
/* Returns the offsets of the tensors in a handle, and the handle's size.
 * @param layout  receives the offsets and the size in bytes */
VERBENA_API verbena_result verbena_moe_get_layout(const verbena_moe* moe, verbena_moe_layout* layout);

/* Sends this rank's tokens to the ranks of their experts, and receives all ranks' tokens for this rank's
 * experts. Enqueues a kernel and returns.
 * @return VERBENA_INVALID_ARGUMENT if an argument is out of range: verbena_last_error() names the argument;
 *         VERBENA_TIMEOUT if a rank was late in an earlier call: verbena_last_error() names the rank */
VERBENA_API verbena_result verbena_moe_dispatch(verbena_moe* moe,
                                                const verbena_moe_dispatch_arguments* arguments,
                                                verbena_stream stream);
/* Sends the experts' rows back to the ranks of their tokens, and adds up the rows of this rank's tokens.
 * Returns the same errors as verbena_moe_dispatch(). The handle must come from a dispatch of this exchange
 * with the same number of tokens and the same grouping. Otherwise the kernel sends nothing, all ranks' calls
 * fail, and the next call on each rank returns an error. */
VERBENA_API verbena_result verbena_moe_combine(verbena_moe* moe,
                                               const verbena_moe_combine_arguments* arguments,
                                               verbena_stream stream);

#ifdef __cplusplus
}
#endif

#endif
