// Verbena's own way to members out of reach: the host's proxy, asked through put queues.
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

// NICs have a word of their own.
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
  static constexpr bool kArrivesBehindAll = true;

  VERBENA_DEVICE static constexpr bool serves(int32_t type) { return type == kSymmVerbena; }
  VERBENA_DEVICE static bool is_there(const SymmContext& context) { return detail::has_queues(context); }

  VERBENA_DEVICE static WaitResult put(const SymmContext& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes) {
    const detail::PutRequest requests[] = {
        detail::request_copy(context, PutOperation::kPut, source, destination, length_bytes)};
    return detail::enqueue(context, peer, requests);
  }
  VERBENA_DEVICE static WaitResult put_signal(const SymmContext& context, int32_t peer, void* destination,
                                              const void* source, uint64_t length_bytes, uint32_t signal,
                                              uint64_t value, SymmSignalOperation operation) {
    const detail::PutRequest requests[] = {
        detail::request_copy(context, PutOperation::kPut, source, destination, length_bytes),
        detail::request_signal(context, signal, value, operation)};
    return detail::enqueue(context, peer, requests);
  }
  VERBENA_DEVICE static WaitResult signal(const SymmContext& context, int32_t peer, uint32_t signal,
                                          uint64_t value, SymmSignalOperation operation) {
    const detail::PutRequest requests[] = {detail::request_signal(context, signal, value, operation)};
    return detail::enqueue(context, peer, requests);
  }
  VERBENA_DEVICE static WaitResult get(const SymmContext& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes) {
    const detail::PutRequest requests[] = {
        detail::request_copy(context, PutOperation::kGet, destination, source, length_bytes)};
    uint64_t behind = 0;
    const WaitResult result = detail::enqueue(context, peer, requests, &behind);
    if (result != WaitResult::kReached) return result;
    return detail::await_completed(context, detail::choose_queue(context), behind);
  }

  VERBENA_DEVICE static WaitResult follow_all(const SymmContext& context, int32_t peer) {
    return detail::follow_queues(context, peer);
  }

  // A put that is complete has its source back, and the proxy tells of no other.
  VERBENA_DEVICE static WaitResult complete(const SymmContext& context) {
    return detail::complete_all(context);
  }
  VERBENA_DEVICE static WaitResult release_sources(const SymmContext& context) { return complete(context); }

  VERBENA_DEVICE static uint64_t read_signal(const SymmContext& context, uint32_t signal,
                                             int64_t delta_bytes) {
    return load_acquire<Scope::kSystem>(detail::shift(context.remote_signals + signal, delta_bytes));
  }
  // A signal is made 0 by the other word.
  VERBENA_DEVICE static void reset_signal(const SymmContext& context, uint32_t signal) {
    static_cast<void>(context), static_cast<void>(signal);
  }

  VERBENA_DEVICE static WaitResult arrive(const SymmContext& context, int32_t peer, uint32_t barrier,
                                          uint64_t round) {
    const detail::PutRequest requests[] = {
        {PutOperation::kWriteWord, round, 0,
         detail::find_offset(context, detail::find_arrival(context, barrier, context.team_rank))}};
    return detail::enqueue(context, peer, requests);
  }
  VERBENA_DEVICE static bool has_arrived(const SymmContext& context, int32_t peer, uint32_t barrier,
                                         uint64_t round) {
    return load_acquire<Scope::kSystem>(detail::find_arrival(context, barrier, peer)) >= round;
  }
  VERBENA_DEVICE static void tell(const SymmContext& context, int32_t peer, uint64_t* word, uint64_t value) {
    const detail::PutRequest requests[] = {
        {PutOperation::kWriteWord, value, 0, detail::find_offset(context, word)}};
    detail::enqueue(context, peer, requests, 1, false, nullptr);
  }
};

}  // namespace verbena::device

#endif
