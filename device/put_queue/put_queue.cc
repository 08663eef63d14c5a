#include "device/put_queue/put_queue.h"

#include <bit>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::symm {

namespace {

// The view has the GPU's addresses. The host may have the same memory at other addresses.
template <typename T>
T* at_host(const base::Buffer& buffer) {
  return static_cast<T*>(buffer.host());
}

uint64_t turn_of(uint64_t position, uint32_t depth_shift) {
  return static_cast<uint16_t>((position >> depth_shift) + 1);
}

}  // namespace

PutQueueShape PutQueueShape::from_parameters() {
  const base::Parameters& set = base::parameters();
  return {static_cast<uint32_t>(set.put_queues), static_cast<uint32_t>(set.put_queue_depth)};
}

base::Result<PutQueue> PutQueue::create(const PutQueueShape& shape) {
  const bool is_possible = shape.count >= 1 && shape.count <= kPutMaxQueues && shape.depth >= 2 &&
                           shape.depth <= 1U << kPutMaxDepthShift && std::has_single_bit(shape.depth);
  if (!is_possible) {
    return base::fail(base::Status::kInvalidArgument, "put queue: invalid shape: %u queues of %u descriptors",
                      shape.count, shape.depth);
  }
  PutQueue queue;
  const struct {
    base::Buffer* buffer;
    base::Place place;
    size_t length_bytes;
  } parts[] = {{&queue.ring_, base::Place::kHost, sizeof(PutDescriptor) * shape.depth * shape.count},
               {&queue.cursors_, base::Place::kDevice, sizeof(PutCursors) * shape.count},
               {&queue.progress_, base::Place::kHost, sizeof(PutProgress) * shape.count},
               {&queue.replies_, base::Place::kHost, sizeof(PutReply) * shape.depth * shape.count}};
  for (const auto& part : parts) {
    auto buffer = base::Buffer::allocate(part.place, part.length_bytes);
    if (!buffer) return buffer.error();
    *part.buffer = *std::move(buffer);
  }
  queue.view_ = {.ring = static_cast<PutDescriptor*>(queue.ring_.device()),
                 .cursors = static_cast<PutCursors*>(queue.cursors_.device()),
                 .progress = static_cast<const PutProgress*>(queue.progress_.device()),
                 .replies = static_cast<PutReply*>(queue.replies_.device()),
                 .count = shape.count,
                 .depth_shift = static_cast<uint32_t>(std::countr_zero(shape.depth)),
                 .swaps_words = 0};
  return queue;
}

bool PutQueue::read(uint32_t queue, uint64_t position, PutDescriptor* out) const {
  const uint64_t slot = (uint64_t{queue} << view_.depth_shift) + (position & (depth() - 1));
  const PutDescriptor& descriptor = at_host<const PutDescriptor>(ring_)[slot];
  const uint64_t turn = turn_of(position, view_.depth_shift);
  // Either of the two words may become visible first. Once both words are visible, the first half of the
  // descriptor is visible, too.
  const uint64_t action = __atomic_load_n(&descriptor.action, __ATOMIC_ACQUIRE);
  const uint64_t place = __atomic_load_n(&descriptor.place, __ATOMIC_ACQUIRE);
  if (action >> kPutTurnShift != turn || place >> kPutTurnShift != turn) return false;
  *out = {descriptor.operand, descriptor.extent, place, action};
  return true;
}

void PutQueue::publish_consumed(uint32_t queue, uint64_t position) {
  __atomic_store_n(&at_host<PutProgress>(progress_)[queue].consumed, position, __ATOMIC_RELEASE);
}

void PutQueue::publish_completed(uint32_t queue, uint64_t position) {
  __atomic_store_n(&at_host<PutProgress>(progress_)[queue].completed, position, __ATOMIC_RELEASE);
}

PutReply& PutQueue::reply(uint32_t queue, uint64_t position) const {
  return at_host<PutReply>(replies_)[(uint64_t{queue} << view_.depth_shift) + (position & (depth() - 1))];
}

void PutQueue::tell(uint32_t queue, uint64_t position) {
  uint64_t* const told = &reply(queue, position).told;
  uint64_t before = __atomic_load_n(told, __ATOMIC_RELAXED);
  while (
      (before & ~kPutReplyLeft) <= position &&
      !__atomic_compare_exchange_n(told, &before, position + 1, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

void PutQueue::tell_value(uint32_t queue, uint64_t position, uint64_t value) {
  __atomic_store_n(&reply(queue, position).value, value, __ATOMIC_RELAXED);
  tell(queue, position);
}

bool PutQueue::has_left(uint32_t queue, uint64_t position) const {
  return __atomic_load_n(&reply(queue, position).told, __ATOMIC_ACQUIRE) == ((position + 1) | kPutReplyLeft);
}

}  // namespace verbena::symm
