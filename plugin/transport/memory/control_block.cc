#include "transport/memory/control_block.h"

namespace verbena::transport {

base::Result<ControlMemory> ControlMemory::create(std::span<verbs::Device* const> rails) {
  ControlMemory memory;
  memory.block_ = std::make_unique<Page>();
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    if (rails[rail]->has_failed()) continue;  // no queue pair needs a key
    // Without relaxed ordering, because the CPU polls these lines.
    auto region = verbs::MemoryRegion::register_memory(*rails[rail], memory.block_.get(), sizeof(Page),
                                                       {.remote_write = true});
    if (!region && rails[rail]->has_failed()) continue;
    if (!region) return region.error();
    memory.regions_[rail] = std::move(*region);
  }
  return memory;
}

}  // namespace verbena::transport
