// What a connection did. Written by its one data thread, added to the process's totals when it closes.
#pragma once

#include <cstdint>

namespace verbena::transport {

struct Statistics {
  uint64_t sent_staged_messages = 0, sent_staged_bytes = 0;
  uint64_t sent_direct_messages = 0, sent_direct_bytes = 0;
  uint64_t received_staged_messages = 0, received_staged_bytes = 0;
  uint64_t received_direct_messages = 0, received_direct_bytes = 0;
  uint64_t unpack_descriptors = 0;  // handed to a kernel
  uint64_t copied_messages = 0;     // arrived staged where nobody unpacks: the plugin moved them

  void add(const Statistics& other) {
    sent_staged_messages += other.sent_staged_messages;
    sent_staged_bytes += other.sent_staged_bytes;
    sent_direct_messages += other.sent_direct_messages;
    sent_direct_bytes += other.sent_direct_bytes;
    received_staged_messages += other.received_staged_messages;
    received_staged_bytes += other.received_staged_bytes;
    received_direct_messages += other.received_direct_messages;
    received_direct_bytes += other.received_direct_bytes;
    unpack_descriptors += other.unpack_descriptors;
    copied_messages += other.copied_messages;
  }
};

}  // namespace verbena::transport
