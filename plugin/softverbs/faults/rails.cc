#include "softverbs/faults/rails.h"

#include "softverbs/engine/events.h"
#include "softverbs/engine/objects.h"

namespace verbena::softverbs::faults {

void Rails::add(Context& context) {
  const std::lock_guard lock(mutex_);
  contexts_.push_back(&context);
}

void Rails::remove(Context& context) {
  const std::lock_guard lock(mutex_);
  std::erase(contexts_, &context);
}

void Rails::obey(uint32_t up, uint32_t down) {
  const std::lock_guard lock(mutex_);
  ordered_down_ = (ordered_down_ & ~up) | down;
  publish();
}

void Rails::hold_down(uint32_t rail) {
  const std::lock_guard lock(mutex_);
  ++holds_[rail];
  publish();
}

void Rails::release(uint32_t rail) {
  const std::lock_guard lock(mutex_);
  --holds_[rail];
  publish();
}

void Rails::raise(uint32_t rail, ibv_event_type event) {
  const std::lock_guard lock(mutex_);
  tell(rail, event);
}

// Changes the state before it sends the event, so that a query after the event finds the port in its new
// state.
void Rails::publish() {
  uint32_t down = ordered_down_;
  for (uint32_t rail = 0; rail < kMaxDevices; ++rail) {
    if (holds_[rail] != 0) down |= 1u << rail;
  }
  const uint32_t before = Process::get()->segment().header().rails_down.exchange(down);
  for (uint32_t rail = 0; rail < kMaxDevices; ++rail) {
    if (((before ^ down) >> rail & 1) != 0)
      tell(rail, (down >> rail & 1) != 0 ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
  }
}

void Rails::tell(uint32_t rail, ibv_event_type event) {
  for (Context* context : contexts_) {
    if (context->device->index != rail) continue;
    if (event == IBV_EVENT_DEVICE_FATAL) context->is_dead.store(true);
    raise_async(Process::get()->self(), context->index, kPort, event);
  }
}

}  // namespace verbena::softverbs::faults
