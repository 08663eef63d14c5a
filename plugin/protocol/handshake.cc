#include "protocol/handshake.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace verbena::protocol {

namespace {

constexpr uint32_t kMinPageBytes = 4096, kMaxPageBytes = 65536;

// FNV-1a. Detects truncation and foreign content, not attacks.
uint64_t compute_checksum(const void* data, size_t length_bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < length_bytes; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3;
  return hash;
}

// Without an early exit, so that the time does not reveal where the nonces differ.
bool is_same_nonce(uint64_t a, uint64_t b) {
  volatile uint64_t difference = a ^ b;
  return difference == 0;
}

bool is_count(uint32_t value, uint32_t most) {
  return value >= 1 && value <= most;
}

bool is_possible(const Limits& limits) {
  return limits.message_ring >= kMinLimits.message_ring && std::has_single_bit(limits.message_ring) &&
         limits.queue_pairs >= kMinLimits.queue_pairs;
}

}  // namespace

const char* describe(HandshakeError error) {
  switch (error) {
    case HandshakeError::kNone:
      return "no error";
    case HandshakeError::kForeign:
      return "the other process is not a Verbena peer (wrong magic number)";
    case HandshakeError::kVersion:
      return "the peer speaks a different protocol version. Use the same Verbena release on all hosts";
    case HandshakeError::kMalformed:
      return "the record is truncated or damaged";
    case HandshakeError::kNonce:
      return "the peer belongs to another connection (wrong nonce)";
  }
  return "unknown";
}

Limits agree(const Limits& peer) {
  return {std::min(peer.message_ring, kOwnLimits.message_ring),
          std::min(peer.queue_pairs, kOwnLimits.queue_pairs)};
}

HandshakeHeader make_header(uint16_t length_bytes, uint64_t nonce, const Limits& limits) {
  return {kMagic, kProtocolVersion, length_bytes, limits, nonce};
}

namespace {

HandshakeError check_start(const HandshakeHeader& header, uint16_t expected_length_bytes,
                           uint64_t expected_nonce) {
  if (header.magic != kMagic) return HandshakeError::kForeign;
  // Checked before the version, so that a client of an older release without the nonce cannot make the
  // connection of the real peer fail.
  if (!is_same_nonce(header.nonce, expected_nonce)) return HandshakeError::kNonce;
  if (header.version != kProtocolVersion) return HandshakeError::kVersion;
  const bool ok = header.length_bytes == expected_length_bytes && is_possible(header.limits);
  return ok ? HandshakeError::kNone : HandshakeError::kMalformed;
}

}  // namespace

HandshakeError check_header(const HandshakeHeader& header, uint16_t expected_length_bytes,
                            uint64_t expected_nonce) {
  const HandshakeError error = check_start(header, expected_length_bytes, expected_nonce);
  if (error != HandshakeError::kNone) return error;
  return agree(header.limits) == header.limits ? HandshakeError::kNone : HandshakeError::kMalformed;
}

void seal_handle(Handle& handle, uint64_t nonce, const Limits& limits) {
  handle.header = make_header(sizeof(Handle), nonce, limits);
  handle.checksum = compute_checksum(&handle, offsetof(Handle, checksum));
}

HandshakeError check_handle(const Handle& handle) {
  const HandshakeError error = check_start(handle.header, sizeof(Handle), handle.header.nonce);
  if (error != HandshakeError::kNone) return error;
  const bool ok = handle.checksum == compute_checksum(&handle, offsetof(Handle, checksum)) &&
                  is_count(handle.rails, kMaxRails) && handle.out_of_order <= 1 &&
                  is_count(handle.queue_pairs_per_rail, handle.header.limits.queue_pairs) &&
                  (handle.address.family == 4 || handle.address.family == 6);
  return ok ? HandshakeError::kNone : HandshakeError::kMalformed;
}

HandshakeError check_hello(const Hello& hello, uint64_t nonce, uint32_t local_rails,
                           uint32_t local_queue_pairs_per_rail) {
  const HandshakeError error = check_header(hello.header, sizeof(Hello), nonce);
  if (error != HandshakeError::kNone) return error;
  // The message does not contain the sender's number of queue pairs per rail, so any number that this end's
  // settings allow is accepted.
  const bool ok =
      is_count(hello.rails, kMaxRails) && is_count(hello.queue_pairs, kMaxQueuePairs) &&
      hello.queue_pairs >= count_queue_pairs(local_rails, local_queue_pairs_per_rail, hello.rails, 1) &&
      hello.is_keyed <= 1 && hello.out_of_order <= 1 && hello.traffic_class >= -1 &&
      hello.traffic_class <= 255 && hello.control_address != 0 &&
      hello.control_address % alignof(ControlBlock) == 0;
  return ok ? HandshakeError::kNone : HandshakeError::kMalformed;
}

HandshakeError check_welcome(const Welcome& welcome, uint64_t nonce, uint32_t offered) {
  const HandshakeError error = check_header(welcome.header, sizeof(Welcome), nonce);
  if (error != HandshakeError::kNone) return error;
  if (welcome.refusal == static_cast<uint32_t>(Refusal::kUnreachable)) {
    return is_count(welcome.rails, kMaxRails) ? HandshakeError::kNone : HandshakeError::kMalformed;
  }
  if (welcome.refusal != 0) return HandshakeError::kNone;
  bool ok = is_count(welcome.rails, kMaxRails) && is_count(welcome.queue_pairs, kMaxQueuePairs) &&
            welcome.queue_pairs <= offered && welcome.joined_pairs != 0 &&
            welcome.joined_pairs >> welcome.queue_pairs == 0 && welcome.id != 0 &&
            welcome.page_bytes >= kMinPageBytes && welcome.page_bytes <= kMaxPageBytes &&
            (welcome.page_bytes & (welcome.page_bytes - 1)) == 0;
  for (uint32_t q = 0; ok && q < welcome.queue_pairs; ++q) {
    const bool is_rising = q == 0 || welcome.origin[q] > welcome.origin[q - 1];
    ok = welcome.window[q] >= 1 && welcome.window[q] <= 65536 && is_rising && welcome.origin[q] < offered &&
         welcome.rail_of[q] < welcome.rails;
  }
  return ok ? HandshakeError::kNone : HandshakeError::kMalformed;
}

HandshakeError check_ready(const Ready& ready, uint64_t nonce, bool was_offered) {
  const HandshakeError error = check_header(ready.header, sizeof(Ready), nonce);
  if (error != HandshakeError::kNone) return error;
  return ready.accepts_offer <= (was_offered ? 1 : 0) ? HandshakeError::kNone : HandshakeError::kMalformed;
}

uint32_t count_queue_pairs(uint32_t rails_a, uint32_t per_rail_a, uint32_t rails_b, uint32_t per_rail_b) {
  return std::min(kMaxQueuePairs, std::max(rails_a, rails_b) * std::max(per_rail_a, per_rail_b));
}

}  // namespace verbena::protocol
