// Host memory into which much is received in small pieces. In a software device's own memory if it has some:
// there peers write it without a call of the kernel.
#pragma once

#include <cstddef>
#include <memory>

namespace verbena::verbs {

class Device;

struct NearMemoryDeleter {
  void (*give_back)(void* memory) = nullptr;  // null: it is the heap's
  void operator()(std::byte* memory) const;
};
using NearMemory = std::unique_ptr<std::byte[], NearMemoryDeleter>;

// Zeroed, aligned to 64 bytes. Outlives what is registered there, and not the device.
NearMemory take_near_memory(const Device& device, size_t length_bytes);

}  // namespace verbena::verbs
