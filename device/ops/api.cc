// Implements verbena/ops.h for libverbena_ops.so. No exception passes through C.

#include "device/ops/communicator.h"
#include "device/ops/guard.h"

using namespace verbena;
using namespace verbena::ops;

struct verbena_ops {
  Communicator communicator;
};

namespace {

uint64_t find_element_bytes(verbena_ops_type type) {
  switch (type) {
    case VERBENA_OPS_FLOAT32:
    case VERBENA_OPS_INT32:
      return 4;
    case VERBENA_OPS_FLOAT16:
    case VERBENA_OPS_BFLOAT16:
      return 2;
    case VERBENA_OPS_E4M3:
      return 1;
  }
  throw Failure(VERBENA_INVALID_ARGUMENT, "ops: type " + std::to_string(static_cast<int>(type)) +
                                              " is unknown. The header verbena/ops.h lists the types");
}

void check_reduction(verbena_ops_reduction reduction) {
  expect(reduction >= VERBENA_OPS_SUM && reduction <= VERBENA_OPS_MAX,
         "ops: the reduction is unknown. The header verbena/ops.h lists the reductions");
}

Call begin_call(Kind kind, const void* input, void* output) {
  Call call{};
  call.kind = kind;
  call.input = static_cast<const char*>(input);
  call.output = static_cast<char*>(output);
  return call;
}
void set_reduction(Call& call, verbena_ops_type type, verbena_ops_reduction reduction) {
  check_reduction(reduction);
  call.type = type;
  call.reduction = reduction;
}

// Returns the layout of messages, which are contiguous or consist of a part of each row.
Layout lay_out(uint64_t rows, uint64_t row_bytes, uint32_t parts) {
  if (rows == 1) return {row_bytes, 1, 1};
  return {row_bytes, row_bytes, row_bytes * parts};
}
// The layout of a single message.
constexpr Layout kOneMessage{0, 1, 1};

// Throws Failure if the caller has named an algorithm that does not support this call.
void check_way(const verbena_ops* ops, const Call& call, const Choice& choice) {
  if (choice.algorithm == Algorithm::kDirect && call.kind == Kind::kAllReduce)
    expect(ops->communicator.are_in_windows(call),
           "ops: the direct algorithm needs tensors that lie in windows (verbena_window_allocate) and are "
           "aligned to 16 bytes. Use such tensors, or choose another algorithm");
  if (!is_coded(choice.algorithm)) return;
  const bool is_sum = call.kind == Kind::kAllReduce && call.reduction == VERBENA_OPS_SUM;
  const bool is_short = call.type == VERBENA_OPS_FLOAT16 || call.type == VERBENA_OPS_BFLOAT16;
  expect(is_sum && is_short,
         "ops: only an all-reduce that sums float16 or bfloat16 can be quantised. Choose an exact algorithm");
}

void submit(verbena_ops* ops, verbena_ops_operation operation, const Call& call, uint64_t bytes,
            const verbena_ops_choice* asked, verbena_stream stream) {
  Communicator& communicator = ops->communicator;
  Tensors tensors;
  // FAULT(direct_without_a_promise)
  tensors.are_in_windows = call.kind == Kind::kAllReduce && communicator.are_in_windows_of_all(call);
  tensors.are_bfloat16 = call.kind == Kind::kExchange
                             ? asked != nullptr && asked->algorithm == VERBENA_OPS_AUTO_BFLOAT16
                             : call.type == VERBENA_OPS_BFLOAT16;
  const Chooser& chooser = communicator.chooser();
  const Choice choice = chooser.complete(chooser.choose(operation, bytes, tensors), asked);
  check_way(ops, call, choice);
  communicator.submit(call, choice, static_cast<CUstream>(stream));
}

void expect_codec(verbena_ops_algorithm codec) {
  expect(codec >= VERBENA_OPS_FP8 && codec <= VERBENA_OPS_INT4_INT8,
         "ops: the codec is unknown. The header verbena/ops.h lists the codecs");
}

uint32_t check_norm(verbena_ops_type type, const verbena_ops_norm* norm) {
  expect(type == VERBENA_OPS_FLOAT16 || type == VERBENA_OPS_BFLOAT16,
         "ops: a norm takes only tensors of float16 or bfloat16");
  expect(norm != nullptr && norm->hidden != 0, "ops: the norm is NULL, or its hidden size is 0");
  expect(norm->quantisation >= VERBENA_OPS_NOT_QUANTISED && norm->quantisation <= VERBENA_OPS_INT8_TOKEN,
         "ops: the quantisation is unknown. The header verbena/ops.h lists the quantisations");
  expect(norm->quantisation == VERBENA_OPS_NOT_QUANTISED ||
             (norm->quantised != nullptr && norm->scales != nullptr),
         "ops: `quantised` or `scales` of the norm is NULL, but quantised rows need both");
  return type;
}
Norm convert_norm(const verbena_ops_norm& norm, size_t x_stride) {
  return {norm.rows,
          norm.hidden,
          norm.weight,
          norm.residual_in,
          norm.residual_out,
          norm.output,
          norm.residual_in_stride,
          norm.residual_out_stride,
          norm.output_stride,
          norm.padding,
          x_stride,
          norm.epsilon,
          norm.weight_offset,
          norm.rounds_sum,
          norm.rounds_normed,
          static_cast<uint32_t>(norm.quantisation),
          norm.min_scale == 0 ? 1e-10F : norm.min_scale,
          norm.quantised,
          norm.scales,
          norm.quantised_stride,
          norm.scale_row_stride,
          norm.scale_block_stride};
}
// Adds a grid for rows to a choice, and submits the norm.
void submit_norm(verbena_ops* ops, const Call& call, const Choice& choice, const verbena_ops_norm& norm,
                 size_t x_stride, const Finalize* finalize, verbena_stream stream) {
  ops->communicator.submit_norm(call, choice, convert_norm(norm, x_stride), finalize,
                                static_cast<CUstream>(stream));
}
Choice choose_quantised(const verbena_ops* ops, const Call& call, verbena_ops_algorithm codec) {
  expect_codec(codec);
  if (call.type != VERBENA_OPS_FLOAT16 && call.type != VERBENA_OPS_BFLOAT16)
    return ops->communicator.chooser().choose(VERBENA_OPS_ALL_REDUCE, call.length_bytes, {});
  return ops->communicator.chooser().choose_quantised(static_cast<Algorithm>(codec), call.length_bytes);
}
void submit_quantised(verbena_ops* ops, const Call& call, verbena_ops_algorithm codec,
                      const verbena_ops_choice* asked, verbena_stream stream) {
  const Choice choice = ops->communicator.chooser().complete(choose_quantised(ops, call, codec), asked);
  check_way(ops, call, choice);
  ops->communicator.submit(call, choice, static_cast<CUstream>(stream));
}
void write_choice(const Choice& chosen, verbena_ops_choice* choice) {
  *choice = {static_cast<verbena_ops_algorithm>(chosen.algorithm), chosen.grid.blocks, chosen.grid.threads,
             chosen.chunk_bytes};
}

void set_counts(Call& call, Lengths lengths, const int64_t* counts, const int64_t* offsets,
                const verbena_ops_sizes* sizes) {
  expect(counts != nullptr && sizes != nullptr && sizes->unit_bytes != 0,
         "ops: counts or sizes is NULL, or unit_bytes is 0");
  call.lengths = lengths;
  call.counts = counts;
  call.offsets = offsets;
  call.unit_bytes = sizes->unit_bytes;
  call.input_bytes = sizes->input_bytes;
  call.output_bytes = sizes->output_bytes;
}

// Sums the ranks' inputs and normalises the rows of the sum. The input is `input` or, if `finalize` is not
// null, the result of the finalize step.
void reduce_and_norm(verbena_ops* ops, const void* input, const Finalize* finalize, void* sum,
                     verbena_ops_type type, const verbena_ops_norm* norm, verbena_ops_algorithm codec,
                     const verbena_ops_choice* asked, verbena_stream stream) {
  Call call = begin_call(Kind::kAllReduce, input, sum);
  set_reduction(call, type, VERBENA_OPS_SUM);
  check_norm(type, norm);
  call.length_bytes = norm->rows * norm->hidden * find_element_bytes(type);
  if (norm->rows == 0) return;
  ops->communicator.expect_no_group();
  const Chooser& chooser = ops->communicator.chooser();
  const Choice chosen = codec == VERBENA_OPS_AUTO ? chooser.choose(VERBENA_OPS_ALL_REDUCE, call.length_bytes,
                                                                   {false, type == VERBENA_OPS_BFLOAT16})
                                                  : choose_quantised(ops, call, codec);
  const Choice choice = chooser.complete(chosen, asked);
  const bool is_asked = chooser.is_forced() || !leaves_algorithm(asked);
  if (const auto fused = chooser.choose_fused(choice, norm->rows, call.length_bytes, is_asked)) {
    call.kind = Kind::kAllReduceNorm;
    return submit_norm(ops, call, *fused, *norm, norm->hidden, finalize, stream);
  }
  if (finalize != nullptr) call.input = call.output;
  check_way(ops, call, choice);
  Call rows = begin_call(Kind::kFinalize, nullptr, sum);
  rows.type = call.type;
  if (finalize != nullptr) submit_norm(ops, rows, {}, *norm, norm->hidden, finalize, stream);
  ops->communicator.submit(call, choice, static_cast<CUstream>(stream));
  rows.kind = Kind::kNorm;
  rows.input = call.output;
  submit_norm(ops, rows, {}, *norm, norm->hidden, nullptr, stream);
}

}  // namespace

extern "C" {

verbena_result verbena_ops_create(verbena_context* context, const verbena_team* team,
                                  const verbena_ops_options* options, verbena_ops** ops) {
  return guard([&] {
    expect(context != nullptr && ops != nullptr, "ops: the context or the output pointer is NULL");
    *ops =
        new verbena_ops{Communicator(context, team, options == nullptr ? verbena_ops_options{} : *options)};
  });
}

verbena_result verbena_ops_destroy(verbena_ops* ops) {
  return guard([&] { delete ops; });
}

verbena_result verbena_ops_reset(verbena_ops* ops) {
  return guard([&] { ops->communicator.reset(); });
}

verbena_result verbena_ops_get_error(verbena_ops* ops, char* text, size_t length) {
  return report_error(text, length, [&] { ops->communicator.check_error(); });
}

uint32_t verbena_ops_rank(const verbena_ops* ops) {
  return ops->communicator.rank();
}
uint32_t verbena_ops_size(const verbena_ops* ops) {
  return ops->communicator.size();
}

verbena_result verbena_ops_choose(const verbena_ops* ops, verbena_ops_operation operation, size_t bytes,
                                  verbena_ops_choice* choice) {
  return guard([&] {
    expect(operation >= VERBENA_OPS_ALL_REDUCE && operation <= VERBENA_OPS_ALL_TO_ALL,
           "ops: the operation is unknown. The header verbena/ops.h lists the operations");
    write_choice(ops->communicator.chooser().choose(operation, bytes, {false, true}), choice);
  });
}

verbena_result verbena_ops_all_reduce(verbena_ops* ops, const void* input, void* output, size_t count,
                                      verbena_ops_type type, verbena_ops_reduction reduction,
                                      const verbena_ops_choice* choice, verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kAllReduce, input, output);
    set_reduction(call, type, reduction);
    call.length_bytes = count * find_element_bytes(type);
    if (count != 0) submit(ops, VERBENA_OPS_ALL_REDUCE, call, call.length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_choose_quantised(const verbena_ops* ops, verbena_ops_algorithm codec, size_t bytes,
                                            verbena_ops_choice* choice) {
  return guard([&] {
    expect_codec(codec);
    write_choice(ops->communicator.chooser().choose_quantised(static_cast<Algorithm>(codec), bytes), choice);
  });
}

verbena_result verbena_ops_all_reduce_quantised(verbena_ops* ops, const void* input, void* output,
                                                size_t count, verbena_ops_type type,
                                                verbena_ops_algorithm codec, uint64_t seed,
                                                const verbena_ops_choice* choice, verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kAllReduce, input, output);
    set_reduction(call, type, VERBENA_OPS_SUM);
    call.length_bytes = count * find_element_bytes(type);
    call.seed = seed;
    if (count != 0) submit_quantised(ops, call, codec, choice, stream);
  });
}

verbena_result verbena_ops_norm_rows(verbena_ops* ops, const void* x, size_t x_stride, verbena_ops_type type,
                                     const verbena_ops_norm* norm, verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kNorm, x, nullptr);
    call.type = check_norm(type, norm);
    if (norm->rows != 0) submit_norm(ops, call, {}, *norm, x_stride, nullptr, stream);
  });
}

verbena_result verbena_ops_all_reduce_norm(verbena_ops* ops, const void* input, void* sum,
                                           verbena_ops_type type, const verbena_ops_norm* norm,
                                           verbena_ops_algorithm codec, const verbena_ops_choice* choice,
                                           verbena_stream stream) {
  return guard([&] { reduce_and_norm(ops, input, nullptr, sum, type, norm, codec, choice, stream); });
}

verbena_result verbena_ops_moe_finalize_all_reduce_norm(verbena_ops* ops,
                                                        const verbena_ops_moe_finalize* finalize, void* sum,
                                                        verbena_ops_type type, const verbena_ops_norm* norm,
                                                        verbena_ops_algorithm codec,
                                                        const verbena_ops_choice* choice,
                                                        verbena_stream stream) {
  return guard([&] {
    expect(finalize != nullptr && finalize->rows != nullptr && finalize->indices != nullptr &&
               finalize->top_k != 0,
           "ops: the finalize step is NULL, or its `rows`, `indices` or `top_k` is NULL or 0");
    const Finalize converted{finalize->rows,    finalize->shared,     finalize->indices,
                             finalize->weights, finalize->row_stride, finalize->shared_stride,
                             finalize->top_k};
    reduce_and_norm(ops, nullptr, &converted, sum, type, norm, codec, choice, stream);
  });
}

verbena_result verbena_ops_reduce_scatter_norm_all_gather(verbena_ops* ops, const void* input, void* sum,
                                                          verbena_ops_type type, const verbena_ops_norm* norm,
                                                          const verbena_ops_choice* asked,
                                                          verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kShardedNorm, input, sum);
    call.type = check_norm(type, norm);
    call.reduction = VERBENA_OPS_SUM;
    expect(norm->quantisation != VERBENA_OPS_MXFP8_SWIZZLED,
           "ops: swizzled scales cannot be gathered, because one tile of these scales spans the rows of "
           "several ranks. Use VERBENA_OPS_MXFP8_BLOCK");
    expect(norm->quantisation < VERBENA_OPS_FP8_BLOCK || norm->quantisation == VERBENA_OPS_INT8_TOKEN ||
               norm->scale_row_stride == 1 || norm->scale_block_stride == 1,
           "ops: scales must be contiguous in rows or in columns. Set scale_row_stride or scale_block_stride "
           "to 1");
    if (norm->rows == 0) return;
    const Chooser& chooser = ops->communicator.chooser();
    const uint32_t size = ops->communicator.size();
    const uint64_t share = (norm->rows + size - 1) / size;
    const Choice choice = chooser.complete(
        chooser.choose(VERBENA_OPS_REDUCE_SCATTER, share * norm->hidden * find_element_bytes(type), {}),
        asked);
    submit_norm(ops, call, choice, *norm, norm->hidden, nullptr, stream);
  });
}

verbena_result verbena_ops_all_gather(verbena_ops* ops, const void* input, void* output, size_t rows,
                                      size_t row_bytes, const verbena_ops_choice* choice,
                                      verbena_stream stream) {
  return guard([&] {
    if (choice != nullptr && choice->algorithm == VERBENA_OPS_COPY_ENGINES) {
      expect(rows == 1, "ops: copy engines gather along the first dimension only. Choose another algorithm");
      return ops->communicator.gather_by_copies(input, output, row_bytes, static_cast<CUstream>(stream));
    }
    Call call = begin_call(Kind::kExchange, input, output);
    call.length_bytes = rows * row_bytes;
    call.source = kOneMessage;
    call.destination = lay_out(rows, row_bytes, ops->communicator.size());
    if (call.length_bytes != 0) submit(ops, VERBENA_OPS_ALL_GATHER, call, call.length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_reduce_scatter(verbena_ops* ops, const void* input, void* output, size_t rows,
                                          size_t row_count, verbena_ops_type type,
                                          verbena_ops_reduction reduction, const verbena_ops_choice* choice,
                                          verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kExchangeReduce, input, output);
    set_reduction(call, type, reduction);
    const uint64_t row_bytes = row_count * find_element_bytes(type);
    call.length_bytes = rows * row_bytes;
    call.source = lay_out(rows, row_bytes, ops->communicator.size());
    call.destination = kOneMessage;
    if (call.length_bytes != 0)
      submit(ops, VERBENA_OPS_REDUCE_SCATTER, call, call.length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_broadcast(verbena_ops* ops, const void* input, void* output, size_t length_bytes,
                                     uint32_t root, const verbena_ops_choice* choice, verbena_stream stream) {
  return guard([&] {
    expect(root < ops->communicator.size(), "ops: the root of the broadcast is not a rank of the team");
    Call call = begin_call(Kind::kExchange, input, output);
    call.length_bytes = length_bytes;
    call.source = call.destination = kOneMessage;
    call.lengths = Lengths::kFromRoot;
    call.root = static_cast<int32_t>(root);
    if (length_bytes != 0) submit(ops, VERBENA_OPS_BROADCAST, call, length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_to_all(verbena_ops* ops, const void* input, void* output, size_t message_bytes,
                                      size_t split_rows, size_t joined_rows, const verbena_ops_choice* choice,
                                      verbena_stream stream) {
  return guard([&] {
    expect(split_rows != 0 && joined_rows != 0 && message_bytes % split_rows == 0 &&
               message_bytes % joined_rows == 0,
           "ops: message_bytes of an all-to-all must be a multiple of split_rows and of joined_rows");
    Call call = begin_call(Kind::kExchange, input, output);
    const uint32_t size = ops->communicator.size();
    call.length_bytes = message_bytes;
    call.source = lay_out(split_rows, message_bytes / split_rows, size);
    call.destination = lay_out(joined_rows, message_bytes / joined_rows, size);
    if (message_bytes != 0) submit(ops, VERBENA_OPS_ALL_TO_ALL, call, message_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_gather_v(verbena_ops* ops, const void* input, void* output,
                                        const int64_t* counts, const int64_t* offsets,
                                        const verbena_ops_sizes* sizes, const verbena_ops_choice* choice,
                                        verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kExchange, input, output);
    set_counts(call, Lengths::kBySender, counts, offsets, sizes);
    submit(ops, VERBENA_OPS_ALL_GATHER, call, sizes->expected_bytes, choice, stream);
  });
}

verbena_result verbena_ops_reduce_scatter_v(verbena_ops* ops, const void* input, void* output,
                                            const int64_t* counts, const int64_t* offsets,
                                            const verbena_ops_sizes* sizes, verbena_ops_type type,
                                            verbena_ops_reduction reduction, const verbena_ops_choice* choice,
                                            verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kExchangeReduce, input, output);
    set_reduction(call, type, reduction);
    set_counts(call, Lengths::kByReceiver, counts, offsets, sizes);
    expect(sizes->unit_bytes % find_element_bytes(type) == 0,
           "ops: unit_bytes is not a multiple of the type's size");
    submit(ops, VERBENA_OPS_REDUCE_SCATTER, call, sizes->expected_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_to_all_v(verbena_ops* ops, const void* input, void* output,
                                        const int64_t* send_counts, const int64_t* send_offsets,
                                        const int64_t* receive_counts, const int64_t* receive_offsets,
                                        const verbena_ops_sizes* sizes, const verbena_ops_choice* choice,
                                        verbena_stream stream) {
  return guard([&] {
    expect(receive_counts != nullptr, "ops: receive_counts is NULL");
    Call call = begin_call(Kind::kExchange, input, output);
    set_counts(call, Lengths::kByPair, send_counts, send_offsets, sizes);
    call.receive_counts = receive_counts;
    call.receive_offsets = receive_offsets;
    submit(ops, VERBENA_OPS_ALL_TO_ALL, call, sizes->expected_bytes, choice, stream);
  });
}

verbena_result verbena_ops_group_begin(verbena_ops* ops) {
  return guard([&] { ops->communicator.begin_group(); });
}
verbena_result verbena_ops_group_end(verbena_ops* ops, verbena_stream stream) {
  return guard([&] { ops->communicator.end_group(static_cast<CUstream>(stream)); });
}

verbena_result verbena_ops_pause(verbena_ops* ops, uint64_t length_ns, verbena_stream stream) {
  return guard([&] { ops->communicator.pause(length_ns, static_cast<CUstream>(stream)); });
}

}  // extern "C"
