// Keeps track of the rails that are down. The state is a word in each process's segment, which peers read at
// every request.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "softverbs/shared/config.h"
#include "softverbs/shared/segment.h"

namespace verbena::softverbs {
struct Context;
}

namespace verbena::softverbs::faults {

// Returns whether the rail of the segment's owner is down.
inline bool is_down(const Segment& segment, uint32_t rail) {
  return (segment.header().rails_down.load(std::memory_order_acquire) >> rail & 1) != 0;
}

// Knows the rails of this process that are down. Publishes the state in the segment, where peers read it, and
// sends the events.
class Rails {
 public:
  void add(Context& context);
  void remove(Context& context);

  // A rail is down while the control file says so, or while a fault holds it down.
  void obey(uint32_t up, uint32_t down);  // bits of rails
  void hold_down(uint32_t rail);
  void release(uint32_t rail);

  // Sends the event to all contexts of the rail. IBV_EVENT_DEVICE_FATAL makes the contexts unusable.
  void raise(uint32_t rail, ibv_event_type event);

 private:
  void publish();  // holds the mutex
  void tell(uint32_t rail, ibv_event_type event);

  std::mutex mutex_;
  std::vector<Context*> contexts_;
  uint32_t ordered_down_ = 0;
  uint32_t holds_[kMaxDevices] = {};
};

}  // namespace verbena::softverbs::faults
