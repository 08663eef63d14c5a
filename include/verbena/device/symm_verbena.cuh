// Verbena's own network backend, which reaches the members that loads and stores do not reach. The backend
// sends requests to the host's proxy through put queues (symm_queue.cuh).
#ifndef VERBENA_DEVICE_SYMM_VERBENA_CUH
#define VERBENA_DEVICE_SYMM_VERBENA_CUH

#include "verbena/device/symm_network.cuh"
#include "verbena/device/symm_queue.cuh"

namespace verbena::device {

namespace detail {

VERBENA_DEVICE PutRequest request_copy(const SymmContext& context, PutOperation operation, const void* here,
                                       const void* there, uint64_t length_bytes) {
  return {operation, find_offset(context, here), length_bytes, find_offset(context, there)};
}

// NICs change remote_signals, the second word of a signal.
VERBENA_DEVICE PutRequest request_signal(const SymmContext& context, uint32_t signal, uint64_t value,
                                         SymmSignalOperation operation) {
  const uint64_t place = find_offset(context, context.remote_signals + signal);
  if (operation == SymmSignalOperation::kAdd) return {PutOperation::kAddWord, value, 0, place};
  return {PutOperation::kSetSignal, value, find_offset(context, context.signals + signal), place};
}

}  // namespace detail

template <>
struct SymmNetwork<SymmContext> {
  static constexpr bool kGets = true;
  static constexpr bool kUpdates = true;
  static constexpr bool kRows = true;
  static constexpr bool kPieces = true;
  static constexpr bool kArrivesAfterPuts = true;

  VERBENA_DEVICE static constexpr bool serves(int32_t type) { return type == kSymmVerbena; }
  VERBENA_DEVICE static bool is_there(const SymmContext& context) { return detail::has_queues(context); }

  VERBENA_DEVICE static WaitResult put(const SymmContext& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue queue) {
    const detail::PutRequest requests[] = {
        detail::request_copy(context, PutOperation::kPut, source, destination, length_bytes)};
    return detail::enqueue(context, queue, peer, requests);
  }
  VERBENA_DEVICE static WaitResult put_signal(const SymmContext& context, int32_t peer, void* destination,
                                              const void* source, uint64_t length_bytes, uint32_t signal,
                                              uint64_t value, SymmSignalOperation operation,
                                              SymmQueue queue) {
    const detail::PutRequest requests[] = {
        detail::request_copy(context, PutOperation::kPut, source, destination, length_bytes),
        detail::request_signal(context, signal, value, operation)};
    return detail::enqueue(context, queue, peer, requests);
  }
  VERBENA_DEVICE static WaitResult signal(const SymmContext& context, int32_t peer, uint32_t signal,
                                          uint64_t value, SymmSignalOperation operation, SymmQueue queue) {
    const detail::PutRequest requests[] = {detail::request_signal(context, signal, value, operation)};
    return detail::enqueue(context, queue, peer, requests);
  }
  VERBENA_DEVICE static WaitResult get(const SymmContext& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue queue) {
    SymmRequest asked;
    const WaitResult result = get_async(context, peer, destination, source, length_bytes, queue, &asked);
    return result == WaitResult::kReached ? await(context, asked) : result;
  }
  VERBENA_DEVICE static WaitResult get_async(const SymmContext& context, int32_t peer, void* destination,
                                             const void* source, uint64_t length_bytes, SymmQueue queue,
                                             SymmRequest* asked) {
    detail::PutRequest requests[] = {
        detail::request_copy(context, PutOperation::kGet, destination, source, length_bytes)};
    requests[0].tells = true;
    return detail::enqueue(context, queue, peer, requests, asked);
  }
  VERBENA_DEVICE static WaitResult await(const SymmContext& context, const SymmRequest& asked) {
    return detail::await_request(context, asked);
  }
  VERBENA_DEVICE static bool has_answered(const SymmContext& context, const SymmRequest& asked) {
    return detail::is_complete(context, asked);
  }

  VERBENA_DEVICE static WaitResult put_rows(const SymmContext& context, int32_t peer, void* destination,
                                            const void* source, const SymmRows& rows, SymmQueue queue) {
    return copy_rows(context, peer, PutOperation::kPut, source, destination, rows, queue, nullptr);
  }
  VERBENA_DEVICE static WaitResult get_rows(const SymmContext& context, int32_t peer, void* destination,
                                            const void* source, const SymmRows& rows, SymmQueue queue) {
    SymmRequest asked;
    const WaitResult result =
        copy_rows(context, peer, PutOperation::kGet, destination, source, rows, queue, &asked);
    return result == WaitResult::kReached ? await(context, asked) : result;
  }

  // Enqueues several pieces at a time, so that one fence publishes all their descriptors.
  VERBENA_DEVICE static WaitResult put_pieces(const SymmContext& context, int32_t peer,
                                              const SymmPiece* pieces, uint32_t count,
                                              const SymmPieceSignal* after, SymmQueue queue) {
    constexpr uint32_t kBatch = 8;
    const uint32_t depth = uint32_t{1} << context.queues.depth_shift;
    const uint32_t most = kBatch < depth ? kBatch : depth;
    detail::PutRequest requests[kBatch];
    uint32_t filled = 0;
    WaitResult result = WaitResult::kReached;
    const auto flush = [&] {
      if (filled != 0) result = detail::enqueue(context, queue, peer, requests, filled, true, nullptr);
      filled = 0;
    };
    VERBENA_UNROLL_BY(1)
    for (uint32_t i = 0; i < count && result == WaitResult::kReached; ++i) {
      SymmPiece piece = pieces[i];
      if (piece.length_bytes == 0) continue;
      detail::find_symmetric(context, &piece.destination, piece.length_bytes);
      detail::find_symmetric(context, &piece.source, piece.length_bytes);
      requests[filled++] = detail::request_copy(context, PutOperation::kPut, piece.source, piece.destination,
                                                piece.length_bytes);
      if (filled == most) flush();
    }
    if (result == WaitResult::kReached && after != nullptr)
      requests[filled++] = detail::request_signal(context, after->signal, after->value, after->operation);
    if (result == WaitResult::kReached) flush();
    return result;
  }

  VERBENA_DEVICE static WaitResult write_word(const SymmContext& context, int32_t peer, uint64_t* word,
                                              uint64_t value, SymmQueue queue) {
    const detail::PutRequest requests[] = {
        {PutOperation::kWriteWord, value, 0, detail::find_offset(context, word)}};
    return detail::enqueue(context, queue, peer, requests);
  }
  VERBENA_DEVICE static WaitResult add_word(const SymmContext& context, int32_t peer, uint64_t* word,
                                            uint64_t value, SymmQueue queue) {
    const detail::PutRequest requests[] = {
        {PutOperation::kAddWord, value, 0, detail::find_offset(context, word)}};
    return detail::enqueue(context, queue, peer, requests);
  }
  VERBENA_DEVICE static WaitResult fetch_add(const SymmContext& context, int32_t peer, uint64_t* word,
                                             uint64_t value, SymmQueue queue, uint64_t* before) {
    return detail::update_remote(context, queue, peer,
                                 {PutOperation::kFetchAdd, value, 0, detail::find_offset(context, word)},
                                 before);
  }
  VERBENA_DEVICE static bool swaps(const SymmContext& context) { return context.queues.swaps_words != 0; }
  VERBENA_DEVICE static WaitResult compare_swap(const SymmContext& context, int32_t peer, uint64_t* word,
                                                uint64_t expected, uint64_t desired, SymmQueue queue,
                                                uint64_t* before) {
    return detail::update_remote(
        context, queue, peer,
        {PutOperation::kCompareSwap, desired, expected, detail::find_offset(context, word)}, before);
  }

  VERBENA_DEVICE static WaitResult follow_all(const SymmContext& context, int32_t peer, SymmQueue queue) {
    return detail::follow_queues(context, peer, queue);
  }

  // release_sources() calls this function, because the proxy reports only the completion of a put. The proxy
  // does not report the earlier time at which the source of the put may be reused.
  VERBENA_DEVICE static WaitResult complete(const SymmContext& context) {
    return detail::complete_all(context);
  }
  VERBENA_DEVICE static WaitResult complete_at(const SymmContext& context, int32_t peer) {
    return detail::complete_at(context, peer, detail::find_offset(context, context.signals));
  }
  VERBENA_DEVICE static WaitResult release_sources(const SymmContext& context) { return complete(context); }

  VERBENA_DEVICE static uint64_t read_signal(const SymmContext& context, uint32_t signal,
                                             int64_t delta_bytes) {
    return load_acquire<Scope::kSystem>(detail::shift(context.remote_signals + signal, delta_bytes));
  }
  // Does nothing. When a rank sets one of its own signals, it changes only the word in SymmContext::signals,
  // so that the sum of the signal's two words has the right value.
  VERBENA_DEVICE static void reset_signal(const SymmContext& context, uint32_t signal) {
    static_cast<void>(context), static_cast<void>(signal);
  }

  VERBENA_DEVICE static WaitResult arrive(const SymmContext& context, int32_t peer, uint32_t barrier,
                                          uint64_t round) {
    const detail::PutRequest requests[] = {
        {PutOperation::kWriteWord, round, 0,
         detail::find_offset(context, detail::find_arrival(context, barrier, context.team_rank))}};
    return detail::enqueue(context, {}, peer, requests);
  }
  VERBENA_DEVICE static bool has_arrived(const SymmContext& context, int32_t peer, uint32_t barrier,
                                         uint64_t round) {
    return load_acquire<Scope::kSystem>(detail::find_arrival(context, barrier, peer)) >= round;
  }
  VERBENA_DEVICE static void notify(const SymmContext& context, int32_t peer, uint64_t* word,
                                    uint64_t value) {
    const detail::PutRequest requests[] = {
        {PutOperation::kWriteWord, value, 0, detail::find_offset(context, word)}};
    detail::enqueue(context, {}, peer, requests, 1, false, nullptr);
  }

 private:
  VERBENA_DEVICE static WaitResult copy_rows(const SymmContext& context, int32_t peer, PutOperation operation,
                                             const void* here, const void* there, const SymmRows& rows,
                                             SymmQueue queue, SymmRequest* asked) {
    detail::PutRequest requests[] = {{PutOperation::kRows, rows.stride_here, rows.stride_there, rows.count},
                                     detail::request_copy(context, operation, here, there, rows.row_bytes)};
    requests[1].tells = asked != nullptr;
    return detail::enqueue(context, queue, peer, requests, asked);
  }
};

}  // namespace verbena::device

#endif
