// Where a receiving end's grants and credit lines lie while a device sends them that does not take so many
// bytes inline.
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

  // A copy that stays until the queue pair has posted kControlDepth more: it has room for no more at a time,
  // so the device is done with it by then.
  const void* put(uint32_t queue_pair, const void* line);
  uint32_t local_key(uint32_t rail) const { return regions_[rail].local_key(); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[sizeof(protocol::Grant)];
  };

  std::unique_ptr<Line[]> lines_;  // kControlDepth of each queue pair
  std::array<uint32_t, protocol::kMaxQueuePairs> puts_{};
  std::vector<verbs::MemoryRegion> regions_;  // one a rail; destroyed before the lines
};

}  // namespace verbena::transport
