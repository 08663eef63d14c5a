// Authenticates a handshake: proves that both ends have the job's key and that later records on the same
// socket come from the same peer. A MAC covers the kind of its message, the whole message, and every earlier
// message. It therefore covers both challenges, the listener's nonce, and every queue pair, key and address
// that was exchanged. Without a job key no MAC is computed, and every message is accepted.
#pragma once

#include <cstdint>
#include <memory>
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
  // Uses the process's job key. If there is one, also creates this end's challenge.
  static base::Result<HandshakeAuth> create();
  HandshakeAuth() = default;

  bool is_keyed() const { return key_ != nullptr; }

  // These functions write the MAC into a message whose other fields are final.
  base::Outcome sign(protocol::Hello& hello) const;
  base::Outcome sign(const protocol::Hello& hello, protocol::Welcome& welcome) const;
  base::Outcome sign(const protocol::Hello& hello, const protocol::Welcome& welcome,
                     protocol::Ready& ready) const;
  // These functions return why this end refuses the message, or kNone if this end accepts it.
  protocol::Refusal judge(const protocol::Hello& hello) const;
  bool verify(const protocol::Hello& hello, const protocol::Welcome& welcome) const;
  bool verify(const protocol::Hello& hello, const protocol::Welcome& welcome,
              const protocol::Ready& ready) const;
  // Call this after the handshake is complete.
  base::Result<RecordAuth> start_records(ConnectionEnd end, const protocol::Hello& hello,
                                         const protocol::Welcome& welcome) const;

 private:
  std::shared_ptr<const base::HmacKey> key_;
  uint8_t challenge_[protocol::kChallengeBytes] = {};
};

// Returns the text that each end logs about a refusal by judge(). `is_ours` is true if this end refuses.
std::string describe_key_refusal(protocol::Refusal refusal, bool is_ours);

}  // namespace verbena::transport
