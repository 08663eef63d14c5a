#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::tools {

// Every byte depends on the message and on its offset, which reveals a byte of another message, page or
// offset. The words follow a simple progression, which compilers vectorise.
void fill_pattern(std::span<std::byte> message, uint64_t message_index);

struct PatternCheck {
  uint64_t wrong_bytes = 0;
  uint64_t first_wrong_offset = 0;  // meaningful when wrong_bytes > 0
};

PatternCheck check_pattern(std::span<const std::byte> message, uint64_t message_index);

inline constexpr std::byte kGuardByte{0xA5};
inline constexpr size_t kGuardLengthBytes = 64;

void fill_guard(std::span<std::byte> guard);
uint64_t count_wrong_guard_bytes(std::span<const std::byte> guard);

}  // namespace verbena::tools
