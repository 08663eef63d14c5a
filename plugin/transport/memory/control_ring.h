// Buffers for the grants and credit lines of a receiving end, for a device that cannot send this many bytes
// inline.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "protocol/receive_core.h"
#include "protocol/wire.h"
#include "verbs/queues.h"

namespace verbena::transport {

class ControlRing {
 public:
  static base::Result<std::unique_ptr<ControlRing>> create(std::span<verbs::Device* const> rails,
                                                           uint32_t queue_pairs);

  // Copies a line to memory that stays unchanged until kControlDepth further lines were posted on the queue
  // pair. The queue pair has space for no more at a time, so the device has sent the line by then.
  const void* put(uint32_t queue_pair, const void* line);
  uint32_t local_key(uint32_t rail) const { return regions_[rail].local_key(); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[sizeof(protocol::Grant)];
  };

  std::unique_ptr<Line[]> lines_;  // kControlDepth for each queue pair
  std::array<uint32_t, protocol::kMaxQueuePairs> puts_{};
  std::vector<verbs::MemoryRegion> regions_;  // one for each rail; destroyed before the lines
};

}  // namespace verbena::transport
