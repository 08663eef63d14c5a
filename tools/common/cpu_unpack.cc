#include "common/cpu_unpack.h"

#include <atomic>
#include <cstring>
#include <string>

#include "common/error.h"

namespace verbena::tools {

uint64_t load_slot_count(const UnpackDeviceHandle& handle, unsigned slot) {
  return std::atomic_ref<uint64_t>(handle.meta->cnt[slot]).load(std::memory_order_acquire);
}

UnpackedSlot unpack_slot(const UnpackDeviceHandle& handle, unsigned slot, std::span<std::byte> destination) {
  UnpackedSlot unpacked;
  unpacked.descriptor_count = load_slot_count(handle, slot);
  if (unpacked.descriptor_count > static_cast<uint64_t>(kUnpackMaxDescriptors)) {
    throw ToolError("slot " + std::to_string(slot) + " has " + std::to_string(unpacked.descriptor_count) +
                    " descriptors; a slot can have at most " + std::to_string(kUnpackMaxDescriptors));
  }
  const auto* const bounce = static_cast<const std::byte*>(handle.bounce_buf);
  for (uint64_t index = 0; index < unpacked.descriptor_count; ++index) {
    const LoadMeta& piece = handle.meta->mem[slot][index];
    if (piece.dst_off > destination.size() || piece.len > destination.size() - piece.dst_off) {
      throw ToolError("slot " + std::to_string(slot) + " descriptor " + std::to_string(index) + ": " +
                      std::to_string(piece.len) + " bytes at " + std::to_string(piece.dst_off) +
                      " exceed the receive of " + std::to_string(destination.size()) + " bytes");
    }
    std::memcpy(destination.data() + piece.dst_off, bounce + piece.src_off, piece.len);
    unpacked.bytes += piece.len;
  }
  return unpacked;
}

}  // namespace verbena::tools
