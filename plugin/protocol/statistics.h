// Counters of a connection. Its data thread writes them, and they are added to the process's totals when the
// connection closes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protocol/wire.h"

namespace verbena::protocol {

struct Traffic {
  uint64_t messages = 0, bytes = 0;

  void count(uint64_t length_bytes) {
    ++messages;
    bytes += length_bytes;
  }
  void add(const Traffic& other) {
    messages += other.messages;
    bytes += other.bytes;
  }
};

struct Statistics {
  std::array<Traffic, 2> sent{};                           // staged, direct
  std::array<uint64_t, kMaxQueuePairs> sent_rail_bytes{};  // posted, by rail of the device
  const Traffic& sent_staged() const { return sent[0]; }
  const Traffic& sent_direct() const { return sent[1]; }
  uint64_t received_staged_messages = 0, received_staged_bytes = 0;
  uint64_t received_direct_messages = 0, received_direct_bytes = 0;
  uint64_t unpack_descriptors = 0;  // passed to a kernel
  uint64_t copied_messages = 0;     // staged messages without an unpacking kernel, which the plugin copied
  uint64_t failed_queue_pairs = 0, revived_queue_pairs = 0;
  uint64_t stalls = 0;           // reported stalls
  uint64_t replayed_chunks = 0;  // sent again on another queue pair

  void add(const Statistics& other) {
    for (size_t p = 0; p < sent.size(); ++p) sent[p].add(other.sent[p]);
    for (size_t r = 0; r < sent_rail_bytes.size(); ++r) sent_rail_bytes[r] += other.sent_rail_bytes[r];
    received_staged_messages += other.received_staged_messages;
    received_staged_bytes += other.received_staged_bytes;
    received_direct_messages += other.received_direct_messages;
    received_direct_bytes += other.received_direct_bytes;
    unpack_descriptors += other.unpack_descriptors;
    copied_messages += other.copied_messages;
    failed_queue_pairs += other.failed_queue_pairs;
    revived_queue_pairs += other.revived_queue_pairs;
    stalls += other.stalls;
    replayed_chunks += other.replayed_chunks;
  }
};

}  // namespace verbena::protocol
