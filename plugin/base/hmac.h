// HMAC-SHA-256 by OpenSSL's libcrypto.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/movable.h"
#include "base/status.h"

namespace verbena::base {

inline constexpr size_t kMacBytes = 32;
using Mac = std::array<uint8_t, kMacBytes>;
using Bytes = std::span<const uint8_t>;

inline Bytes as_bytes(const void* data, size_t length_bytes) {
  return {static_cast<const uint8_t*>(data), length_bytes};
}
template <typename Message>
Bytes as_whole(const Message& message) {
  return as_bytes(&message, sizeof(message));
}
// The purpose of a MAC. A MAC for one purpose is not valid for another. The bytes include the terminating
// zero, so that no label is a prefix of another.
template <size_t kLength>
Bytes as_label(const char (&label)[kLength]) {
  return as_bytes(label, kLength);
}

// Loads libcrypto, and returns whether it was found.
bool has_crypto();
// Compares in constant time.
bool is_same_mac(Bytes a, Bytes b);

// Movable, not copyable; wiped on destruction.
class HmacKey {
 public:
  // Fails with Status::kSystem, logged, if libcrypto was not found.
  static Result<HmacKey> create(Bytes secret);
  HmacKey(HmacKey&&) noexcept = default;
  HmacKey& operator=(HmacKey&&) noexcept = default;
  ~HmacKey();

  // Computes the MAC of the concatenated parts.
  Result<Mac> compute(std::initializer_list<Bytes> parts) const;
  // Derives a key for another purpose: the MAC of the parts.
  Result<HmacKey> derive(std::initializer_list<Bytes> parts) const;

 private:
  HmacKey() = default;

  Movable<std::vector<uint8_t>> secret_;
};

// Overwrites memory that contained a secret. The compiler does not remove the call.
void wipe(std::span<uint8_t> bytes);

}  // namespace verbena::base
