// The sender's ControlBlock (protocol/wire.h), in memory that the peer can write through every rail.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "base/status.h"
#include "protocol/control_view.h"
#include "protocol/wire.h"
#include "verbs/queues.h"

namespace verbena::transport {

class ControlMemory {
 public:
  static base::Result<ControlMemory> create(std::span<verbs::Device* const> rails);

  uint64_t address() const { return reinterpret_cast<uintptr_t>(block_.get()); }
  uint32_t remote_key(uint32_t rail) const { return regions_[rail].remote_key(); }

  protocol::ControlView view() const { return protocol::ControlView(block_.get()); }

 private:
  struct Page : protocol::ControlBlock {};
  std::unique_ptr<Page> block_;
  std::array<verbs::MemoryRegion, verbs::kMaxRails> regions_;  // destroyed before the block
};

}  // namespace verbena::transport
