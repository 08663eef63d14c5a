// ncclNetDeviceUnpack and related functions, for kernels outside NCCL. The names and the order of the calls
// are the same as in NCCL. A KernelState replaces NCCL's shared memory.
//
//   setup       once for each queue                        ncclNetDeviceUnpackSetup
//   increment   before each receive                        ncclNetDeviceIncrementHead
//   unpack      when the receive is complete               ncclNetDeviceUnpack<1>
//   save        when the primitive is over                 ncclNetDeviceSaveHead
//
// There are two differences from NCCL. If an index is out of range, a call reports an error and does nothing.
// After an abort, unpacking returns immediately, whatever count of descriptors a slot has.
#ifndef VERBENA_DEVICE_NCCL_UNPACK_CUH
#define VERBENA_DEVICE_NCCL_UNPACK_CUH

#include "verbena/device/kernel_state.cuh"

namespace verbena::device {

namespace detail {

template <typename State>
VERBENA_DEVICE bool is_in_range(uint32_t group, uint32_t index) {
  return group < State::kGroups && index < State::kPeers;
}

// Returns whether the queue exists; if not, reports an error. One thread makes the call.
template <typename State>
VERBENA_DEVICE bool is_queue(State& state, uint32_t group, uint32_t index) {
  if (is_in_range<State>(group, index)) return true;
  state.report(ErrorCode::kBadIndex, group, index, 0);
  return false;
}

}  // namespace detail

// Sets up a queue. One thread of the group makes the call. The group must call sync() before it uses the
// queue.
template <typename State>
VERBENA_DEVICE void ncclNetDeviceUnpackSetup(State& state, void* handle, uint32_t group, uint32_t index) {
  if (!detail::is_queue(state, group, index)) return;
  auto* const queue = static_cast<UnpackDeviceHandle*>(handle);
  state.queues[group][index] = {queue, queue->meta, static_cast<const char*>(queue->bounce_buf), queue->head};
}

// Increments the head of a queue, before a receive. One thread of the group makes the call.
template <typename State>
VERBENA_DEVICE void ncclNetDeviceIncrementHead(State& state, uint32_t group, uint32_t index) {
  if (detail::is_queue(state, group, index)) state.queues[group][index].head++;
}

// Writes the head of a queue back to its handle. One thread of the group makes the call, after the group's
// last unpack.
template <typename State>
VERBENA_DEVICE void ncclNetDeviceSaveHead(State& state, void* handle, uint32_t group, uint32_t index) {
  if (detail::is_queue(state, group, index))
    static_cast<UnpackDeviceHandle*>(handle)->head = state.queues[group][index].head;
}

// Unpacks the message at the head of one queue to `data`. All threads of the group make the call.
template <typename State, typename Group, typename Copy>
VERBENA_DEVICE void ncclNetDeviceUnpackInner(State& state, const Group& group, Copy& copy,
                                             uint32_t group_index, uint32_t index, void* data) {
  const ReceiveQueue& queue = state.queues[group_index][index];
  const auto slot = static_cast<uint32_t>(queue.head % kUnpackQueueDepthSlots);
  // The threads of the group decide together, because another group may abort the block at any moment.
  if (group.any(state.is_aborted() || queue.meta == nullptr)) return;
  const UnpackResult result =
      unpack_message(group, state.scratch[group_index], copy, queue.meta, slot, queue.bounce, data);
  if (group.rank() != 0) return;
  if (result == UnpackResult::kBadCount) state.report(ErrorCode::kBadCount, group_index, index, slot);
  trace(state.arguments.trace, TraceEvent::kMessagePlaced, group_index, index, queue.head);
}

// Unpacks the message at the head of queue p to data[p], for each set bit p of `mask`. All threads of the
// group make the call. The threads must have acquired the messages; NCCL's kernels acquire messages when they
// read the step counters of their connections. Does nothing if kReceive is 0, that is, for sends.
template <int kReceive, typename State, typename Group, typename Copy>
VERBENA_DEVICE void ncclNetDeviceUnpack(State& state, const Group& group, Copy& copy, uint32_t group_index,
                                        uint32_t mask, void* const* data) {
  if constexpr (kReceive != 0) {
    for (; mask != 0; mask &= mask - 1) {
      const auto index = detail::find_lowest_bit(mask);
      if (!detail::is_in_range<State>(group_index, index)) {
        if (group.rank() == 0) state.report(ErrorCode::kBadIndex, group_index, index, 0);
        return;
      }
      ncclNetDeviceUnpackInner(state, group, copy, group_index, index, data[index]);
    }
  }
}

// Receives a message: waits for the message in the next slot, and unpacks it. All threads of the group call
// this function and get the same result. The function reports an abort, a timeout, a count out of range or a
// queue without a handle as an error. After such an error, all later receives return immediately. A failed
// receive does not advance the head, so the next receive, in this launch or a later one, waits for the same
// message.
template <typename State, typename Group, typename Copy>
VERBENA_DEVICE WaitResult receive_message(State& state, const Group& group, Copy& copy, uint32_t group_index,
                                          uint32_t index, void* data) {
  const bool is_bad = !detail::is_in_range<State>(group_index, index);
  if (is_bad && group.rank() == 0) state.report(ErrorCode::kBadIndex, group_index, index, 0);
  if (group.any(is_bad || state.is_aborted())) return WaitResult::kAborted;
  ReceiveQueue& queue = state.queues[group_index][index];
  const auto slot = static_cast<uint32_t>((queue.head + 1) % kUnpackQueueDepthSlots);
  if (group.any(queue.meta == nullptr)) {
    if (group.rank() == 0) {
      state.mark_aborted();
      state.report(ErrorCode::kBadIndex, group_index, index, slot);
    }
    return WaitResult::kAborted;
  }
  UnpackScratch<State::kBatchDescriptors>& scratch = state.scratch[group_index];
  MessageWait wait = wait_message(group, scratch, queue.meta, slot, state.make_limits());
  if (state.has_fault(Fault::kForceAbort)) wait.result = WaitResult::kAborted;
  if (state.has_fault(Fault::kCorruptCount)) wait.count = kUnpackMaxDescriptors + 1;
  if (wait.result != WaitResult::kReached) {
    if (group.rank() == 0) {
      state.mark_aborted();
      state.report(wait.result == WaitResult::kAborted ? ErrorCode::kAborted : ErrorCode::kTimedOut,
                   group_index, index, slot);
    }
    return wait.result;
  }
  if (state.has_fault(Fault::kDelayPlacing)) pause(1000);
  const UnpackResult result =
      unpack_message(group, scratch, copy, queue.meta, slot, wait.count, queue.bounce, data);
  if (result == UnpackResult::kBadCount) {
    if (group.rank() == 0) {
      state.mark_aborted();
      state.report(ErrorCode::kBadCount, group_index, index, slot);
    }
    return WaitResult::kAborted;
  }
  // The other threads read the head after the barrier at the start of the next receive.
  if (group.rank() == 0)
    trace(state.arguments.trace, TraceEvent::kMessagePlaced, group_index, index, ++queue.head);
  return WaitResult::kReached;
}

}  // namespace verbena::device

#endif
