// A rank's put queues on the host: their memory, and the proxy's access to them.
#pragma once

#include <cstdint>

#include "base/cuda_driver.h"
#include "base/status.h"
#include "verbena/put_abi.h"

namespace verbena::symm {

struct PutQueueShape {
  uint32_t count = 4;     // 1 to kPutMaxQueues
  uint32_t depth = 1024;  // descriptors per queue: a power of two from 2 to 2^kPutMaxDepthShift

  // Reads VERBENA_PUT_QUEUES and VERBENA_PUT_QUEUE_DEPTH.
  static PutQueueShape from_parameters();
};

// The object is movable, because the addresses in the view stay valid. The owner must not destroy the object
// before all kernels that use the queues have ended.
class PutQueue {
 public:
  // Creates the queues in memory of the calling thread's current GPU and in host memory pinned for it.
  // Without a GPU, all memory is host memory.
  static base::Result<PutQueue> create(const PutQueueShape& shape);

  // The view for kernels (SymmContext::queues).
  const PutQueueView& view() const { return view_; }
  uint32_t count() const { return view_.count; }
  uint32_t depth() const { return 1U << view_.depth_shift; }

  // Only the proxy's thread calls the functions below.

  // Reads the descriptor at a position. Returns false if the kernel has not written it yet.
  bool read(uint32_t queue, uint64_t position, PutDescriptor* out) const;
  // Publishes that descriptors before `position` are consumed, so that kernels may reuse their slots. Call it
  // after reading them.
  void publish_consumed(uint32_t queue, uint64_t position);
  void publish_completed(uint32_t queue, uint64_t position);
  // Marks the reply of a position as complete, unless its slot already has the reply of a later position.
  void tell(uint32_t queue, uint64_t position);
  // Does the same as tell(), and sets the reply's value. The kernel that reads the value keeps the slot until
  // has_left() returns true.
  void tell_value(uint32_t queue, uint64_t position, uint64_t value);
  bool has_left(uint32_t queue, uint64_t position) const;
  // Offers compare-and-swap to kernels. Call it before kernels get the view.
  void offer_swaps() { view_.swaps_words = 1; }

 private:
  PutReply& reply(uint32_t queue, uint64_t position) const;

  base::Buffer ring_, cursors_, progress_, replies_;
  PutQueueView view_{};
};

}  // namespace verbena::symm
