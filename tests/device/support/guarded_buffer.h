// Bytes at a chosen distance from a 64-byte boundary, filled with a byte that nothing writes, and guards on
// both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace verbena::device_test {

inline constexpr size_t kGuardBytes = 128;
inline constexpr uint8_t kUntouched = 0xee;

class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t length_bytes, size_t offset_bytes = 0)
      : bytes_(length_bytes + 2 * kGuardBytes + kAlignmentBytes + offset_bytes, kUntouched),
        length_bytes_(length_bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
    const size_t to_boundary = (kAlignmentBytes - begin % kAlignmentBytes) % kAlignmentBytes;
    begin_ = to_boundary + kGuardBytes + offset_bytes;
  }

  uint8_t* data() { return bytes_.data() + begin_; }
  size_t length_bytes() const { return length_bytes_; }

  // "" if the buffer holds `expected` and nothing around it was written.
  std::string compare(const std::vector<uint8_t>& expected) const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool is_inside = i >= begin_ && i - begin_ < length_bytes_;
      const uint8_t wanted = is_inside ? expected[i - begin_] : kUntouched;
      if (bytes_[i] == wanted) continue;
      const auto offset = static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(begin_);
      return std::string(is_inside ? "byte " : "guard byte ") + std::to_string(offset) + " is " +
             std::to_string(bytes_[i]) + ", not " + std::to_string(wanted);
    }
    return {};
  }

 private:
  static constexpr size_t kAlignmentBytes = 64;
  std::vector<uint8_t> bytes_;
  size_t length_bytes_;
  size_t begin_;
};

}  // namespace verbena::device_test
