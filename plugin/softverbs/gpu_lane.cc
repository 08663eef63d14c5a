#include "softverbs/gpu_lane.h"

#include <cstring>

namespace verbena::softverbs {
namespace {
constexpr int kEventsAhead = 16;  // made at the start, where making them may block
}

std::unique_ptr<GpuLane> GpuLane::open(const cuda::Driver& driver, cuda::Context context) {
  const cuda::Scope scope(driver, context);
  std::unique_ptr<GpuLane> lane(new GpuLane(driver, context));
  cuda::Device device = 0;
  int least = 0, greatest = 0;
  const bool is_known = driver.context_get_device(&device) == cuda::kSuccess &&
                        driver.device_uuid(&lane->device_, device) == cuda::kSuccess;
  driver.context_priorities(&least, &greatest);
  if (!is_known ||
      driver.stream_create(&lane->stream_, cuda::kStreamNonBlocking, greatest) != cuda::kSuccess) {
    return nullptr;
  }
  for (int i = 0; i < kEventsAhead; ++i) {
    cuda::Event event = nullptr;
    if (driver.event_create(&event, cuda::kEventNoTiming) != cuda::kSuccess) return nullptr;
    lane->free_events_.push_back(event);
  }
  return lane;
}

bool GpuLane::copy(uint64_t to, uint64_t from, uint64_t bytes) {
  const bool continues =
      pending_bytes_ > 0 && pending_to_ + pending_bytes_ == to && pending_from_ + pending_bytes_ == from;
  if (!continues && !issue_pending()) return false;
  if (!continues) {
    pending_to_ = to;
    pending_from_ = from;
  }
  pending_bytes_ += bytes;
  ++issued_;
  return true;
}

bool GpuLane::issue_pending() {
  if (pending_bytes_ == 0) return true;
  const uint64_t bytes = pending_bytes_;
  pending_bytes_ = 0;
  cuda::enter(driver_, context_);
  if (driver_.copy_async(pending_to_, pending_from_, bytes, stream_) == cuda::kSuccess) return true;
  is_broken_ = true;
  return false;
}

cuda::Event GpuLane::take_event() {
  cuda::Event event = nullptr;
  if (free_events_.empty()) {
    driver_.event_create(&event, cuda::kEventNoTiming);
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  return event;
}

bool GpuLane::record() {
  if (recorded_ == issued_) return true;
  if (!issue_pending()) return false;
  const cuda::Event event = take_event();
  if (event == nullptr || driver_.event_record(event, stream_) != cuda::kSuccess) {
    is_broken_ = true;
    return false;
  }
  fences_.push_back({event, issued_});
  recorded_ = issued_;
  return true;
}

LaneState GpuLane::look(uint64_t ticket) {
  cuda::enter(driver_, context_);
  if (is_broken_ || !record()) return LaneState::kBroken;
  while (done_ < ticket && !fences_.empty()) {
    const cuda::Result result = driver_.event_query(fences_.front().event);
    if (result == cuda::kNotReady) return LaneState::kBusy;
    if (result != cuda::kSuccess) {
      is_broken_ = true;
      return LaneState::kBroken;
    }
    done_ = fences_.front().ticket;
    free_events_.push_back(fences_.front().event);
    fences_.pop_front();
  }
  return LaneState::kDone;
}

bool GpuLanes::prepare(const cuda::Driver& driver, cuda::Context context) {
  if (find(context) != nullptr) return true;
  auto lane = GpuLane::open(driver, context);
  if (!lane) return false;
  std::lock_guard lock(mutex_);
  lanes_.push_back(std::move(lane));
  return true;
}

GpuLane* GpuLanes::find(cuda::Context context) {
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (lane->context() == context) return lane.get();
  }
  return nullptr;
}

GpuLane* GpuLanes::find_near(const uint8_t* device_uuid) {
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (memcmp(lane->device().bytes, device_uuid, sizeof(lane->device().bytes)) == 0) return lane.get();
  }
  return lanes_.empty() ? nullptr : lanes_.front().get();
}

}  // namespace verbena::softverbs
