// HMAC-SHA-256 by OpenSSL's libcrypto, which is loaded when the first key is made: machines whose jobs have
// no key need none, and the system's own updates reach us. The only place that knows OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

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
// What is MACed for one purpose passes for no other: with the zero, so that none is the beginning of another.
template <size_t kLength>
Bytes as_label(const char (&label)[kLength]) {
  return as_bytes(label, kLength);
}

// In constant time.
bool is_same_mac(Bytes a, Bytes b);

// Movable, not copyable; wiped when it goes.
class HmacKey {
 public:
  // Status::kSystem, logged, where there is no libcrypto.
  static Result<HmacKey> create(Bytes secret);
  HmacKey(HmacKey&&) noexcept = default;
  HmacKey& operator=(HmacKey&& other) noexcept;
  ~HmacKey();

  // Of the parts, one after the other.
  Result<Mac> compute(std::initializer_list<Bytes> parts) const;
  // A key of its own for another purpose: the MAC of the parts.
  Result<HmacKey> derive(std::initializer_list<Bytes> parts) const;

 private:
  HmacKey() = default;

  std::vector<uint8_t> secret_;
};

// Memory that held a secret.
void wipe(std::span<uint8_t> bytes);

}  // namespace verbena::base
