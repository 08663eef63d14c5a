#include "transport/handshake_auth.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/job_key.h"
#include "base/random.h"

namespace verbena::transport {

namespace {

using base::as_bytes;
using base::as_label;
using base::as_whole;

static_assert(protocol::kMacBytes == base::kMacBytes);

// Each kind of message has its own label, so that a MAC of one kind is not valid for another kind.
constexpr char kHelloLabel[] = "verbena hello, sender to receiver";
constexpr char kWelcomeLabel[] = "verbena welcome, receiver to sender";
constexpr char kReadyLabel[] = "verbena ready, sender to receiver";
constexpr char kSessionLabel[] = "verbena session key";

// The bytes that the message's own MAC covers.
template <typename Message>
base::Bytes as_signed(const Message& message) {
  return as_bytes(&message, sizeof(message) - base::kMacBytes);
}
static_assert(offsetof(protocol::Hello, proof) + sizeof(protocol::Proof) == sizeof(protocol::Hello));
static_assert(offsetof(protocol::Welcome, proof) + sizeof(protocol::Proof) == sizeof(protocol::Welcome));
static_assert(offsetof(protocol::Ready, mac) + base::kMacBytes == sizeof(protocol::Ready));

base::Outcome put(const base::Result<base::Mac>& mac, uint8_t* to) {
  if (!mac) return mac.error();
  std::memcpy(to, mac->data(), mac->size());
  return {};
}

bool is_mac(const base::Result<base::Mac>& mac, const uint8_t* claimed) {
  return mac && base::is_same_mac(*mac, as_bytes(claimed, base::kMacBytes));
}

}  // namespace

base::Result<HandshakeAuth> HandshakeAuth::create() {
  auto key = base::job_key();
  if (!key) return key.error();
  HandshakeAuth auth;
  if (*key == nullptr) return auth;
  if (auto drawn = base::draw_random(auth.challenge_, "handshake"); !drawn) return drawn.error();
  auth.key_ = std::move(*key);
  return auth;
}

base::Outcome HandshakeAuth::sign(protocol::Hello& hello) const {
  if (!is_keyed()) return {};
  hello.is_keyed = 1;
  std::copy(std::begin(challenge_), std::end(challenge_), hello.proof.challenge);
  return put(key_->compute({as_label(kHelloLabel), as_signed(hello)}), hello.proof.mac);
}

protocol::Refusal HandshakeAuth::judge(const protocol::Hello& hello) const {
  using protocol::Refusal;
  if (is_keyed() != (hello.is_keyed != 0)) return is_keyed() ? Refusal::kKeyMissing : Refusal::kKeyUnknown;
  if (!is_keyed()) return Refusal::kNone;
  const auto mac = key_->compute({as_label(kHelloLabel), as_signed(hello)});
  return is_mac(mac, hello.proof.mac) ? Refusal::kNone : Refusal::kKeyWrong;
}

base::Outcome HandshakeAuth::sign(const protocol::Hello& hello, protocol::Welcome& welcome) const {
  if (!is_keyed()) return {};
  std::copy(std::begin(challenge_), std::end(challenge_), welcome.proof.challenge);
  return put(key_->compute({as_label(kWelcomeLabel), as_whole(hello), as_signed(welcome)}),
             welcome.proof.mac);
}

bool HandshakeAuth::verify(const protocol::Hello& hello, const protocol::Welcome& welcome) const {
  if (!is_keyed()) return true;
  const auto mac = key_->compute({as_label(kWelcomeLabel), as_whole(hello), as_signed(welcome)});
  return is_mac(mac, welcome.proof.mac);
}

base::Outcome HandshakeAuth::sign(const protocol::Hello& hello, const protocol::Welcome& welcome,
                                  protocol::Ready& ready) const {
  if (!is_keyed()) return {};
  return put(key_->compute({as_label(kReadyLabel), as_whole(hello), as_whole(welcome), as_signed(ready)}),
             ready.mac);
}

bool HandshakeAuth::verify(const protocol::Hello& hello, const protocol::Welcome& welcome,
                           const protocol::Ready& ready) const {
  if (!is_keyed()) return true;
  const auto mac =
      key_->compute({as_label(kReadyLabel), as_whole(hello), as_whole(welcome), as_signed(ready)});
  return is_mac(mac, ready.mac);
}

base::Result<RecordAuth> HandshakeAuth::start_records(ConnectionEnd end, const protocol::Hello& hello,
                                                      const protocol::Welcome& welcome) const {
  if (!is_keyed()) return RecordAuth();
  auto key = key_->derive({as_label(kSessionLabel), as_whole(hello), as_whole(welcome)});
  if (!key) return key.error();
  return RecordAuth(std::make_shared<const base::HmacKey>(std::move(*key)), end);
}

std::string describe_key_refusal(protocol::Refusal refusal, bool is_ours) {
  const char* const subject = is_ours ? "the peer" : "it";
  const char* problem = "has a different job key";
  // The refusal code describes the refused end. Each end logs it from its own point of view.
  if (refusal == protocol::Refusal::kKeyMissing)
    problem = is_ours ? "has no job key but this rank has one" : "has a job key but this rank has none";
  if (refusal == protocol::Refusal::kKeyUnknown)
    problem = is_ours ? "has a job key but this rank has none" : "has no job key but this rank has one";
  return std::string(subject) + " " + problem +
         ". VERBENA_JOB_KEY_FILE must name the same key for every rank";
}

}  // namespace verbena::transport
