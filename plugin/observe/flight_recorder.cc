#include "observe/flight_recorder.h"

#include <bit>

namespace verbena::observe {

FlightRecorder::FlightRecorder(uint32_t events)
    : ring_(events == 0 ? 0 : std::bit_ceil(events)), mask_(ring_.size() - 1) {}

Event FlightRecorder::unpack(const Entry& entry) {
  Event event;
  // Acquire: with a value of a newer event comes the newer begun_, and read() drops it.
  event.at_ns = entry.at_ns.load(std::memory_order_acquire);
  event.value = entry.value.load(std::memory_order_acquire);
  const uint64_t rest = entry.rest.load(std::memory_order_acquire);
  event.sequence = static_cast<uint32_t>(rest >> 32);
  event.kind = static_cast<EventKind>(rest >> 16 & 0xFF);
  event.rail = static_cast<uint8_t>(rest >> 8);
  event.path = static_cast<Path>(rest & 0xFF);
  return event;
}

std::vector<Event> FlightRecorder::read() const {
  const uint64_t end = ended_.load(std::memory_order_acquire);
  const uint64_t count = end < ring_.size() ? end : ring_.size();
  std::vector<Event> events;
  events.reserve(count);
  for (uint64_t index = end - count; index != end; ++index) events.push_back(unpack(ring_[index & mask_]));
  const uint64_t begun = begun_.load(std::memory_order_relaxed);
  const uint64_t first_whole = begun < ring_.size() ? 0 : begun - ring_.size();
  const uint64_t first = end - count;
  const uint64_t overwritten = first_whole <= first ? 0 : first_whole - first;
  events.erase(events.begin(),
               events.begin() + static_cast<int64_t>(overwritten < count ? overwritten : count));
  return events;
}

uint64_t FlightRecorder::count_lost() const {
  const uint64_t end = ended_.load(std::memory_order_acquire);
  return end <= ring_.size() ? 0 : end - ring_.size();
}

}  // namespace verbena::observe
