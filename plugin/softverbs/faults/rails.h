#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "softverbs/config.h"
#include "softverbs/segment.h"

namespace verbena::softverbs {
struct Context;
}

namespace verbena::softverbs::faults {

// Whether the owner of the segment has that rail down.
inline bool is_down(const Segment& segment, uint32_t rail) {
  return (segment.header().rails_down.load(std::memory_order_acquire) >> rail & 1) != 0;
}

// Which of this process's rails are down, and who hears of it. Peers read the outcome in the segment.
class Rails {
 public:
  void add(Context& context);
  void remove(Context& context);

  // A rail is down while the control file says so, or as long as anybody holds it down.
  void obey(uint32_t up, uint32_t down);  // bits of rails
  void hold_down(uint32_t rail);
  void release(uint32_t rail);

  // Tells all contexts of the rail. Of IBV_EVENT_DEVICE_FATAL they are dead afterwards.
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
