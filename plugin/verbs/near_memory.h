// Host memory that receives many small pieces of data. A software device may have its own memory for this
// purpose, which peers can write without a system call.
#pragma once

#include <cstddef>
#include <memory>

namespace verbena::verbs {

class Device;

struct NearMemoryDeleter {
  void (*give_back)(void* memory) = nullptr;  // null: heap memory
  void operator()(std::byte* memory) const;
};
using NearMemory = std::unique_ptr<std::byte[], NearMemoryDeleter>;

// Returns memory that is filled with zeros and aligned to 64 bytes. Destroy the memory after the
// registrations in it, and before the device.
NearMemory take_near_memory(const Device& device, size_t length_bytes);

}  // namespace verbena::verbs
