// Authenticates records on a socket: each record is followed by a MAC over its direction, its number and its
// bytes, with the session key that both ends share. Without a key no MAC is sent, and every record is
// accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/hmac.h"
#include "base/socket.h"
#include "base/status.h"

namespace verbena::base {

// One end of a connection. Both ends count the records, so a record that is missing, repeated, reordered,
// changed, or reflected to its sender is rejected. Both ends must make the same calls in the same order, with
// or without a key.
class RecordAuth {
 public:
  RecordAuth() = default;  // no key
  RecordAuth(std::shared_ptr<const HmacKey> session_key, ConnectionEnd end)
      : key_(std::move(session_key)), end_(end) {}

  bool is_keyed() const { return key_ != nullptr; }
  // Returns the length of the MAC after each record; 0 without a key.
  size_t mac_bytes() const { return is_keyed() ? kMacBytes : 0; }
  // Computes the MAC of the next record to send. `mac` must have mac_bytes().
  Outcome seal(Bytes record, std::span<uint8_t> mac);
  // Checks the MAC of the next received record. If it returns false, the connection must be closed.
  bool verify(Bytes record, Bytes mac);

 private:
  Result<Mac> compute(ConnectionEnd from, uint64_t number, Bytes record) const;

  std::shared_ptr<const HmacKey> key_;
  ConnectionEnd end_ = ConnectionEnd::kSender;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace verbena::base
