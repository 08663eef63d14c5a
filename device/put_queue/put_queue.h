// The put queues of a rank on the host: their memory, and the proxy's side of them.
#pragma once

#include <cstdint>

#include "base/cuda_driver.h"
#include "base/status.h"
#include "verbena/put_abi.h"

namespace verbena::symm {

struct PutQueueShape {
  uint32_t count = 4;     // 1 to kPutMaxQueues
  uint32_t depth = 1024;  // descriptors of each, 2 to 2^kPutMaxDepthShift; a power of two

  // VERBENA_PUT_QUEUES, VERBENA_PUT_QUEUE_DEPTH.
  static PutQueueShape from_parameters();
};

// Movable; the view's addresses stay. Freed when no kernel uses it any more: the owner sees to that.
class PutQueue {
 public:
  // In memory of the calling thread's current GPU, and pinned for it; with no GPU all is host memory.
  static base::Result<PutQueue> create(const PutQueueShape& shape);

  // For SymmContext::queues.
  const PutQueueView& view() const { return view_; }
  uint32_t count() const { return view_.count; }
  uint32_t depth() const { return 1U << view_.depth_shift; }

  // The rest is for one thread, the proxy's.

  // False: the position's descriptor is not there yet.
  bool read(uint32_t queue, uint64_t position, PutDescriptor* out) const;
  // Behind every read of the positions before this one.
  void publish_consumed(uint32_t queue, uint64_t position);
  void publish_completed(uint32_t queue, uint64_t position);
  // Marks the position's reply, unless its slot has a later one's by now.
  void tell(uint32_t queue, uint64_t position);
  // The same with a value, whose reader keeps the slot until has_left().
  void tell_value(uint32_t queue, uint64_t position, uint64_t value);
  bool has_left(uint32_t queue, uint64_t position) const;
  // Before kernels have the view.
  void offer_swaps() { view_.swaps_words = 1; }

 private:
  PutReply& reply(uint32_t queue, uint64_t position) const;

  base::Buffer ring_, cursors_, progress_, replies_;
  PutQueueView view_{};
};

}  // namespace verbena::symm
