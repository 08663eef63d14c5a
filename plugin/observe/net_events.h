// The interface to an observer that is notified of the begin and end of work requests: NCCL's profiler
// (plugin/nccl/net_profiler.h).
#pragma once

#include <cstdint>

namespace verbena::observe {

struct NetEvent {
  uint32_t rail = 0;  // of the device
  uint32_t qp_number = 0;
  uint32_t sequence = 0;  // of the message
  uint64_t bytes = 0;
  enum class Kind : uint8_t { kSend, kWrite, kReceive } kind = Kind::kSend;
};

class NetEvents {
 public:
  // `parent` is the handle that NCCL passed to isend or irecv, never null. Returns the argument for end();
  // null if end() is not to be called.
  virtual void* begin(void* parent, const NetEvent& event) = 0;
  virtual void end(void* event) = 0;

 protected:
  ~NetEvents() = default;
};

}  // namespace verbena::observe
