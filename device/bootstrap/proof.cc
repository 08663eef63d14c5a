#include "device/bootstrap/proof.h"

#include "base/job_key.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"

namespace verbena::bootstrap {
namespace {

using base::as_label;
using base::as_whole;

constexpr const char* kWhat = "bootstrap";

// Nothing that is MACed in one place passes in another.
constexpr char kHelloLabel[] = "verbena bootstrap hello";
constexpr char kWelcomeLabel[] = "verbena bootstrap welcome";
constexpr char kSessionLabel[] = "verbena bootstrap session key";

// What its own MAC covers.
template <typename Message>
base::Bytes as_signed(const Message& message) {
  static_assert(offsetof(Message, mac) + base::kMacBytes == sizeof(Message));
  return as_bytes(&message, offsetof(Message, mac));
}

}  // namespace

bool is_same_nonce(const Nonce& a, const Nonce& b) {
  volatile uint8_t difference = 0;  // volatile: the compiler may not leave the loop early
  for (size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

base::Result<Proof> Proof::create(const Nonce& id_secret) {
  auto job_key = base::job_key();
  if (!job_key) return job_key.error();
  Proof proof;
  if (*job_key != nullptr) {
    proof.kind_ = KeyKind::kJob;
    proof.key_ = std::move(*job_key);
    proof.encrypts_ = base::parameters().encryption;
  } else if (id_secret != Nonce{}) {
    if (!base::has_crypto()) {
      return base::fail(base::Status::kSystem,
                        "bootstrap: the unique id's secret cannot be proven: OpenSSL's libcrypto (3 or 1.1), "
                        "which the process that made the id has, is not there; install it");
    }
    auto key = base::HmacKey::create(id_secret);
    if (!key) return key.error();
    proof.kind_ = KeyKind::kId;
    proof.key_ = std::make_shared<const base::HmacKey>(std::move(*key));
  }
  return proof;
}

base::Outcome Proof::sign(Hello& hello) const {
  if (!is_keyed()) return {};
  hello.key = kind_;
  if (auto drawn = base::draw_random(hello.challenge, kWhat); !drawn) return drawn;
  const auto mac = key_->compute({as_label(kHelloLabel), as_signed(hello)});
  if (!mac) return mac.error();
  hello.mac = *mac;
  return {};
}

base::Outcome Proof::sign(const Hello& hello, Welcome& welcome) const {
  if (!is_keyed()) return {};
  if (auto drawn = base::draw_random(welcome.challenge, kWhat); !drawn) return drawn;
  const auto mac = key_->compute({as_label(kWelcomeLabel), as_whole(hello), as_signed(welcome)});
  if (!mac) return mac.error();
  welcome.mac = *mac;
  return {};
}

Refusal Proof::judge(const Hello& hello) const {
  if (hello.key != kind_) {
    if (kind_ == KeyKind::kJob) return Refusal::kKeyMissing;
    return hello.key == KeyKind::kJob ? Refusal::kKeyUnknown : Refusal::kOtherJob;
  }
  if (!is_keyed()) return Refusal::kNone;
  return judge_mac(key_->compute({as_label(kHelloLabel), as_signed(hello)}), hello.mac);
}

Refusal Proof::judge(const Hello& hello, const Welcome& welcome) const {
  if (!is_keyed()) return Refusal::kNone;
  return judge_mac(key_->compute({as_label(kWelcomeLabel), as_whole(hello), as_signed(welcome)}),
                   welcome.mac);
}

Refusal Proof::judge_mac(const base::Result<base::Mac>& right, const base::Mac& claimed) const {
  if (right && base::is_same_mac(*right, claimed)) return Refusal::kNone;
  return kind_ == KeyKind::kJob ? Refusal::kKeyWrong : Refusal::kOtherJob;
}

base::Outcome Proof::encrypt(base::Socket& socket, base::ConnectionEnd end) const {
  return encrypts_ ? socket.encrypt(key_, end) : base::Outcome();
}

base::Result<base::RecordAuth> Proof::start_records(base::ConnectionEnd end, const Hello& hello,
                                                    const Welcome& welcome) const {
  if (!is_keyed()) return base::RecordAuth();
  auto key = key_->derive({as_label(kSessionLabel), as_whole(hello), as_whole(welcome)});
  if (!key) return key.error();
  return base::RecordAuth(std::make_shared<const base::HmacKey>(std::move(*key)), end);
}

const char* describe(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "not refused";
    case Refusal::kOtherVersion:
      return "it speaks another version: every rank needs the same libverbena.so";
    case Refusal::kOtherJob:
      return "it belongs to another job";
    case Refusal::kKeyMissing:
      return "it has a job key and we have none: VERBENA_JOB_KEY_FILE must name the same key for every rank";
    case Refusal::kKeyUnknown:
      return "it has no job key and we have one: VERBENA_JOB_KEY_FILE must name the same key for every rank";
    case Refusal::kKeyWrong:
      return "it does not have our job key: VERBENA_JOB_KEY_FILE must name the same key for every rank";
    case Refusal::kOtherCount:
      return "it expects another number of ranks";
    case Refusal::kRankTaken:
      return "somebody came as our rank before";
    case Refusal::kUnexpected:
      break;
  }
  return "it does not expect our rank";
}

const char* describe_caller(Refusal refusal) {
  switch (refusal) {
    case Refusal::kKeyMissing:
      return describe(Refusal::kKeyUnknown);  // from here the keys are the other way round
    case Refusal::kKeyUnknown:
      return describe(Refusal::kKeyMissing);
    case Refusal::kRankTaken:
      return "somebody came as this rank before";
    case Refusal::kNone:
    case Refusal::kUnexpected:
      return "it does not belong here";
    default:
      return describe(refusal);
  }
}

}  // namespace verbena::bootstrap
