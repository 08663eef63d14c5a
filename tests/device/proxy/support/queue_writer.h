// Descriptors written by the test itself, right or wrong, as no kernel would.
#pragma once

#include <array>

#include "device/put_queue/put_queue.h"

namespace verbena::device_test {

inline PutDescriptor describe(PutOperation operation, uint64_t peer, uint64_t operand, uint64_t extent,
                              uint64_t place) {
  return {operand, extent, place, uint64_t{static_cast<uint8_t>(operation)} << kPutOperationShift | peer};
}

inline PutDescriptor and_tell(const PutDescriptor& descriptor) {
  return {descriptor.operand, descriptor.extent, descriptor.place, descriptor.action | kPutReports};
}

class QueueWriter {
 public:
  explicit QueueWriter(const symm::PutQueue& queues) : view_(queues.view()) {}

  uint64_t turn_of(uint64_t position) const { return ((position >> view_.depth_shift) + 1) << kPutTurnShift; }
  PutDescriptor& slot(uint32_t queue, uint64_t position) {
    const uint64_t depth = uint64_t{1} << view_.depth_shift;
    return view_.ring[queue * depth + position % depth];
  }
  // At the queue's next position.
  void write(uint32_t queue, const PutDescriptor& descriptor) {
    const uint64_t position = next_[queue]++;
    slot(queue, position) = {descriptor.operand, descriptor.extent, descriptor.place | turn_of(position),
                             descriptor.action | turn_of(position)};
  }
  uint64_t consumed(uint32_t queue) const { return view_.progress[queue].consumed; }
  uint64_t completed(uint32_t queue) const { return view_.progress[queue].completed; }
  PutReply& reply(uint32_t queue, uint64_t position) {
    const uint64_t depth = uint64_t{1} << view_.depth_shift;
    return view_.replies[queue * depth + position % depth];
  }

 private:
  PutQueueView view_;
  std::array<uint64_t, kPutMaxQueues> next_{};
};

}  // namespace verbena::device_test
