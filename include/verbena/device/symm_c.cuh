// The symm_* functions with C names, for callers that find device functions by name, such as Triton.
// Addresses are passed as integers; `context` is the address of a SymmContext in memory that the GPU can
// access. All threads of a block make the same call, and the operation happens once per block. symm_barrier()
// and symm_all_reduce() have no barrier argument; a block uses the barrier whose number is its block index.
// Therefore, if a block makes the call on one rank, the block with the same index must make the same call on
// all ranks. Functions that return an int32 return a SymmStatus, unless their comment says otherwise.
//
// Two macros may be defined before inclusion. VERBENA_SYMM_FUNCTION sets the attributes of each function
// definition, after `extern "C"`. VERBENA_SYMM_CONTEXTS lists the context types of the backends to support.
// If there are several context types, SymmContext::type selects the backend, whose network reaches the
// members that loads and stores do not reach. If there is only one context type, no function reads
// SymmContext::type.
#ifndef VERBENA_DEVICE_SYMM_C_CUH
#define VERBENA_DEVICE_SYMM_C_CUH

#include "verbena/device/packed.cuh"
#include "verbena/device/symm.cuh"
#include "verbena/device/symm_backends.cuh"

#ifndef VERBENA_SYMM_FUNCTION
#define VERBENA_SYMM_FUNCTION VERBENA_DEVICE
#endif
#ifndef VERBENA_SYMM_CONTEXTS
#define VERBENA_SYMM_CONTEXTS verbena::SymmContext
#endif

namespace verbena::device::detail {

VERBENA_DEVICE const SymmContext& as_context(int64_t context) {
  return *reinterpret_cast<const SymmContext*>(context);
}
template <typename T = char>
VERBENA_DEVICE T* as_pointer(int64_t address) {
  return reinterpret_cast<T*>(address);
}
template <typename T>
VERBENA_DEVICE int64_t as_number(T* pointer) {
  return static_cast<int64_t>(reinterpret_cast<uint64_t>(pointer));
}
// Return the result of `call(context)` as an integer, or kInvalid if the context is null. run() casts the
// context to the context type of its backend; run_in_reach() passes a SymmContext.
template <typename Call>
VERBENA_DEVICE int32_t run(int64_t context, const Call& call) {
  using Context = ChosenContext<VERBENA_SYMM_CONTEXTS>::Type;
  if (context == 0) return static_cast<int32_t>(SymmStatus::kInvalid);
  return static_cast<int32_t>(call(static_cast<const Context&>(as_context(context))));
}
template <typename Call>
VERBENA_DEVICE int32_t run_in_reach(int64_t context, const Call& call) {
  return static_cast<int32_t>(context == 0 ? SymmStatus::kInvalid : call(as_context(context)));
}
// Returns the result of `call(context, length_bytes)`, like run(), where length_bytes is the length of
// `count` elements of element_bytes each. Returns kInvalid for negative counts.
template <typename Call>
VERBENA_DEVICE int32_t run_copy(int64_t context, int32_t count, int32_t element_bytes, const Call& call) {
  return run(context, [&](const auto& on) {
    const uint64_t length_bytes = static_cast<uint64_t>(count) * static_cast<uint64_t>(element_bytes);
    return count < 0 || element_bytes < 0 ? SymmStatus::kInvalid : call(on, length_bytes);
  });
}

VERBENA_DEVICE SymmQueue as_queue(int32_t queue) {
  return queue < 0 ? SymmQueue{} : SymmQueue{static_cast<uint32_t>(queue)};
}
// Returns a request as an integer, which is 0 if the request is complete.
VERBENA_DEVICE int64_t as_number(const SymmRequest& asked) {
  return static_cast<int64_t>(asked.after * kPutMaxQueues + asked.queue);
}
VERBENA_DEVICE SymmRequest as_request(int64_t number) {
  const auto bits = static_cast<uint64_t>(number);
  return {bits / kPutMaxQueues, static_cast<uint32_t>(bits % kPutMaxQueues)};
}

// Returns a value for which the comparison with `wanted` is false, if such a value exists.
VERBENA_DEVICE int64_t find_value_that_fails(SymmCompare compare, int64_t wanted) {
  if (compare == SymmCompare::kGreaterEqual) return INT64_MIN;
  if (compare == SymmCompare::kLessEqual) return INT64_MAX;
  return compare == SymmCompare::kEqual ? ~wanted : wanted;
}

}  // namespace verbena::device::detail

extern "C" {

// Return the same address as the function with this name in symm_team.cuh, or 0 if that function returns
// null.
VERBENA_SYMM_FUNCTION int64_t symm_lsa_ptr(int64_t context, int64_t local, int32_t peer) {
  using namespace verbena::device;
  if (context == 0) return 0;
  return detail::as_number(symm_lsa_ptr(detail::as_context(context), detail::as_pointer(local), peer));
}
VERBENA_SYMM_FUNCTION int64_t symm_lsa_multicast_ptr(int64_t context, int64_t local) {
  using namespace verbena::device;
  if (context == 0) return 0;
  return detail::as_number(symm_lsa_multicast_ptr(detail::as_context(context), detail::as_pointer(local)));
}
VERBENA_SYMM_FUNCTION int64_t symm_lsa_signal_ptr(int64_t context, int32_t peer) {
  using namespace verbena::device;
  return context == 0 ? 0 : detail::as_number(symm_lsa_signal_ptr(detail::as_context(context), peer));
}

// Return the number of members, this rank's number in the team, and the number of members that loads and
// stores reach.
VERBENA_SYMM_FUNCTION int32_t symm_team_size(int64_t context) {
  return context == 0 ? 0 : verbena::device::detail::as_context(context).team_size;
}
VERBENA_SYMM_FUNCTION int32_t symm_team_rank(int64_t context) {
  return context == 0 ? -1 : verbena::device::detail::as_context(context).team_rank;
}
VERBENA_SYMM_FUNCTION int32_t symm_team_lsa_size(int64_t context) {
  return context == 0 ? 0 : verbena::device::detail::as_context(context).lsa_size;
}
// Returns 1 if loads and stores reach the peer, otherwise 0.
VERBENA_SYMM_FUNCTION int32_t symm_team_lsa(int64_t context, int32_t peer) {
  using namespace verbena::device;
  return context != 0 && symm_team_lsa(detail::as_context(context), peer) ? 1 : 0;
}

// `index` is the number of a barrier. symm_lsa_barrier*() use the barriers of the members that loads and
// stores reach; symm_barrier_*() use the barriers of the whole team.
#define VERBENA_SYMM_BARRIER(name, run)                                               \
  VERBENA_SYMM_FUNCTION int32_t name(int64_t context, int32_t index) {                \
    using namespace verbena::device;                                                  \
    return detail::run(context, [&](const auto& on) {                                 \
      return ::verbena::device::name(on, static_cast<uint32_t>(index), BlockGroup{}); \
    });                                                                               \
  }
VERBENA_SYMM_BARRIER(symm_lsa_barrier, run_in_reach)
VERBENA_SYMM_BARRIER(symm_lsa_barrier_arrive, run_in_reach)
VERBENA_SYMM_BARRIER(symm_lsa_barrier_wait, run_in_reach)
VERBENA_SYMM_BARRIER(symm_barrier_arrive, run)
VERBENA_SYMM_BARRIER(symm_barrier_wait, run)
#undef VERBENA_SYMM_BARRIER

VERBENA_SYMM_FUNCTION int32_t symm_barrier(int64_t context) {
  using namespace verbena::device;
  return detail::run(context, [](const auto& on) { return symm_barrier(on, block_index(), BlockGroup{}); });
}

// Executes a fence in each thread. `scope` is 0 for the block, 1 for the GPU, or 2 for the system.
VERBENA_SYMM_FUNCTION int32_t symm_fence(int64_t context, int32_t scope) {
  using namespace verbena::device;
  static_cast<void>(context);
  if (scope == 0) {
    symm_fence<Scope::kBlock>();
  } else if (scope == 1) {
    symm_fence<Scope::kGpu>();
  } else if (scope == 2) {
    symm_fence<Scope::kSystem>();
  } else {
    return static_cast<int32_t>(verbena::SymmStatus::kInvalid);
  }
  return 0;
}

VERBENA_SYMM_FUNCTION int32_t symm_quiet(int64_t context) {
  using namespace verbena::device;
  return detail::run(context, [](const auto& on) { return symm_quiet(on, BlockGroup{}); });
}
VERBENA_SYMM_FUNCTION int32_t symm_quiet_peer(int64_t context, int32_t peer) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) { return symm_quiet(on, peer, BlockGroup{}); });
}
VERBENA_SYMM_FUNCTION int32_t symm_flush(int64_t context) {
  using namespace verbena::device;
  return detail::run(context, [](const auto& on) { return symm_flush(on, BlockGroup{}); });
}

// `operation` is a SymmSignalOperation.
VERBENA_SYMM_FUNCTION int32_t symm_signal(int64_t context, int32_t signal, int32_t peer, int64_t value,
                                          int32_t operation) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_signal(on, static_cast<uint32_t>(signal), peer, static_cast<uint64_t>(value),
                       static_cast<verbena::SymmSignalOperation>(operation), BlockGroup{});
  });
}
// Waits for a signal of this rank, and returns the signal's last value in all threads. If this value does not
// satisfy the comparison, the wait has failed. `compare` is a SymmCompare.
VERBENA_SYMM_FUNCTION int64_t symm_signal_wait_until(int64_t context, int32_t signal, int32_t compare,
                                                     int64_t wanted) {
  using namespace verbena::device;
  const auto relation = static_cast<verbena::SymmCompare>(compare);
  int64_t seen = detail::find_value_that_fails(relation, wanted);
  if (context == 0) return seen;
  // The status is not needed, because after an error `seen` does not satisfy the comparison.
  static_cast<void>(detail::run(context, [&](const auto& on) {
    return symm_signal_wait_until<int64_t>(on, static_cast<uint32_t>(signal), relation, wanted, &seen,
                                           BlockGroup{});
  }));
  return seen;
}
VERBENA_SYMM_FUNCTION int32_t symm_signal_reset(int64_t context, int32_t signal) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_signal_reset(on, static_cast<uint32_t>(signal), BlockGroup{});
  });
}

// Puts `count` elements of element_size bytes each.
VERBENA_SYMM_FUNCTION int32_t symm_put_async(int64_t context, int64_t destination, int64_t source,
                                             int32_t count, int32_t element_size, int32_t peer) {
  using namespace verbena::device;
  return detail::run_copy(context, count, element_size, [&](const auto& on, uint64_t length_bytes) {
    return symm_put_async(on, detail::as_pointer(destination), detail::as_pointer(source), length_bytes, peer,
                          BlockGroup{});
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_put_signal_async(int64_t context, int64_t destination, int64_t source,
                                                    int32_t count, int32_t element_size, int32_t peer,
                                                    int32_t signal, int64_t value, int32_t operation) {
  using namespace verbena::device;
  return detail::run_copy(context, count, element_size, [&](const auto& on, uint64_t length_bytes) {
    return symm_put_signal_async(on, detail::as_pointer(destination), detail::as_pointer(source),
                                 length_bytes, peer, static_cast<uint32_t>(signal),
                                 static_cast<uint64_t>(value),
                                 static_cast<verbena::SymmSignalOperation>(operation), BlockGroup{});
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_get(int64_t context, int64_t destination, int64_t source, int32_t count,
                                       int32_t element_size, int32_t peer) {
  using namespace verbena::device;
  return detail::run_copy(context, count, element_size, [&](const auto& on, uint64_t length_bytes) {
    return symm_get(on, detail::as_pointer(destination), detail::as_pointer(source), length_bytes, peer,
                    BlockGroup{});
  });
}

// Puts like symm_put_async(), but uses put queue number `queue`, or the block's queue if `queue` is negative.
// SymmQueue describes the order of operations.
VERBENA_SYMM_FUNCTION int32_t symm_put_async_by(int64_t context, int64_t destination, int64_t source,
                                                int32_t count, int32_t element_size, int32_t peer,
                                                int32_t queue) {
  using namespace verbena::device;
  return detail::run_copy(context, count, element_size, [&](const auto& on, uint64_t length_bytes) {
    return symm_put_async(on, detail::as_pointer(destination), detail::as_pointer(source), length_bytes, peer,
                          BlockGroup{}, detail::as_queue(queue));
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_put_signal_async_by(int64_t context, int64_t destination, int64_t source,
                                                       int32_t count, int32_t element_size, int32_t peer,
                                                       int32_t signal, int64_t value, int32_t operation,
                                                       int32_t queue) {
  using namespace verbena::device;
  return detail::run_copy(context, count, element_size, [&](const auto& on, uint64_t length_bytes) {
    return symm_put_signal_async(
        on, detail::as_pointer(destination), detail::as_pointer(source), length_bytes, peer,
        static_cast<uint32_t>(signal), static_cast<uint64_t>(value),
        static_cast<verbena::SymmSignalOperation>(operation), BlockGroup{}, detail::as_queue(queue));
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_signal_by(int64_t context, int32_t signal, int32_t peer, int64_t value,
                                             int32_t operation, int32_t queue) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_signal(on, static_cast<uint32_t>(signal), peer, static_cast<uint64_t>(value),
                       static_cast<verbena::SymmSignalOperation>(operation), BlockGroup{},
                       detail::as_queue(queue));
  });
}
// Signals the peer after all puts to the peer, from any block, that this thread has observed.
VERBENA_SYMM_FUNCTION int32_t symm_signal_after_puts(int64_t context, int32_t signal, int32_t peer,
                                                     int64_t value, int32_t operation) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_signal_after_puts(on, static_cast<uint32_t>(signal), peer, static_cast<uint64_t>(value),
                                  static_cast<verbena::SymmSignalOperation>(operation), BlockGroup{});
  });
}

// Returns a request to pass to symm_request_wait(), which any block may call. If the request is 0, the data
// has already arrived. A negative result is a SymmStatus, not a request.
VERBENA_SYMM_FUNCTION int64_t symm_get_async(int64_t context, int64_t destination, int64_t source,
                                             int32_t count, int32_t element_size, int32_t peer,
                                             int32_t queue) {
  using namespace verbena::device;
  SymmRequest asked;
  const int32_t status =
      detail::run_copy(context, count, element_size, [&](const auto& on, uint64_t length_bytes) {
        return symm_get_async(on, detail::as_pointer(destination), detail::as_pointer(source), length_bytes,
                              peer, &asked, BlockGroup{}, detail::as_queue(queue));
      });
  return status != 0 ? status : detail::as_number(asked);
}
VERBENA_SYMM_FUNCTION int32_t symm_request_wait(int64_t context, int64_t request) {
  using namespace verbena::device;
  if (request < 0) return static_cast<int32_t>(request);
  return detail::run(context, [&](const auto& on) {
    return symm_request_wait(on, detail::as_request(request), BlockGroup{});
  });
}

// Put and get `rows` rows of `row_count` elements each. Strides are in elements.
VERBENA_SYMM_FUNCTION int32_t symm_put_rows(int64_t context, int64_t destination, int64_t destination_stride,
                                            int64_t source, int64_t source_stride, int32_t row_count,
                                            int32_t rows, int32_t element_size, int32_t peer) {
  using namespace verbena::device;
  if (rows < 0 || destination_stride < 0 || source_stride < 0)
    return static_cast<int32_t>(verbena::SymmStatus::kInvalid);
  const auto size = static_cast<uint64_t>(element_size);
  return detail::run_copy(context, row_count, element_size, [&](const auto& on, uint64_t row_bytes) {
    return symm_put_rows(on, detail::as_pointer(destination),
                         static_cast<uint64_t>(destination_stride) * size, detail::as_pointer(source),
                         static_cast<uint64_t>(source_stride) * size, row_bytes, static_cast<uint64_t>(rows),
                         peer, BlockGroup{});
  });
}
// Put `count` pieces; symm_put_pieces_signal() then signals the peer. `pieces` is the address of an array of
// SymmPiece.
VERBENA_SYMM_FUNCTION int32_t symm_put_pieces(int64_t context, int64_t pieces, int32_t count, int32_t peer) {
  using namespace verbena::device;
  if (count < 0) return static_cast<int32_t>(verbena::SymmStatus::kInvalid);
  return detail::run(context, [&](const auto& on) {
    return symm_put_pieces(on, detail::as_pointer<const verbena::SymmPiece>(pieces),
                           static_cast<uint32_t>(count), peer, BlockGroup{});
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_put_pieces_signal(int64_t context, int64_t pieces, int32_t count,
                                                     int32_t peer, int32_t signal, int64_t value,
                                                     int32_t operation) {
  using namespace verbena::device;
  if (count < 0) return static_cast<int32_t>(verbena::SymmStatus::kInvalid);
  return detail::run(context, [&](const auto& on) {
    return symm_put_pieces_signal(on, detail::as_pointer<const verbena::SymmPiece>(pieces),
                                  static_cast<uint32_t>(count), peer, static_cast<uint32_t>(signal),
                                  static_cast<uint64_t>(value),
                                  static_cast<verbena::SymmSignalOperation>(operation), BlockGroup{});
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_get_rows(int64_t context, int64_t destination, int64_t destination_stride,
                                            int64_t source, int64_t source_stride, int32_t row_count,
                                            int32_t rows, int32_t element_size, int32_t peer) {
  using namespace verbena::device;
  if (rows < 0 || destination_stride < 0 || source_stride < 0)
    return static_cast<int32_t>(verbena::SymmStatus::kInvalid);
  const auto size = static_cast<uint64_t>(element_size);
  return detail::run_copy(context, row_count, element_size, [&](const auto& on, uint64_t row_bytes) {
    return symm_get_rows(on, detail::as_pointer(destination),
                         static_cast<uint64_t>(destination_stride) * size, detail::as_pointer(source),
                         static_cast<uint64_t>(source_stride) * size, row_bytes, static_cast<uint64_t>(rows),
                         peer, BlockGroup{});
  });
}

// Update a 64-bit word in a window of a peer (symm_word.cuh). `word` is the local address at the same offset.
VERBENA_SYMM_FUNCTION int32_t symm_put_value(int64_t context, int64_t word, int64_t value, int32_t peer) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_put_value(on, detail::as_pointer<uint64_t>(word), static_cast<uint64_t>(value), peer,
                          BlockGroup{});
  });
}
VERBENA_SYMM_FUNCTION int32_t symm_add(int64_t context, int64_t word, int64_t value, int32_t peer) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_add(on, detail::as_pointer<uint64_t>(word), static_cast<uint64_t>(value), peer, BlockGroup{});
  });
}
// Return the word's previous value in all threads, or INT64_MIN if the call failed. A previous value that
// happens to be INT64_MIN looks the same as a failure.
VERBENA_SYMM_FUNCTION int64_t symm_fetch_add(int64_t context, int64_t word, int64_t value, int32_t peer) {
  using namespace verbena::device;
  uint64_t before = 0;
  const int32_t status = detail::run(context, [&](const auto& on) {
    return symm_fetch_add(on, detail::as_pointer<uint64_t>(word), static_cast<uint64_t>(value), peer, &before,
                          BlockGroup{});
  });
  return status != 0 ? INT64_MIN : static_cast<int64_t>(before);
}
VERBENA_SYMM_FUNCTION int64_t symm_compare_swap(int64_t context, int64_t word, int64_t expected,
                                                int64_t desired, int32_t peer) {
  using namespace verbena::device;
  uint64_t before = 0;
  const int32_t status = detail::run(context, [&](const auto& on) {
    return symm_compare_swap(on, detail::as_pointer<uint64_t>(word), static_cast<uint64_t>(expected),
                             static_cast<uint64_t>(desired), peer, &before, BlockGroup{});
  });
  return status != 0 ? INT64_MIN : static_cast<int64_t>(before);
}
// Waits for a word of this rank. Returns the word's last value, like symm_signal_wait_until().
VERBENA_SYMM_FUNCTION int64_t symm_wait_until(int64_t context, int64_t word, int32_t compare,
                                              int64_t wanted) {
  using namespace verbena::device;
  const auto relation = static_cast<verbena::SymmCompare>(compare);
  int64_t seen = detail::find_value_that_fails(relation, wanted);
  if (context == 0) return seen;
  static_cast<void>(detail::run(context, [&](const auto& on) {
    return symm_wait_until<int64_t>(on, detail::as_pointer<uint64_t>(word), relation, wanted, &seen,
                                    BlockGroup{});
  }));
  return seen;
}
// Waits until each of `count` contiguous words satisfies the comparison.
VERBENA_SYMM_FUNCTION int32_t symm_wait_until_all(int64_t context, int64_t words, int32_t count,
                                                  int32_t compare, int64_t wanted) {
  using namespace verbena::device;
  return detail::run(context, [&](const auto& on) {
    return symm_wait_until_all(on, detail::as_pointer<uint64_t>(words), static_cast<uint32_t>(count),
                               static_cast<verbena::SymmCompare>(compare), wanted, BlockGroup{});
  });
}
// Waits until one of `count` contiguous words satisfies the comparison. Returns the index of that word, or a
// SymmStatus below 0. `skipped` is 0, or the address of an array with one int32 per word; the call skips a
// word if its int32 is not 0.
VERBENA_SYMM_FUNCTION int32_t symm_wait_until_any(int64_t context, int64_t words, int32_t count,
                                                  int32_t compare, int64_t wanted, int64_t skipped) {
  using namespace verbena::device;
  uint32_t which = 0;
  const int32_t status = detail::run(context, [&](const auto& on) {
    return symm_wait_until_any(on, detail::as_pointer<uint64_t>(words), static_cast<uint32_t>(count),
                               static_cast<verbena::SymmCompare>(compare), wanted,
                               detail::as_pointer<uint32_t>(skipped), &which, BlockGroup{});
  });
  return status != 0 ? status : static_cast<int32_t>(which);
}

// Convert elements (packed.cuh). symm_widen() converts the element in the lowest bits of `bits` to a float,
// and returns the bits of the float. symm_narrow() converts a float to an element, and rounds to nearest
// even. `type` is 1 (half), 2 (bfloat16), 3 (e4m3) or 4 (e5m2); for other types the functions return 0. A
// single thread may call these functions.
VERBENA_SYMM_FUNCTION int32_t symm_widen(int32_t bits, int32_t type) {
  using namespace verbena::device;
  const auto pattern = static_cast<uint32_t>(bits);
  float value = 0;
  if (type == 1) value = widen(Half{static_cast<uint16_t>(pattern)});
  if (type == 2) value = widen(Bfloat16{static_cast<uint16_t>(pattern)});
  if (type == 3) value = widen(E4m3{static_cast<uint8_t>(pattern)});
  if (type == 4) value = widen(E5m2{static_cast<uint8_t>(pattern)});
  return static_cast<int32_t>(detail::to_bits(value));
}
VERBENA_SYMM_FUNCTION int32_t symm_narrow(int32_t float_bits, int32_t type) {
  using namespace verbena::device;
  const float value = detail::from_bits(static_cast<uint32_t>(float_bits));
  if (type == 1) return narrow<Half>(value).bits;
  if (type == 2) return narrow<Bfloat16>(value).bits;
  if (type == 3) return narrow<E4m3>(value).bits;
  return type == 4 ? narrow<E5m2>(value).bits : 0;
}

// Sums floats across all members, in place. The floats start at `local + byte_offset`. `operation` must be 0
// (sum), and `type` must be 0 (float).
VERBENA_SYMM_FUNCTION int32_t symm_all_reduce(int64_t context, int64_t local, int32_t byte_offset,
                                              int32_t count, int32_t operation, int32_t type) {
  using namespace verbena::device;
  return detail::run_in_reach(context, [&](const auto& on) {
    if (count < 0 || byte_offset % 4 != 0 || operation != 0 || type != 0)
      return verbena::SymmStatus::kInvalid;
    return symm_all_reduce_two_shot(on, block_index(), detail::as_pointer<float>(local + byte_offset),
                                    static_cast<uint64_t>(count), BlockGroup{});
  });
}

}  // extern "C"

#endif
