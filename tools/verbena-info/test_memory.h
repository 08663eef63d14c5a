// Memory that a self-test sends from and receives into: the host's, or a GPU's.
#pragma once
#include <memory>
#include <span>

#include "common/net_plugin.h"

namespace verbena::tools::info {

inline constexpr int kHostMemory = -1;  // instead of a GPU's index

class TestMemory {
 public:
  virtual ~TestMemory() = default;
  virtual std::byte* address() const = 0;
  virtual void* register_on(NetPlugin& plugin, void* comm, int pointer_support) const = 0;
  virtual void write(size_t offset_bytes, std::span<const std::byte> bytes) = 0;
  virtual void read(size_t offset_bytes, std::span<std::byte> bytes) = 0;
};

// Page aligned. Throws ToolError.
std::unique_ptr<TestMemory> allocate_memory(int gpu, size_t length_bytes, double timeout_s);

}  // namespace verbena::tools::info
