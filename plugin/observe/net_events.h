// Whoever wants to be told when work requests begin and end: NCCL's profiler (plugin/nccl/net_profiler.h).
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
  // `parent`: what NCCL gave isend or irecv, never null. What end() is to be called with; null: it is not.
  virtual void* begin(void* parent, const NetEvent& event) = 0;
  virtual void end(void* event) = 0;

 protected:
  ~NetEvents() = default;
};

}  // namespace verbena::observe
