#include "bootstrap/frame_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/job_key.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"

namespace verbena::bootstrap {
namespace {

using base::as_label;
using base::as_whole;

constexpr const char* kWhat = "bootstrap";

// Labels, so that a MAC made for one message is not valid for another.
constexpr char kHelloLabel[] = "verbena bootstrap hello";
constexpr char kWelcomeLabel[] = "verbena bootstrap welcome";
constexpr char kSessionLabel[] = "verbena bootstrap session key";

// The bytes that the message's own MAC covers.
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
      return base::fail(
          base::Status::kSystem,
          "bootstrap: the unique id or queue handle contains a secret, but this process cannot prove that it "
          "knows the secret, because OpenSSL's libcrypto (3 or 1.1) was not found. Install libcrypto");
    }
    auto key = base::HmacKey::create(id_secret);
    if (!key) return key.error();
    proof.kind_ = KeyKind::kId;
    proof.key_ = std::make_shared<const base::HmacKey>(std::move(*key));
  }
  return proof;
}

base::Outcome Proof::sign(const Challenge& challenge, Hello& hello) const {
  if (!is_keyed()) return {};
  hello.key = kind_;
  if (auto drawn = base::draw_random(hello.challenge, kWhat); !drawn) return drawn;
  const auto mac = key_->compute({as_label(kHelloLabel), as_whole(challenge), as_signed(hello)});
  if (!mac) return mac.error();
  hello.mac = *mac;
  return {};
}

base::Outcome Proof::sign(const Challenge& challenge, const Hello& hello, Welcome& welcome) const {
  if (!is_keyed()) return {};
  const auto mac =
      key_->compute({as_label(kWelcomeLabel), as_whole(challenge), as_whole(hello), as_signed(welcome)});
  if (!mac) return mac.error();
  welcome.mac = *mac;
  return {};
}

Refusal Proof::judge(const Challenge& challenge, const Hello& hello) const {
  if (hello.key != kind_) {
    if (kind_ == KeyKind::kJob) return Refusal::kKeyMissing;
    return hello.key == KeyKind::kJob ? Refusal::kKeyUnknown : Refusal::kOtherJob;
  }
  if (!is_keyed()) return Refusal::kNone;
  return judge_mac(key_->compute({as_label(kHelloLabel), as_whole(challenge), as_signed(hello)}), hello.mac);
}

Refusal Proof::judge(const Challenge& challenge, const Hello& hello, const Welcome& welcome) const {
  if (!is_keyed()) return Refusal::kNone;
  return judge_mac(
      key_->compute({as_label(kWelcomeLabel), as_whole(challenge), as_whole(hello), as_signed(welcome)}),
      welcome.mac);
}

Refusal Proof::judge_mac(const base::Result<base::Mac>& right, const base::Mac& claimed) const {
  if (right && base::is_same_mac(*right, claimed)) return Refusal::kNone;
  return kind_ == KeyKind::kJob ? Refusal::kKeyWrong : Refusal::kOtherJob;
}

base::Outcome Proof::encrypt(base::Socket& socket, base::ConnectionEnd end) const {
  return encrypts_ ? socket.encrypt(key_, end) : base::Outcome();
}

base::Result<base::RecordAuth> Proof::start_records(base::ConnectionEnd end, const Challenge& challenge,
                                                    const Hello& hello, const Welcome& welcome) const {
  if (!is_keyed()) return base::RecordAuth();
  auto key = key_->derive({as_label(kSessionLabel), as_whole(challenge), as_whole(hello), as_whole(welcome)});
  if (!key) return key.error();
  return base::RecordAuth(std::make_shared<const base::HmacKey>(std::move(*key)), end);
}

const char* describe(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "not refused";
    case Refusal::kOtherVersion:
      return "the peer uses a different version. Every rank needs the same release of this library";
    case Refusal::kOtherJob:
      return "the peer belongs to another job";
    case Refusal::kKeyMissing:
      return "the peer has a job key but this rank has none. VERBENA_JOB_KEY_FILE must name the same key for "
             "every rank";
    case Refusal::kKeyUnknown:
      return "the peer has no job key but this rank has one. VERBENA_JOB_KEY_FILE must name the same key for "
             "every rank";
    case Refusal::kKeyWrong:
      return "the peer has a different job key. VERBENA_JOB_KEY_FILE must name the same key for every rank";
    case Refusal::kOtherCount:
      return "the peer expects a different number of ranks";
    case Refusal::kRankTaken:
      return "another process has already joined as this rank";
    case Refusal::kUnexpected:
      break;
  }
  return "the peer does not expect this rank";
}

const char* describe_caller(Refusal refusal) {
  switch (refusal) {
    case Refusal::kKeyMissing:
      return describe(Refusal::kKeyUnknown);  // the peer's missing key is our unknown one
    case Refusal::kKeyUnknown:
      return describe(Refusal::kKeyMissing);
    case Refusal::kRankTaken:
      return "another process has already joined as the same rank";
    case Refusal::kNone:
    case Refusal::kUnexpected:
      return "the peer is not part of this job";
    default:
      return describe(refusal);
  }
}

namespace {

constexpr size_t kReadBytes = size_t{1}
                              << 20;  // memory grows with the received bytes, not with what a header claims
constexpr size_t kMaxArrivals = 1 << 18;  // one frame for each rank and call at most

}  // namespace

base::Result<FrameLink> FrameLink::connect(const base::SocketAddress& peer, const Hello& hello,
                                           const Nonce& id_secret) {
  auto proof = Proof::create(id_secret);
  if (!proof) return proof.error();
  auto socket = base::Socket::try_connect(peer);
  if (!socket) return socket.error();
  if (auto outcome = proof->encrypt(*socket, base::ConnectionEnd::kSender); !outcome) return outcome.error();
  FrameLink link(std::move(*socket), std::move(*proof), Step::kConnecting);
  link.hello_ = hello;
  return link;
}

FrameLink FrameLink::accept(base::Socket socket, const Proof& proof) {
  FrameLink link(std::move(socket), proof, Step::kAwaitingHello);
  if (!proof.encrypt(link.socket_, base::ConnectionEnd::kReceiver)) {
    link.close("cannot set up the encryption");
  } else if (!base::draw_random(link.challenge_.random, kWhat)) {
    link.close("cannot get random bytes for a challenge");
  } else {
    link.greet(link.challenge_);
  }
  return link;
}

void FrameLink::close(std::string problem) {
  if (is_closed()) return;
  step_ = Step::kClosed;
  problem_ = std::move(problem);
  out_.clear();
  greeting_.clear();
  socket_ = base::Socket();
}

void FrameLink::close_lost() {
  close(socket_.explain_end() != nullptr ? socket_.explain_end() : "the connection was closed");
}

void FrameLink::advance() {
  while (!is_closed() && step()) continue;
  if (is_standing()) flush();
}

// Returns true if another step may follow at once.
bool FrameLink::step() {
  switch (step_) {
    case Step::kConnecting:
      return finish_connect();
    case Step::kAwaitingChallenge:
      return receive_challenge();
    case Step::kAwaitingHello:
      return flush_greeting() && receive_hello();
    case Step::kAwaitingWelcome:
      return flush_greeting() && receive_welcome();
    case Step::kRefusing:
      if (flush_greeting()) close("the connection was refused: " + std::string(describe(welcome_.refusal)));
      return false;
    case Step::kAwaitingReady:
      return flush_greeting() && receive_frame();
    case Step::kStanding:
      return receive_frame();
    case Step::kAsked:
    case Step::kClosed:
      break;
  }
  return false;
}

bool FrameLink::finish_connect() {
  const auto done = socket_.finish_connect();
  if (!done) {
    close(std::string("the peer cannot be reached: ") + std::strerror(done.error().errno_value));
    return false;
  }
  if (!*done) return false;
  was_connected_ = true;
  step_ = Step::kAwaitingChallenge;
  return true;
}

bool FrameLink::receive_challenge() {
  if (!receive(challenge_)) return false;
  if (challenge_.magic != kMagic) {
    close("the peer is not a rank of this job");
  } else if (challenge_.version != kVersion) {
    welcome_.refusal = Refusal::kOtherVersion;
    close(describe(welcome_.refusal));
  } else if (!proof_.sign(challenge_, hello_)) {
    close("cannot compute the proof of the key");
  } else {
    greet(hello_);
    step_ = Step::kAwaitingWelcome;
  }
  return !is_closed();
}

template <typename Message>
bool FrameLink::receive(Message& message) {
  if (!fill(sizeof(message))) return false;
  std::memcpy(&message, in_.data(), sizeof(message));
  in_bytes_ = 0;
  return true;
}

template <typename Message>
void FrameLink::greet(const Message& message) {
  const base::Bytes bytes = as_bytes(&message, sizeof(message));
  greeting_.assign(bytes.begin(), bytes.end());
}

bool FrameLink::receive_hello() {
  // A client that is not a rank is recognised by its first word.
  if (!fill(sizeof(uint64_t))) return false;
  if (std::memcmp(in_.data(), &kMagic, sizeof(kMagic)) != 0) {
    close("the peer is not a rank of this job");
    return false;
  }
  if (!receive(hello_)) return false;
  step_ = Step::kAsked;
  if (hello_.version != kVersion) {
    answer(Refusal::kOtherVersion);
    return true;
  }
  return false;
}

void FrameLink::answer(Refusal refusal, uint32_t detail) {
  if (refusal == Refusal::kNone) refusal = proof_.judge(challenge_, hello_);
  welcome_ = {};
  welcome_.refusal = refusal;
  welcome_.detail = detail;
  if (refusal == Refusal::kNone && !proof_.sign(challenge_, hello_, welcome_)) {
    close("cannot compute the proof of the key");
    return;
  }
  greet(welcome_);
  step_ = refusal == Refusal::kNone ? Step::kAwaitingReady : Step::kRefusing;
  if (refusal == Refusal::kNone) start_records(base::ConnectionEnd::kReceiver);
}

bool FrameLink::receive_welcome() {
  if (!receive(welcome_)) return false;
  if (welcome_.magic != kMagic) {
    welcome_ = {};
    close("the peer is not a rank of this job");
    return false;
  }
  was_answered_ = true;
  if (welcome_.version != kVersion) welcome_.refusal = Refusal::kOtherVersion;
  if (welcome_.refusal == Refusal::kNone) welcome_.refusal = proof_.judge(challenge_, hello_, welcome_);
  if (welcome_.refusal != Refusal::kNone) {
    close(describe(welcome_.refusal));
    return false;
  }
  start_records(base::ConnectionEnd::kSender);
  if (is_closed()) return false;
  step_ = Step::kStanding;
  out_.push_front({.record = make_record({.kind = FrameKind::kReady})});
  return true;
}

void FrameLink::start_records(base::ConnectionEnd end) {
  auto auth = proof_.start_records(end, challenge_, hello_, welcome_);
  if (auth) {
    auth_ = std::move(*auth);
  } else {
    close("cannot compute the session key");
  }
}

bool FrameLink::receive_frame() {
  if (!fill(sizeof(FrameHeader))) return false;
  FrameHeader header;
  std::memcpy(&header, in_.data(), sizeof(header));
  // Received bytes that are not authenticated are dropped.
  const uint64_t most_bytes = step_ == Step::kStanding ? kMaxFrameBytes : 0;
  if (header.length_bytes > most_bytes || inbox_.size() >= kMaxArrivals) {
    close("the peer sent an unexpected message");
    return false;
  }
  const size_t record_bytes = sizeof(header) + header.length_bytes;
  if (!fill(record_bytes + auth_.mac_bytes())) return false;
  const base::Bytes whole(in_.data(), in_bytes_);
  if (!auth_.verify(whole.first(record_bytes), whole.subspan(record_bytes))) {
    close(
        "a frame of the peer has a wrong MAC. Either the data was changed in transit, or "
        "VERBENA_JOB_KEY_FILE differs");
    return false;
  }
  in_.resize(record_bytes);
  in_bytes_ = 0;
  if (step_ == Step::kAwaitingReady) {
    if (header.kind != FrameKind::kReady) {
      close("the peer sent an unexpected message");
      return false;
    }
    in_.clear();
    step_ = Step::kStanding;
    return true;
  }
  inbox_.push_back(std::make_shared<const std::vector<uint8_t>>(std::exchange(in_, {})));
  return true;
}

// Returns false if not all bytes have arrived, or the link has closed.
bool FrameLink::fill(size_t wanted_bytes) {
  while (in_bytes_ < wanted_bytes) {
    const size_t room = std::min(wanted_bytes, in_bytes_ + kReadBytes);
    if (in_.size() < room) in_.resize(room);
    const auto receive_some = [&] {
      return socket_.receive_some(in_.data() + in_bytes_, std::min(in_.size(), wanted_bytes) - in_bytes_);
    };
    size_t received = receive_some();
    if (received == 0) {
      if (!socket_.is_peer_closed()) return false;
      received = receive_some();  // bytes that arrived since the last read
    }
    if (received == 0) {
      close_lost();
      return false;
    }
    in_bytes_ += received;
  }
  return true;
}

void FrameLink::send(Record record) {
  if (!is_closed()) out_.push_back({.record = std::move(record)});
}

Record FrameLink::take() {
  if (inbox_.empty()) return nullptr;
  Record record = std::move(inbox_.front());
  inbox_.pop_front();
  return record;
}

bool FrameLink::flush_greeting() {
  const size_t sent = greeting_.empty() ? 0 : socket_.send_some(greeting_.data(), greeting_.size());
  greeting_.erase(greeting_.begin(), greeting_.begin() + static_cast<ptrdiff_t>(sent));
  if (!greeting_.empty() && socket_.is_peer_closed()) close_lost();
  return greeting_.empty() && !is_closed();
}

void FrameLink::flush() {
  while (!out_.empty()) {
    Outgoing& next = out_.front();
    const std::vector<uint8_t>& record = *next.record;
    if (!next.is_sealed && !auth_.seal(record, next.mac)) {
      close("cannot compute a MAC");
      return;
    }
    next.is_sealed = true;
    const size_t whole_bytes = record.size() + auth_.mac_bytes();
    while (next.sent_bytes < whole_bytes) {
      const bool is_record = next.sent_bytes < record.size();
      const base::Bytes rest = is_record ? base::Bytes(record).subspan(next.sent_bytes)
                                         : base::Bytes(next.mac).subspan(next.sent_bytes - record.size());
      const size_t sent = socket_.send_some(rest.data(), rest.size());
      if (sent == 0) return;
      next.sent_bytes += sent;
    }
    out_.pop_front();
  }
}

pollfd FrameLink::poll_entry() const {
  if (is_closed()) return {-1, 0, 0};
  const bool has_words = !greeting_.empty() || (is_standing() && !out_.empty());
  const bool writes = step_ == Step::kConnecting || (has_words && !socket_.awaits_peer());
  return {socket_.fd(), static_cast<short>(POLLIN | POLLRDHUP | (writes ? POLLOUT : 0)), 0};
}

}  // namespace verbena::bootstrap
