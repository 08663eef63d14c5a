#include "transport/memory/control_ring.h"

#include <cstring>

namespace verbena::transport {

base::Result<std::unique_ptr<ControlRing>> ControlRing::create(std::span<verbs::Device* const> rails,
                                                               uint32_t queue_pairs) {
  auto ring = std::make_unique<ControlRing>();
  const size_t count = size_t{queue_pairs} * protocol::kControlDepth;
  ring->lines_ = std::make_unique<Line[]>(count);
  for (verbs::Device* device : rails) {
    auto& key = ring->regions_.emplace_back();
    if (device->has_failed()) continue;  // no queue pair needs a key
    auto region = verbs::MemoryRegion::register_memory(*device, ring->lines_.get(), count * sizeof(Line), {});
    if (!region && device->has_failed()) continue;
    if (!region) return region.error();
    key = std::move(*region);
  }
  return ring;
}

const void* ControlRing::put(uint32_t queue_pair, const void* line) {
  const uint32_t slot = puts_[queue_pair]++ % protocol::kControlDepth;
  Line& copy = lines_[queue_pair * protocol::kControlDepth + slot];
  std::memcpy(copy.bytes, line, sizeof(copy.bytes));
  return copy.bytes;
}

}  // namespace verbena::transport
