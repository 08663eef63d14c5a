/* Mixture of experts: moves tokens to the ranks of their experts (dispatch) and brings the experts' rows back
 * (combine), as kernels of libverbena_ops.so. Each call is one kernel, without a barrier; counts stay on the
 * GPU. Within a host a row goes once to each rank, however many of its experts are there, in one NVLink hop.
 * Between hosts a row goes once to each host, over NICs, and one sum of each host comes back. Results have
 * the same bits in every run.
 *
 *   verbena_moe_create(context, team, &options, &moe);   // once, on all ranks
 *   verbena_moe_get_layout(moe, &layout);                // a handle has layout.bytes of GPU memory
 *   verbena_moe_dispatch(moe, &dispatch, stream);        // rows, ids -> output, handle
 *   ... the experts read output and, in the handle, counts, ids and weights ...
 *   verbena_moe_combine(moe, &combine, stream);          // their rows, handle -> one row for each token
 *
 * Experts are numbered 0 to experts - 1; rank r has those from r * experts / ranks on. Every rank makes the
 * same calls in the same order, with the same row_bytes, scale_bytes, order and blocks, and with rows by rank
 * or grouped by expert on all of them; the number of tokens, ids, addresses and streams are each rank's own.
 * A rank with 0 tokens makes the calls too.
 *
 * An id that is negative or not below `experts` names no expert: that slot of the token is not sent and adds
 * nothing. A token without any expert is not sent, and its combined row is zeros. An expert that is twice in
 * the ids of a token counts twice.
 *
 * Threads: one thread at a time uses a verbena_moe. Streams: calls of one verbena_moe run one after the
 * other; to continue in another stream, order the two streams by an event. Batches that overlap need a
 * verbena_moe each. Several handles may be alive: a combine names the handle of its dispatch. Graph capture:
 * dispatch and combine enqueue kernels, never allocate and never synchronise; ids, weights and
 * rows are read when the kernel runs, so they may change from replay to replay.
 *
 * Every wait in a kernel ends after VERBENA_SYMM_TIMEOUT_MS. Then the outputs of the call are bytes of 0xff
 * (NaN, ids and sources of -1) and counts are 0, also in all later calls, and the next call returns
 * VERBENA_TIMEOUT and names the late rank. The CUDA context lives; verbena_moe_reset() on all ranks
 * makes the exchange usable again.
 *
 * Several hosts: 2 to 8, with the same number of ranks on each, and a context whose network is Verbena's own
 * (verbena_context_create()). The counterparts of a rank have the same place among the ranks of the other
 * hosts. A rank's rows reach another host by its counterpart there, which passes them on and in a combine
 * adds the rows of its host: the phase RECEIVE does both, so a call makes no progress between hosts before
 * all ranks' RECEIVE.
 */
#ifndef VERBENA_MOE_H
#define VERBENA_MOE_H

#include "verbena/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct verbena_moe verbena_moe;

/* Options of verbena_moe_create(). The same on all ranks. */
typedef struct {
  uint32_t experts;         /* of all ranks, 1 to 4096, a multiple of the team's size */
  uint32_t max_tokens;      /* of a rank in a call, 1 to 4096; between R > 16 ranks 2048 / R * 32 at most */
  uint32_t top_k;           /* experts of a token, 1 to 32 */
  uint32_t hidden;          /* elements of a combined row, of 16 bits each; a multiple of 8 */
  uint32_t max_row_bytes;   /* of a dispatched row, a multiple of 16; 0: 2 * hidden */
  uint32_t max_scale_bytes; /* of a dispatched row's scales; 0: there are none */
  /* 1: VERBENA_MOE_EXACT is possible. Memory for combined rows is then top_k rows a token, not
   * min(ranks, top_k). 0 if the team spans hosts. */
  uint32_t exact;
  uint32_t blocks;              /* maximum blocks of a kernel, 1 to 256; 0: as many as fit on the GPUs */
  uint32_t programmatic_launch; /* as verbena_ops_options::programmatic_launch */
} verbena_moe_options;

/* How the rows of a dispatch's output are grouped. */
typedef enum {
  /* [ranks][max_tokens]: each row that came once, from source rank r the first counts[r] rows, in the order
   * of its tokens. */
  VERBENA_MOE_BY_RANK = 0,
  /* [experts / ranks][ranks * max_tokens]: for each expert of this rank the first expert_counts[e] rows, in
   * the order of source ranks, then of tokens. A row is there for each of its experts on this rank. */
  VERBENA_MOE_BY_EXPERT = 1,
  /* [output_rows]: the same groups one after the other. The group of an expert begins at expert_begins[e], a
   * multiple of `alignment` rows. */
  VERBENA_MOE_RAGGED = 2
} verbena_moe_grouping;

/* Byte offsets of a handle's tensors. [ranks][max_tokens] counts the rows that came by source rank and
 * number: row i of source rank r has index r * max_tokens + i, in every grouping. */
typedef struct {
  size_t bytes;   /* of a handle */
  size_t counts;  /* int32 [ranks]: rows that came from each rank */
  size_t sources; /* int32 [ranks][max_tokens]: a row's token at its source rank; -1 after the count */
  size_t ids;     /* int32 [ranks][max_tokens][top_k]: experts of this rank, 0 to experts / ranks - 1; -1: the
                     slot belongs to another rank, or is after the count */
  size_t weights; /* float [ranks][max_tokens][top_k]: weights of the ids; 0 where the id is -1 */
  /* Of groups by expert: */
  size_t
      places; /* int32 [ranks][max_tokens][top_k]: the row of the output for the id; -1 where the id is -1 */
  size_t expert_counts; /* int32 [experts / ranks]: rows in the group of each expert */
  size_t expert_begins; /* int32 [experts / ranks]: the first row of the group */
  /* The routing of this rank's own tokens, for a dispatch of other rows to the same experts: its `ids`, with
   * id_bits 32, and its `weights`. The handle of that dispatch is another one. */
  size_t own_ids;     /* int32 [max_tokens][top_k]; -1: no expert */
  size_t own_weights; /* float [max_tokens][top_k] */
} verbena_moe_layout;

/* How a combine adds a token's rows. All sums are float; each rank rounds once, to nearest. */
typedef enum {
  /* `rows` has one row for each row that came: [ranks][max_tokens][hidden]. The caller has added the rows of
   * the rank's experts, with their weights; the handle's weights are ignored. The source rank adds
   * in the order of ranks. Of another host comes one sum, which is added there in the order of ranks and
   * rounded; the source rank adds these sums to the sum of its own host, in the order of hosts. */
  VERBENA_MOE_ROWS = 0,
  /* `rows` has one row for each expert of each row that came: [ranks][max_tokens][top_k][hidden]; slots whose
   * id is -1 are not read. After a dispatch that groups by expert, `rows` is grouped like its output. The
   * experts' rank adds the rows with their weights in top-k order, and rounds. The source rank adds these
   * sums as VERBENA_MOE_ROWS does. */
  VERBENA_MOE_REDUCED = 1,
  /* The same rows; each goes to the source rank, which adds them with their weights in top-k order. Takes up
   * to top_k / ranks times the bytes. Of ranks on one host only. */
  VERBENA_MOE_EXACT = 2
} verbena_moe_order;

/* The phases of a call may be separate kernels: SEND sends this rank's rows, RECEIVE waits for the other
 * ranks' rows. Kernels that run between the two have all multiprocessors. The two phases have the same
 * arguments except for `phase` and `blocks`; RECEIVE with any other difference returns VERBENA_INVALID_USAGE.
 * The memory that the arguments name must not change between the phases, and the output is complete after
 * RECEIVE. An exchange has at most one dispatch and one combine in flight. The phases of a call are the same
 * on all ranks. */
typedef enum {
  VERBENA_MOE_BOTH = 0,
  VERBENA_MOE_SEND = 1,
  VERBENA_MOE_RECEIVE = 2,
  /* Of a dispatch that groups by expert, between SEND and RECEIVE: waits for the ids of all rows and writes
   * counts, sources, ids and weights of the handle. The caller can then count the rows, and RECEIVE may have
   * another `output`, `output_scales`, `output_rows`, `row_sources` and `row_experts` than the phases
   * before. */
  VERBENA_MOE_RECEIVE_IDS = 3
} verbena_moe_phase;

/* All pointers are addresses of the GPU. The caller owns all memory, and keeps it until the kernel has ended.
 */
typedef struct {
  uint32_t tokens;      /* of this rank, at most max_tokens */
  uint32_t row_bytes;   /* a multiple of 16 bytes, at most max_row_bytes; elements of any type */
  const void* rows;     /* [tokens], each at a multiple of 16 bytes */
  size_t row_stride;    /* bytes from row to row, a multiple of 16; 0: row_bytes */
  uint32_t scale_bytes; /* of a row's scales, which are moved unchanged; 0: there are none */
  uint32_t id_bits;     /* 32 or 64 */
  const void* scales;   /* [tokens] */
  size_t scale_stride;  /* bytes; 0: scale_bytes */
  const void* ids;      /* int32 or int64 [tokens][top_k], aligned to an element, as are the weights */
  size_t id_stride;     /* elements from token to token; 0: top_k */
  const float* weights; /* [tokens][top_k]; NULL: all are 1 */
  void* output;        /* rows of row_bytes as `grouping` says, aligned to 16 bytes; no byte of rows without a
                           token is written */
  void* output_scales; /* scale_bytes for each row of the output; NULL where scale_bytes is 0. Those of a cast
                           begin at a multiple of 4 bytes. */
  void* handle;        /* verbena_moe_layout::bytes, begins at a multiple of 16 bytes; written */
  uint32_t blocks;     /* of the kernel, at most those of the options; 0: those of the options */
  verbena_moe_phase phase;
  /* VERBENA_OPS_NOT_QUANTISED; or VERBENA_OPS_FP8_BLOCK, _FP8_BLOCK_POWER or _FP8_BLOCK_EXPONENT, to quantise
   * rows of `type` while they are sent. Then row_bytes is of the input, 2 for each of n elements, a multiple
   * of 32; scale_bytes is 0 and scales NULL; output rows have n bytes (e4m3). Each row of output_scales has
   * (n + 127) / 128 floats, or for _FP8_BLOCK_EXPONENT (n + 511) / 512 words of four UE8M0 exponents each,
   * the first in the lowest byte. element = byte * scale, scale = largest magnitude of 128 elements / 448, at
   * least 1e-4 / 448. max_row_bytes and max_scale_bytes limit the quantised rows and their float scales. */
  verbena_ops_quantisation quantisation;
  verbena_ops_type type; /* of rows that are quantised: VERBENA_OPS_BFLOAT16 or VERBENA_OPS_FLOAT16 */
  verbena_moe_grouping grouping;
  uint32_t alignment;   /* VERBENA_MOE_RAGGED: of the groups, in rows, at most 65536; 0: 1 */
  uint32_t output_rows; /* VERBENA_MOE_RAGGED: rows of the output. verbena_moe_max_rows() are enough for any
                           routing. If the groups need more, the call fails on all ranks, as after a
                           timeout. */
  /* 1: the scales that quantise are stored in columns, a float or word for each row after another:
   * [groups][scales of a row][rows of a group], where VERBENA_MOE_RAGGED is one group. */
  uint32_t column_scales;
  /* Of groups by expert, or NULL. For each row of the output: the row that came, counted as in the handle;
   * and the expert, 0 to experts / ranks - 1. -1 for rows without a token. int32 [rows of the output]. */
  int32_t* row_sources;
  int32_t* row_experts;
} verbena_moe_dispatch_arguments;

typedef struct {
  uint32_t tokens; /* of this rank, the same number as in the dispatch that wrote the handle */
  verbena_moe_order order;
  verbena_ops_type type; /* of rows and output: VERBENA_OPS_BFLOAT16 or VERBENA_OPS_FLOAT16 */
  uint32_t blocks;       /* as in the dispatch */
  verbena_moe_phase phase;
  const void*
      rows; /* as `order` says; begins at a multiple of 16 bytes; NULL if a ragged output has no rows */
  const void* handle;            /* of this rank's dispatch */
  void* output;                  /* [tokens][hidden], begins at a multiple of 16 bytes */
  verbena_moe_grouping grouping; /* of the dispatch */
  /* VERBENA_MOE_EXACT: [tokens][top_k], used instead of the weights of the dispatch; NULL: those of the
   * dispatch. NULL in other orders, whose sums at the experts' ranks need the weights of the dispatch. */
  const float* weights;
} verbena_moe_combine_arguments;

/* Returns the bytes of the workspace that an exchange among `ranks` ranks allocates on each of them, whatever
 * options->blocks is; 0 if the options are invalid. */
VERBENA_API size_t verbena_moe_workspace_bytes(const verbena_moe_options* options, uint32_t ranks);

/* The same, for ranks on `hosts` hosts, with the same number of ranks on each. */
VERBENA_API size_t verbena_moe_workspace_bytes_across(const verbena_moe_options* options, uint32_t ranks,
                                                      uint32_t hosts);

/* Returns the rows that the output of a dispatch has to have for any routing among `ranks` ranks; 0 if the
 * options or the alignment are invalid.
 * @param alignment  of VERBENA_MOE_RAGGED, in rows, at most 65536; 0: 1 */
VERBENA_API size_t verbena_moe_max_rows(const verbena_moe_options* options, uint32_t ranks,
                                        verbena_moe_grouping grouping, uint32_t alignment);

/* Creates an exchange. Collective over the context, with each rank's GPU current. Allocates; not for capture.
 * @param context  outlives the exchange
 * @param options  copied
 * @param moe   receives the exchange, which verbena_moe_destroy() frees; unchanged after an error
 * @param team  1 to 32 ranks, on one host or evenly distributed over several; ranks of a host reach each
 *              other by loads and stores. NULL on ranks that are not members, whose handle serves the
 *              collective calls alone. The team may be freed before the exchange.
 * @return VERBENA_INVALID_ARGUMENT where the options are invalid and VERBENA_REMOTE_ERROR on the other ranks;
 *         VERBENA_INVALID_USAGE if the ranks' options differ, or the team spans hosts and has not the same
 *         number of ranks on each, spans more than 8, has the option `exact` or another library's network. */
VERBENA_API verbena_result verbena_moe_create(verbena_context* context, const verbena_team* team,
                                              const verbena_moe_options* options, verbena_moe** moe);
/* Destroys the exchange. Collective over the context; call it before verbena_context_destroy(). No kernel on
 * any rank may still be using the exchange. */
VERBENA_API verbena_result verbena_moe_destroy(verbena_moe* moe);
/* Makes the exchange usable again after an error. Collective over the context: waits until this rank's GPU is
 * idle, then clears the workspaces of all ranks. Not for capture. */
VERBENA_API verbena_result verbena_moe_reset(verbena_moe* moe);
/* Returns whether the results of earlier calls are valid, as verbena_ops_get_error() does.
 * @param text    receives the reason, truncated to `length` bytes including its terminating zero; may be NULL
 * @param length  bytes */
VERBENA_API verbena_result verbena_moe_get_error(verbena_moe* moe, char* text, size_t length);
/* Leaves ranks out of later calls: a bit for each rank of the team that takes part. Ids of experts of the
 * other ranks are ignored, no row comes from them, and no call waits for them. Initially all ranks take part.
 * All ranks of the mask must set the same mask between the same two calls; the other ranks make no calls. The
 * function does not communicate. A graph keeps the mask of its capture. A handle serves calls with the mask
 * of its dispatch. To continue without a late rank, call verbena_moe_reset(), which keeps the mask, and then
 * this function.
 * If the team spans hosts, only whole hosts can be left out, or the ranks of one place on all hosts.
 * @param living  the bit of this rank is set
 * @return VERBENA_INVALID_USAGE between the phases of a call, and if the mask has a rank that was left out of
 *         a call since the last reset: its memory is not in the state of the others' */
VERBENA_API verbena_result verbena_moe_set_mask(verbena_moe* moe, uint64_t living);
/* @param living  receives the mask */
VERBENA_API verbena_result verbena_moe_get_mask(const verbena_moe* moe, uint64_t* living);
/* Returns the offsets of the tensors in a handle.
 * @param layout  receives the offsets and the bytes of a handle */
VERBENA_API verbena_result verbena_moe_get_layout(const verbena_moe* moe, verbena_moe_layout* layout);

/* Sends this rank's tokens, and receives the tokens of all ranks for its experts. Enqueues a kernel and
 * returns.
 * @return VERBENA_INVALID_ARGUMENT names an argument that is out of range; VERBENA_TIMEOUT names the rank
 *         that was late in an earlier call */
VERBENA_API verbena_result verbena_moe_dispatch(verbena_moe* moe,
                                                const verbena_moe_dispatch_arguments* arguments,
                                                verbena_stream stream);
/* Sends the experts' rows back, and adds up the rows of this rank's tokens. Returns as
 * verbena_moe_dispatch(). If no dispatch of this exchange has written the handle, or a dispatch with another
 * number of tokens or another grouping, the kernel sends nothing, all ranks' calls fail, and the next call on
 * each rank returns an error. */
VERBENA_API verbena_result verbena_moe_combine(verbena_moe* moe,
                                               const verbena_moe_combine_arguments* arguments,
                                               verbena_stream stream);

#ifdef __cplusplus
}
#endif

#endif
