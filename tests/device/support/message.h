// Messages as the plugin stages them: pieces of bounce pages that belong somewhere in the destination.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/support/random.h"
#include "verbena/unpack_abi.h"

namespace verbena::device_test {

struct MessageShape {
  uint32_t pieces = 1;
  uint32_t shortest_bytes = 4096, longest_bytes = 4096;  // of a piece
  bool is_shifted = false;   // pieces begin anywhere in their page, not at its begin
  bool has_gaps = false;     // bytes of the destination that belong to no piece
  bool is_shuffled = false;  // pieces are not in the order of the destination
};

struct Message {
  std::vector<LoadMeta> pieces;
  uint32_t length_bytes = 0;  // of the destination
  uint32_t bounce_bytes = 0;  // from the first page on
};

// A multiple of what a copy reads at once, at most a line of 128 bytes: two pages share none.
inline constexpr uint32_t kPageBytes = 128;

inline Message make_message(const MessageShape& shape, uint64_t seed, uint32_t bounce_begin = 0) {
  Random random(seed);
  Message message;
  uint32_t source = bounce_begin;
  for (uint32_t i = 0; i < shape.pieces; ++i) {
    const uint32_t length = random.between(shape.shortest_bytes, shape.longest_bytes);
    if (shape.has_gaps) message.length_bytes += random.between(0, 40);
    const uint32_t shift = shape.is_shifted ? random.between(0, 63) : 0;
    message.pieces.push_back({source + shift, length, message.length_bytes});
    message.length_bytes += length;
    source += (shift + length + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  if (shape.is_shuffled) {
    for (size_t i = message.pieces.size(); i > 1; --i) {
      std::swap(message.pieces[i - 1], message.pieces[random.next() % i]);
    }
  }
  message.bounce_bytes = source - bounce_begin;
  return message;
}

// Pages that hold different bytes everywhere.
class Bounce {
 public:
  explicit Bounce(size_t length_bytes) : pages_(length_bytes / kPageBytes + 2) { refill(0, length_bytes, 1); }

  uint8_t* data() { return pages_.data()->bytes; }
  void refill(size_t offset_bytes, size_t length_bytes, uint64_t seed) {
    Random random(seed);
    for (size_t i = 0; i < length_bytes; ++i) data()[offset_bytes + i] = static_cast<uint8_t>(random.next());
  }
  // What the destination shall hold.
  std::vector<uint8_t> place(const Message& message, uint8_t untouched) {
    std::vector<uint8_t> bytes(message.length_bytes, untouched);
    for (const LoadMeta& piece : message.pieces) {
      for (uint32_t i = 0; i < piece.len; ++i) bytes[piece.dst_off + i] = data()[piece.src_off + i];
    }
    return bytes;
  }

 private:
  struct alignas(kPageBytes) Page {
    uint8_t bytes[kPageBytes];
  };
  std::vector<Page> pages_;
};

}  // namespace verbena::device_test
