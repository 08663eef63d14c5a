#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "verbena/unpack_abi.h"

namespace verbena::tools {

struct UnpackedSlot {
  uint64_t descriptor_count = 0;
  uint64_t bytes = 0;
};

// Does on one CPU thread what NCCL's kernel does for one receive: reads a slot once, without waiting, and
// copies for each descriptor `len` bytes from bounce + src_off to the receive's buffer + dst_off. Unlike the
// kernel it throws ToolError for more descriptors than a slot holds and for bytes beyond `destination`.
UnpackedSlot unpack_slot(const UnpackDeviceHandle& handle, unsigned slot, std::span<std::byte> destination);

// The first receive of a new handle uses slot (head + 1) mod 16: the kernel advances before it reads.
inline constexpr unsigned kUnpackSlots = kUnpackQueueDepthSlots;
inline unsigned compute_slot(uint64_t head, uint64_t receive_index) {
  return static_cast<unsigned>((head + 1 + receive_index) % kUnpackSlots);
}

// The slot is in plain host memory instead of the GPU's: this process published the count with a release
// store.
uint64_t load_slot_count(const UnpackDeviceHandle& handle, unsigned slot);

}  // namespace verbena::tools
