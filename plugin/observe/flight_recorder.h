// The last events of one end of a connection, in a ring of a fixed size. One thread writes, without a lock or
// an allocation; any thread reads, and drops events that were overwritten meanwhile.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

namespace verbena::observe {

enum class EventKind : uint8_t {
  kPost,      // value: bytes of a send, capacity of a receive
  kGrant,     // a receive's grant was sent; a send's grant was read
  kChunk,     // a send's chunk was posted to a rail; a receive's chunk arrived; value: bytes
  kDone,      // reported by the caller's test; value: bytes
  kConsumed,  // the GPU has consumed it
  kFlush,     // posted; sequence: the flush's number
  kFlushDone,
  kRailDown,  // a queue pair failed; value: its index
  kRailUp,    // a queue pair works again
  kReplay,    // a chunk is retransmitted; value: bytes
  kResent,    // packets of a message were retransmitted; value: their number
  kStall,     // value: its duration so far, ns
  kFailed,    // the connection
};
enum class Path : uint8_t { kStaged, kDirect };

struct Event {
  int64_t at_ns = 0;  // monotonic
  uint64_t value = 0;
  uint32_t sequence = 0;  // of the message
  EventKind kind = EventKind::kPost;
  uint8_t rail = 0;
  Path path = Path::kStaged;
};

// `Atomic` is std::atomic. A test uses another type, whose loads may return every value that the memory model
// allows.
template <template <typename> typename Atomic>
class BasicFlightRecorder {
 public:
  // Rounded up to a power of two; 0 records nothing.
  explicit BasicFlightRecorder(uint32_t events)
      : ring_(events == 0 ? 0 : std::bit_ceil(events)), mask_(ring_.size() - 1) {}

  bool is_on() const { return !ring_.empty(); }
  void record(const Event& event) {
    if (!is_on()) return;
    const uint64_t index = begun_.load(std::memory_order_relaxed);
    // A reader that sees one of the later stores also sees this one. read() depends on it.
    begun_.store(index + 1, std::memory_order_relaxed);
    Entry& entry = ring_[index & mask_];
    entry.at_ns.store(event.at_ns, std::memory_order_release);
    entry.value.store(event.value, std::memory_order_release);
    entry.rest.store(pack(event), std::memory_order_release);
    ended_.store(index + 1, std::memory_order_release);
  }
  // Oldest first.
  std::vector<Event> read() const;
  // How many earlier events were overwritten.
  uint64_t count_lost() const {
    const uint64_t end = ended_.load(std::memory_order_acquire);
    return end <= ring_.size() ? 0 : end - ring_.size();
  }

 private:
  struct Entry {
    Atomic<int64_t> at_ns{0};
    Atomic<uint64_t> value{0}, rest{0};
  };
  static uint64_t pack(const Event& event) {
    return uint64_t{event.sequence} << 32 | uint64_t{static_cast<uint8_t>(event.kind)} << 16 |
           uint64_t{event.rail} << 8 | static_cast<uint8_t>(event.path);
  }
  static Event unpack(const Entry& entry);

  std::vector<Entry> ring_;
  uint64_t mask_ = 0;
  Atomic<uint64_t> begun_{0}, ended_{0};  // events
};

template <template <typename> typename Atomic>
Event BasicFlightRecorder<Atomic>::unpack(const Entry& entry) {
  Event event;
  // Acquire: if a value is of a newer event, the newer begun_ is visible too, and read() drops the event.
  event.at_ns = entry.at_ns.load(std::memory_order_acquire);
  event.value = entry.value.load(std::memory_order_acquire);
  const uint64_t rest = entry.rest.load(std::memory_order_acquire);
  event.sequence = static_cast<uint32_t>(rest >> 32);
  event.kind = static_cast<EventKind>(rest >> 16 & 0xFF);
  event.rail = static_cast<uint8_t>(rest >> 8);
  event.path = static_cast<Path>(rest & 0xFF);
  return event;
}

template <template <typename> typename Atomic>
std::vector<Event> BasicFlightRecorder<Atomic>::read() const {
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

using FlightRecorder = BasicFlightRecorder<std::atomic>;

}  // namespace verbena::observe
