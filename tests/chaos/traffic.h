#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace verbena::chaos {

inline constexpr unsigned kNeverPercent = 101;

// What the two ends send each other in a round; both get the same.
struct Traffic {
  uint64_t seed = 0;
  int abi_version = 12;
  int rails = 1;
  // Connections, each one way: the number of the end that sends.
  std::vector<unsigned> senders{0};
  uint64_t messages = 100;    // of each connection and life
  unsigned length_bits = 20;  // the longest message
  unsigned window = 8;
  // Each end leaves so far in its first life, whatever is open.
  std::vector<unsigned> leave_percent{kNeverPercent, kNeverPercent};
  // After the first life, however it ended, all connections are made again and must work.
  unsigned lives = 1;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Traffic, seed, abi_version, rails, senders, messages, length_bits, window,
                                   leave_percent, lives)

// One connection's messages, which both ends know without telling each other.
class MessageList {
 public:
  MessageList(const Traffic& traffic, unsigned lane, unsigned life)
      : salt_(mix(traffic.seed ^ mix(uint64_t{lane} << 8 | life))), length_bits_(traffic.length_bits) {}

  // Every magnitude is as likely, nothing at all too.
  uint64_t length_bytes(uint64_t message) const {
    const uint64_t random = mix(salt_ + 2 * message);
    const auto bits = static_cast<unsigned>(mix(random) % (length_bits_ + 1));
    return bits == 0 ? 0 : random >> (64 - bits);
  }
  uint64_t pattern_index(uint64_t message) const { return salt_ + 2 * message + 1; }
  uint64_t offset_bytes(uint64_t message) const { return mix(salt_ ^ message) % kMaxOffsetBytes; }
  uint64_t longest_bytes() const { return uint64_t{1} << length_bits_; }

  static constexpr uint64_t kMaxOffsetBytes = 64;

 private:
  static constexpr uint64_t mix(uint64_t x) {
    x = (x + 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }

  uint64_t salt_;
  unsigned length_bits_;
};

}  // namespace verbena::chaos
