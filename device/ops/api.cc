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
    check_reduction(reduction);
    Call call{};
    call.kind = Kind::kAllReduce;
    call.type = type;
    call.reduction = reduction;
    call.input = static_cast<const char*>(input);
    call.output = static_cast<char*>(output);
    call.length_bytes = count * find_element_bytes(type);
    Communicator& communicator = ops->communicator;
    const Choice chosen =
        communicator.complete(communicator.choose(call.kind, type, reduction, call.length_bytes), choice);
    if (count != 0) communicator.enqueue({&call, 1}, chosen, static_cast<CUstream>(stream));
  });
}

verbena_result verbena_ops_pause(verbena_ops* ops, uint64_t length_ns, verbena_stream stream) {
  return guard([&] { ops->communicator.pause(length_ns, static_cast<CUstream>(stream)); });
}

}  // extern "C"
