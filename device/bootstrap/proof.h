// What proves, when two ranks meet, that both are of one job: that both have the job's key, or, in a job
// without one, the secret of the unique id. A MAC covers its message's kind and every message before it, so
// both challenges.
#pragma once

#include <memory>

#include "base/hmac.h"
#include "base/record_auth.h"
#include "base/socket.h"
#include "base/status.h"
#include "device/bootstrap/wire.h"

namespace verbena::bootstrap {

// In constant time.
bool is_same_nonce(const Nonce& a, const Nonce& b);

// One end's.
class Proof {
 public:
  // With the process's job key if there is one; else with `id_secret`, where zeros are none.
  static base::Result<Proof> create(const Nonce& id_secret = {});

  bool is_keyed() const { return kind_ != KeyKind::kNone; }
  // Each fills in challenge and MAC of a message whose other fields are final.
  base::Outcome sign(Hello& hello) const;
  base::Outcome sign(const Hello& hello, Welcome& welcome) const;
  // Of the key alone: the caller compares what the hello says.
  Refusal judge(const Hello& hello) const;
  Refusal judge(const Hello& hello, const Welcome& welcome) const;
  // Before the first byte, if VERBENA_ENCRYPTION asks for it.
  base::Outcome encrypt(base::Socket& socket, base::ConnectionEnd end) const;
  base::Result<base::RecordAuth> start_records(base::ConnectionEnd end, const Hello& hello,
                                               const Welcome& welcome) const;

 private:
  Refusal judge_mac(const base::Result<base::Mac>& right, const base::Mac& claimed) const;

  KeyKind kind_ = KeyKind::kNone;
  bool encrypts_ = false;
  std::shared_ptr<const base::HmacKey> key_;
};

// Whom the end that was refused met, and whom the end that refuses.
const char* describe(Refusal refusal);
const char* describe_caller(Refusal refusal);

}  // namespace verbena::bootstrap
