#include "device/bootstrap/link.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::bootstrap {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;  // memory follows what came, not what a header claims
constexpr size_t kMaxArrivals = 1 << 18;        // more than one frame a rank and call is never due

}  // namespace

size_t find_most_strangers() {
  constexpr size_t kLeast = 8, kMost = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  return std::clamp<size_t>(limit.rlim_cur / 8, kLeast, kMost);
}

base::Result<Link> Link::connect(const base::SocketAddress& peer, const Hello& hello,
                                 const Nonce& id_secret) {
  auto proof = Proof::create(id_secret);
  if (!proof) return proof.error();
  auto socket = base::Socket::try_connect(peer);
  if (!socket) return socket.error();
  if (auto outcome = proof->encrypt(*socket, base::ConnectionEnd::kSender); !outcome) return outcome.error();
  Link link(std::move(*socket), std::move(*proof), Step::kConnecting);
  link.hello_ = hello;
  if (auto is_signed = link.proof_.sign(link.hello_); !is_signed) return is_signed.error();
  return link;
}

Link Link::accept(base::Socket socket, const Proof& proof) {
  Link link(std::move(socket), proof, Step::kAwaitingHello);
  if (!proof.encrypt(link.socket_, base::ConnectionEnd::kReceiver)) link.close("no encryption can be set up");
  return link;
}

void Link::close(std::string problem) {
  if (is_closed()) return;
  step_ = Step::kClosed;
  problem_ = std::move(problem);
  out_.clear();
  greeting_.clear();
  socket_ = base::Socket();
}

void Link::close_lost() {
  close(socket_.explain_end() != nullptr ? socket_.explain_end() : "its connection closed");
}

void Link::advance() {
  while (!is_closed() && step()) continue;
  if (is_standing()) flush();
}

// Whether another step may follow at once.
bool Link::step() {
  switch (step_) {
    case Step::kConnecting:
      return finish_connect();
    case Step::kAwaitingHello:
      return receive_hello();
    case Step::kAwaitingWelcome:
      return flush_greeting() && receive_welcome();
    case Step::kRefusing:
      if (flush_greeting()) close("it was refused: " + std::string(describe(welcome_.refusal)));
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

bool Link::finish_connect() {
  const auto done = socket_.finish_connect();
  if (!done) {
    close(std::string("it cannot be reached: ") + std::strerror(done.error().errno_value));
    return false;
  }
  if (!*done) return false;
  was_connected_ = true;
  greet(hello_);
  step_ = Step::kAwaitingWelcome;
  return true;
}

template <typename Message>
bool Link::receive(Message& message) {
  if (!fill(sizeof(message))) return false;
  std::memcpy(&message, in_.data(), sizeof(message));
  in_bytes_ = 0;
  return true;
}

template <typename Message>
void Link::greet(const Message& message) {
  const base::Bytes bytes = as_bytes(&message, sizeof(message));
  greeting_.assign(bytes.begin(), bytes.end());
}

bool Link::receive_hello() {
  // Whoever is not of ours at all is found out by the first word.
  if (!fill(sizeof(uint64_t))) return false;
  if (std::memcmp(in_.data(), &kMagic, sizeof(kMagic)) != 0) {
    close("it is no rank of ours");
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

void Link::answer(Refusal refusal, uint32_t detail) {
  if (refusal == Refusal::kNone) refusal = proof_.judge(hello_);
  welcome_ = {};
  welcome_.refusal = refusal;
  welcome_.detail = detail;
  if (refusal == Refusal::kNone && !proof_.sign(hello_, welcome_)) {
    close("no proof can be made");
    return;
  }
  greet(welcome_);
  step_ = refusal == Refusal::kNone ? Step::kAwaitingReady : Step::kRefusing;
  if (refusal == Refusal::kNone) start_records(base::ConnectionEnd::kReceiver);
}

bool Link::receive_welcome() {
  if (!receive(welcome_)) return false;
  if (welcome_.magic != kMagic) {
    welcome_ = {};
    close("it is no rank of ours");
    return false;
  }
  was_answered_ = true;
  if (welcome_.version != kVersion) welcome_.refusal = Refusal::kOtherVersion;
  if (welcome_.refusal == Refusal::kNone) welcome_.refusal = proof_.judge(hello_, welcome_);
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

void Link::start_records(base::ConnectionEnd end) {
  auto auth = proof_.start_records(end, hello_, welcome_);
  if (auth) {
    auth_ = std::move(*auth);
  } else {
    close("no session key can be made");
  }
}

bool Link::receive_frame() {
  if (!fill(sizeof(FrameHeader))) return false;
  FrameHeader header;
  std::memcpy(&header, in_.data(), sizeof(header));
  if (header.length_bytes > kMaxFrameBytes || inbox_.size() >= kMaxArrivals) {
    close("it sends what no rank of ours sends");
    return false;
  }
  const size_t record_bytes = sizeof(header) + header.length_bytes;
  if (!fill(record_bytes + auth_.mac_bytes())) return false;
  const base::Bytes whole(in_.data(), in_bytes_);
  if (!auth_.verify(whole.first(record_bytes), whole.subspan(record_bytes))) {
    close("its frame does not prove the key: somebody in between, or VERBENA_JOB_KEY_FILE differs");
    return false;
  }
  in_.resize(record_bytes);
  in_bytes_ = 0;
  if (step_ == Step::kAwaitingReady) {
    if (header.kind != FrameKind::kReady) {
      close("it sends what no rank of ours sends");
      return false;
    }
    in_.clear();
    step_ = Step::kStanding;
    return true;
  }
  inbox_.push_back(std::make_shared<const std::vector<uint8_t>>(std::exchange(in_, {})));
  return true;
}

// False: not all of it is there yet, or the link has closed.
bool Link::fill(size_t wanted_bytes) {
  while (in_bytes_ < wanted_bytes) {
    const size_t room = std::min(wanted_bytes, in_bytes_ + kReadBytes);
    if (in_.size() < room) in_.resize(room);
    const auto receive_some = [&] {
      return socket_.receive_some(in_.data() + in_bytes_, std::min(in_.size(), wanted_bytes) - in_bytes_);
    };
    size_t received = receive_some();
    if (received == 0) {
      if (!socket_.is_peer_closed()) return false;
      received = receive_some();  // what came between the two looks
    }
    if (received == 0) {
      close_lost();
      return false;
    }
    in_bytes_ += received;
  }
  return true;
}

void Link::send(Record record) {
  if (!is_closed()) out_.push_back({.record = std::move(record)});
}

Record Link::take() {
  if (inbox_.empty()) return nullptr;
  Record record = std::move(inbox_.front());
  inbox_.pop_front();
  return record;
}

bool Link::flush_greeting() {
  const size_t sent = greeting_.empty() ? 0 : socket_.send_some(greeting_.data(), greeting_.size());
  greeting_.erase(greeting_.begin(), greeting_.begin() + static_cast<ptrdiff_t>(sent));
  if (!greeting_.empty() && socket_.is_peer_closed()) close_lost();
  return greeting_.empty() && !is_closed();
}

void Link::flush() {
  while (!out_.empty()) {
    Outgoing& next = out_.front();
    const std::vector<uint8_t>& record = *next.record;
    if (!next.is_sealed && !auth_.seal(record, next.mac)) {
      close("no MAC can be computed");
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

pollfd Link::poll_entry() const {
  if (is_closed()) return {-1, 0, 0};
  const bool has_words = !greeting_.empty() || (is_standing() && !out_.empty());
  const bool writes = step_ == Step::kConnecting || (has_words && !socket_.awaits_peer());
  return {socket_.fd(), static_cast<short>(POLLIN | POLLRDHUP | (writes ? POLLOUT : 0)), 0};
}

}  // namespace verbena::bootstrap
