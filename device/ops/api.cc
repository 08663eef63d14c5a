// libverbena_ops.so: verbena/ops.h. No exception passes through C.
#include <cstring>
#include <exception>
#include <new>

#include "device/ops/communicator.h"
#include "verbena/backends.h"

using namespace verbena;
using namespace verbena::ops;

struct verbena_ops {
  Communicator communicator;
};

namespace {

template <typename Body>
verbena_result guard(const Body& body) noexcept {
  try {
    body();
    return VERBENA_SUCCESS;
  } catch (const Failure& failure) {
    return verbena_fail(failure.result(), failure.what());
  } catch (const std::bad_alloc&) {
    return verbena_fail(VERBENA_SYSTEM_ERROR, "ops: out of memory");
  } catch (const std::exception& error) {
    return verbena_fail(VERBENA_INTERNAL_ERROR, error.what());
  }
}

void expect(bool condition, const char* text) {
  if (!condition) throw Failure(VERBENA_INVALID_ARGUMENT, text);
}

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
  throw Failure(VERBENA_INVALID_ARGUMENT, "ops: no such type: " + std::to_string(static_cast<int>(type)));
}

void check_reduction(verbena_ops_reduction reduction) {
  expect(reduction >= VERBENA_OPS_SUM && reduction <= VERBENA_OPS_MAX, "ops: no such reduction");
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

// Messages side by side, or a part of each row.
Layout lay_out(uint64_t rows, uint64_t row_bytes, uint32_t parts) {
  if (rows == 1) return {row_bytes, 1, 1};
  return {row_bytes, row_bytes, row_bytes * parts};
}
// A message alone.
constexpr Layout kOneMessage{0, 1, 1};

void submit(verbena_ops* ops, const Call& call, uint64_t most_bytes, const verbena_ops_choice* asked,
            verbena_stream stream) {
  Communicator& communicator = ops->communicator;
  const Choice chosen = communicator.choose(call.kind, call.type, call.reduction, most_bytes);
  communicator.submit(call, communicator.complete(chosen, asked), static_cast<CUstream>(stream));
}

void set_counts(Call& call, Lengths lengths, const int64_t* counts, const int64_t* offsets,
                const verbena_ops_extent* extent) {
  expect(counts != nullptr && extent != nullptr && extent->unit_bytes != 0, "ops: no counts, or no units");
  call.lengths = lengths;
  call.counts = counts;
  call.offsets = offsets;
  call.unit_bytes = extent->unit_bytes;
  call.input_bytes = extent->input_bytes;
  call.output_bytes = extent->output_bytes;
}

}  // namespace

extern "C" {

verbena_result verbena_ops_create(verbena_context* context, const verbena_team* team,
                                  const verbena_ops_options* options, verbena_ops** ops) {
  return guard([&] {
    expect(context != nullptr && ops != nullptr, "ops: no context, or no place for the communicator");
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
  try {
    ops->communicator.check_error();
    if (text != nullptr && length != 0) *text = '\0';
    return VERBENA_SUCCESS;
  } catch (const Failure& failure) {
    if (text != nullptr && length != 0) {
      std::strncpy(text, failure.what(), length - 1);
      text[length - 1] = '\0';
    }
    return failure.result();
  } catch (const std::exception& error) {
    return verbena_fail(VERBENA_INTERNAL_ERROR, error.what());
  }
}

uint32_t verbena_ops_rank(const verbena_ops* ops) {
  return ops->communicator.rank();
}
uint32_t verbena_ops_size(const verbena_ops* ops) {
  return ops->communicator.size();
}

verbena_result verbena_ops_choose(const verbena_ops* ops, verbena_ops_type type,
                                  verbena_ops_reduction reduction, size_t bytes, verbena_ops_choice* choice) {
  return guard([&] {
    find_element_bytes(type);
    const Choice chosen = ops->communicator.choose(Kind::kAllReduce, type, reduction, bytes);
    *choice = {static_cast<verbena_ops_algorithm>(chosen.algorithm), chosen.grid.blocks, chosen.grid.threads,
               chosen.chunk_bytes};
  });
}

verbena_result verbena_ops_all_reduce(verbena_ops* ops, const void* input, void* output, size_t count,
                                      verbena_ops_type type, verbena_ops_reduction reduction,
                                      const verbena_ops_choice* choice, verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kAllReduce, input, output);
    set_reduction(call, type, reduction);
    call.length_bytes = count * find_element_bytes(type);
    if (count != 0) submit(ops, call, call.length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_gather(verbena_ops* ops, const void* input, void* output, size_t rows,
                                      size_t row_bytes, const verbena_ops_choice* choice,
                                      verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kExchange, input, output);
    call.length_bytes = rows * row_bytes;
    call.source = kOneMessage;
    call.destination = lay_out(rows, row_bytes, ops->communicator.size());
    if (call.length_bytes != 0) submit(ops, call, call.length_bytes, choice, stream);
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
    if (call.length_bytes != 0) submit(ops, call, call.length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_broadcast(verbena_ops* ops, const void* input, void* output, size_t length_bytes,
                                     uint32_t root, const verbena_ops_choice* choice, verbena_stream stream) {
  return guard([&] {
    expect(root < ops->communicator.size(), "ops: a broadcast by a rank that the team has not");
    Call call = begin_call(Kind::kExchange, input, output);
    call.length_bytes = length_bytes;
    call.source = call.destination = kOneMessage;
    call.lengths = Lengths::kFromRoot;
    call.root = static_cast<int32_t>(root);
    if (length_bytes != 0) submit(ops, call, length_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_to_all(verbena_ops* ops, const void* input, void* output, size_t message_bytes,
                                      size_t split_rows, size_t joined_rows, const verbena_ops_choice* choice,
                                      verbena_stream stream) {
  return guard([&] {
    expect(split_rows != 0 && joined_rows != 0 && message_bytes % split_rows == 0 &&
               message_bytes % joined_rows == 0,
           "ops: messages of an all-to-all that are not whole rows");
    Call call = begin_call(Kind::kExchange, input, output);
    const uint32_t size = ops->communicator.size();
    call.length_bytes = message_bytes;
    call.source = lay_out(split_rows, message_bytes / split_rows, size);
    call.destination = lay_out(joined_rows, message_bytes / joined_rows, size);
    if (message_bytes != 0) submit(ops, call, message_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_gather_v(verbena_ops* ops, const void* input, void* output,
                                        const int64_t* counts, const int64_t* offsets,
                                        const verbena_ops_extent* extent, const verbena_ops_choice* choice,
                                        verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kExchange, input, output);
    set_counts(call, Lengths::kBySender, counts, offsets, extent);
    submit(ops, call, extent->expected_bytes, choice, stream);
  });
}

verbena_result verbena_ops_reduce_scatter_v(verbena_ops* ops, const void* input, void* output,
                                            const int64_t* counts, const int64_t* offsets,
                                            const verbena_ops_extent* extent, verbena_ops_type type,
                                            verbena_ops_reduction reduction, const verbena_ops_choice* choice,
                                            verbena_stream stream) {
  return guard([&] {
    Call call = begin_call(Kind::kExchangeReduce, input, output);
    set_reduction(call, type, reduction);
    set_counts(call, Lengths::kByReceiver, counts, offsets, extent);
    expect(extent->unit_bytes % find_element_bytes(type) == 0, "ops: units that are not whole elements");
    submit(ops, call, extent->expected_bytes, choice, stream);
  });
}

verbena_result verbena_ops_all_to_all_v(verbena_ops* ops, const void* input, void* output,
                                        const int64_t* send_counts, const int64_t* send_offsets,
                                        const int64_t* receive_counts, const int64_t* receive_offsets,
                                        const verbena_ops_extent* extent, const verbena_ops_choice* choice,
                                        verbena_stream stream) {
  return guard([&] {
    expect(receive_counts != nullptr, "ops: no counts of what comes");
    Call call = begin_call(Kind::kExchange, input, output);
    set_counts(call, Lengths::kByPair, send_counts, send_offsets, extent);
    call.receive_counts = receive_counts;
    call.receive_offsets = receive_offsets;
    submit(ops, call, extent->expected_bytes, choice, stream);
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
