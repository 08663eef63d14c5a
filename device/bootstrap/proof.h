// What proves, when two ranks meet, that both are of one job, and, if the job has a key, that both have it. A
// MAC covers its message's kind and every message before it, so both challenges.
#pragma once

#include <memory>

#include "base/hmac.h"
#include "base/record_auth.h"
#include "base/status.h"
#include "device/bootstrap/wire.h"

namespace verbena::bootstrap {

// In constant time.
bool is_same_nonce(const Nonce& a, const Nonce& b);

// One end's, with the process's job key if there is one.
class Proof {
 public:
  static base::Result<Proof> create();

  bool is_keyed() const { return key_ != nullptr; }
  // Each fills in challenge and MAC of a message whose other fields are final.
  base::Outcome sign(Hello& hello) const;
  base::Outcome sign(const Hello& hello, Welcome& welcome) const;
  // Of the key alone: the caller compares what the hello says.
  Refusal judge(const Hello& hello) const;
  bool verify(const Hello& hello, const Welcome& welcome) const;
  base::Result<base::RecordAuth> start_records(base::ConnectionEnd end, const Hello& hello,
                                               const Welcome& welcome) const;

 private:
  std::shared_ptr<const base::HmacKey> key_;
};

// Whom the end that was refused met, and whom the end that refuses.
const char* describe(Refusal refusal);
const char* describe_caller(Refusal refusal);

}  // namespace verbena::bootstrap
