// What proves, in a handshake, that both ends have the job's key, and afterwards that a record on the same
// socket comes from the same peer. A MAC covers its message's kind, the message whole, and every message
// before it: so both challenges, the listener's nonce, and every queue pair, key and address that was
// exchanged. Without a key nothing is computed and everything passes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/hmac.h"
#include "base/record_auth.h"
#include "base/status.h"
#include "protocol/handshake.h"

namespace verbena::transport {

using base::ConnectionEnd;
using base::RecordAuth;

class HandshakeAuth {
 public:
  // With the process's job key, and a challenge of our own if there is one.
  static base::Result<HandshakeAuth> create();
  HandshakeAuth() = default;

  bool is_keyed() const { return key_ != nullptr; }

  // Each fills in the proof of a message whose other fields are final.
  base::Outcome sign(protocol::Hello& hello) const;
  base::Outcome sign(const protocol::Hello& hello, protocol::Welcome& welcome) const;
  base::Outcome sign(const protocol::Hello& hello, const protocol::Welcome& welcome,
                     protocol::Ready& ready) const;
  // Why we refuse; kNone if we do not.
  protocol::Refusal judge(const protocol::Hello& hello) const;
  bool verify(const protocol::Hello& hello, const protocol::Welcome& welcome) const;
  bool verify(const protocol::Hello& hello, const protocol::Welcome& welcome,
              const protocol::Ready& ready) const;
  // Once the handshake stands.
  base::Result<RecordAuth> start_records(ConnectionEnd end, const protocol::Hello& hello,
                                         const protocol::Welcome& welcome) const;

 private:
  std::shared_ptr<const base::HmacKey> key_;
  uint8_t challenge_[protocol::kChallengeBytes] = {};
};

// What both ends log about a refusal of judge(); `is_ours`: it is our own end that refuses.
std::string describe_key_refusal(protocol::Refusal refusal, bool is_ours);

}  // namespace verbena::transport
