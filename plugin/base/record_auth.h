// What proves that a record on a socket comes from the peer with which a session key was agreed: behind each
// goes a MAC over its direction, its number and its bytes. Without a key nothing is computed and everything
// passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/hmac.h"
#include "base/status.h"

namespace verbena::base {

// The sender is the end that connected.
enum class ConnectionEnd : uint8_t { kSender = 1, kReceiver = 2 };

// Of one connection and one of its ends. Records are counted on both ends: one that is missing, repeated, out
// of order, changed, or our own, does not pass. Both ends use the same calls in the same order whether or not
// there is a key.
class RecordAuth {
 public:
  RecordAuth() = default;  // no key
  RecordAuth(std::shared_ptr<const HmacKey> session_key, ConnectionEnd end)
      : key_(std::move(session_key)), end_(end) {}

  bool is_keyed() const { return key_ != nullptr; }
  // Bytes that travel behind each record: 0 without a key.
  size_t mac_bytes() const { return is_keyed() ? kMacBytes : 0; }
  // For the next record that we send. `mac` has mac_bytes().
  Outcome seal(Bytes record, std::span<uint8_t> mac);
  // The next record that came. After a false the connection is over.
  bool verify(Bytes record, Bytes mac);

 private:
  Result<Mac> compute(ConnectionEnd from, uint64_t number, Bytes record) const;

  std::shared_ptr<const HmacKey> key_;
  ConnectionEnd end_ = ConnectionEnd::kSender;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace verbena::base
