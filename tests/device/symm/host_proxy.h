// Put queues in the test's memory, and the host's side of them by C++'s own atomics: a proxy as a function of
// an emulated world. Ranks other than the one with the queues are only names.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "verbena/symm_abi.h"

namespace verbena::device_test {

class HostProxy {
 public:
  static constexpr uint64_t kHeapBytes = 1 << 16, kWordsBytes = 1 << 15;

  HostProxy(uint32_t count, uint32_t depth_shift, int32_t ranks = 2)
      : ring_(std::make_unique<PutDescriptor[]>(size_t{count} << depth_shift)),
        cursors_(std::make_unique<PutCursors[]>(count)),
        progress_(std::make_unique<PutProgress[]>(count)),
        replies_(std::make_unique<PutReply[]>(size_t{count} << depth_shift)),
        heap_(kHeapBytes / 8),
        rounds_(kSymmBarrierRows),
        next_(count) {
    context_.team_size = context_.world_size = ranks;
    context_.lsa_size = 1;
    context_.has_remote = 1;
    for (int32_t peer = 1; peer < ranks; ++peer) context_.inline_deltas[peer] = kSymmOutOfReach;
    for (int32_t peer = 0; peer < ranks; ++peer) context_.inline_world_ranks[peer] = 40 + peer;
    context_.heap_begin = reinterpret_cast<uint64_t>(heap_.data());
    context_.heap_end = context_.heap_begin + kHeapBytes;
    context_.signals = heap_.data();
    context_.remote_signals = context_.signals + kSymmSignals;
    context_.arrivals = context_.remote_signals + kSymmSignals;
    context_.rounds = rounds_.data();
    context_.timeout_ns = 1'000'000'000'000;
    context_.queues = {ring_.get(), cursors_.get(), progress_.get(), replies_.get(), count, depth_shift, 1};
  }

  SymmContext& context() { return context_; }
  template <typename T = uint8_t>
  T* data(uint64_t offset_bytes = 0) {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(heap_.data()) + kWordsBytes + offset_bytes);
  }
  // Of an address in the heap.
  uint64_t offset_of(const void* address) const {
    return reinterpret_cast<uint64_t>(address) - context_.heap_begin;
  }

  // The queue's next descriptor, without its turn, if it is there. Its slot stays in use until consume().
  std::optional<PutDescriptor> take(uint32_t queue) {
    const uint64_t position = next_[queue], shift = context_.queues.depth_shift;
    const PutDescriptor& slot = ring_[(uint64_t{queue} << shift) + (position & ((uint64_t{1} << shift) - 1))];
    const auto turn = static_cast<uint16_t>((position >> shift) + 1);
    const uint64_t action = __atomic_load_n(&slot.action, __ATOMIC_ACQUIRE);
    const uint64_t place = __atomic_load_n(&slot.place, __ATOMIC_ACQUIRE);
    if (action >> kPutTurnShift != turn || place >> kPutTurnShift != turn) return std::nullopt;
    ++next_[queue];
    return PutDescriptor{slot.operand, slot.extent, place & kPutMaxOffset, action & kPutMaxOffset};
  }
  // All that was taken.
  void consume(uint32_t queue) { tell(&progress_[queue].consumed, next_[queue]); }
  void complete(uint32_t queue) { tell(&progress_[queue].completed, next_[queue]); }
  uint64_t count_taken(uint32_t queue) const { return next_[queue]; }
  // The one that was taken last is complete by itself; an update's word was `value`.
  void reply(uint32_t queue, uint64_t value = 0) { reply_to(queue, next_[queue] - 1, value); }
  void reply_to(uint32_t queue, uint64_t position, uint64_t value = 0) {
    PutReply& reply = slot_of(queue, position);
    __atomic_store_n(&reply.value, value, __ATOMIC_RELAXED);
    tell(&reply.told, position + 1);
  }
  uint64_t told(uint32_t queue, uint64_t position) {
    return __atomic_load_n(&slot_of(queue, position).told, __ATOMIC_ACQUIRE);
  }

 private:
  PutReply& slot_of(uint32_t queue, uint64_t position) {
    const uint64_t shift = context_.queues.depth_shift;
    return replies_[(uint64_t{queue} << shift) + (position & ((uint64_t{1} << shift) - 1))];
  }
  static void tell(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

  std::unique_ptr<PutDescriptor[]> ring_;
  std::unique_ptr<PutCursors[]> cursors_;
  std::unique_ptr<PutProgress[]> progress_;
  std::unique_ptr<PutReply[]> replies_;
  std::vector<uint64_t> heap_, rounds_;
  std::vector<uint64_t> next_;
  SymmContext context_{};
};

inline PutOperation operation_of(const PutDescriptor& descriptor) {
  return static_cast<PutOperation>((descriptor.action & ~kPutReports) >> kPutOperationShift);
}
inline uint32_t peer_of(const PutDescriptor& descriptor) {
  return static_cast<uint32_t>(descriptor.action);
}

}  // namespace verbena::device_test
