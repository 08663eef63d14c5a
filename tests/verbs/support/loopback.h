// One end of a connection over a real device: queues, a queue pair and a registered buffer.
#pragma once

#include <cstddef>
#include <vector>

#include "verbs/queues.h"

namespace verbena::verbs {

// The devices of VERBENA_IBVERBS_LIB and VERBENA_HCA; by default two of softverbs, whatever else the machine
// has. Throws if there are none.
std::vector<std::unique_ptr<Device>> open_devices();

class Endpoint {
 public:
  Endpoint(Device& device, size_t buffer_bytes);

  Device& device() { return device_; }
  QueuePair& pair() { return pair_; }
  CompletionQueue& completions() { return completions_; }
  std::vector<std::byte>& buffer() { return buffer_; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(buffer_.data()); }
  uint32_t remote_key() const { return region_.remote_key(); }
  uint32_t local_key() const { return region_.local_key(); }

  // A request on the whole buffer of both ends.
  WorkRequest make_request(Opcode opcode, uint64_t remote_address, uint32_t remote_key) const;
  // Posts the buffer from offset_bytes on as a receive.
  base::Outcome post_receive(size_t offset_bytes, uint32_t length_bytes, uint64_t cookie);
  // The next completion; error -1 if none comes within the deadline.
  Completion wait(int deadline_ms = 10'000);

 private:
  Device& device_;
  std::vector<std::byte> buffer_;
  MemoryRegion region_;
  CompletionQueue completions_;
  SharedReceiveQueue receives_;
  QueuePair pair_;
};

}  // namespace verbena::verbs
