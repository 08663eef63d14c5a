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

// What NCCL's kernel does for one receive, on one CPU thread: a slot is read once, without waiting, and every
// descriptor moves `len` bytes from bounce + src_off to the receive's buffer + dst_off. Unlike the kernel it
// refuses (ToolError) more descriptors than a slot holds and bytes beyond `destination`.
UnpackedSlot unpack_slot(const UnpackDeviceHandle& handle, unsigned slot, std::span<std::byte> destination);

// A fresh handle's first receive uses (head + 1) mod 16: the kernel advances before it reads.
inline constexpr unsigned kUnpackSlots = kUnpackQueueDepthSlots;
inline unsigned compute_slot(uint64_t head, uint64_t receive_index) {
  return static_cast<unsigned>((head + 1 + receive_index) % kUnpackSlots);
}

// Plain host memory stands in for the GPU's: the counter was published with a release store by this process.
uint64_t load_slot_count(const UnpackDeviceHandle& handle, unsigned slot);

}  // namespace verbena::tools
