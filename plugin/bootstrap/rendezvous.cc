#include "bootstrap/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>

#include "base/blocked_signals.h"
#include "base/hmac.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/own_process.h"
#include "base/parameters.h"
#include "base/random.h"
#include "bootstrap/frame_link.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {
namespace {

constexpr uint64_t kIdMagic = 0x6469'616e'6562'7276;  // "vrbenaid"

struct Content {
  uint64_t magic = kIdMagic;
  uint32_t version = kVersion;
  uint32_t reserved = 0;
  Meeting meeting;
  uint8_t reserved_too[24] = {};
};
static_assert(sizeof(Content) == kUniqueIdBytes);

// The rendezvous that are running, and those that ended since the last id was created.
struct OpenRendezvous {
  std::mutex mutex;
  std::list<base::OwnedHere<Rendezvous>> list;
};

OpenRendezvous& open_rendezvous() {
  static OpenRendezvous open;
  return open;
}

}  // namespace

UniqueId make_id(const Meeting& meeting) {
  Content content;
  content.meeting = meeting;
  UniqueId id;
  std::memcpy(id.bytes, &content, sizeof(content));
  return id;
}

base::Result<Meeting> parse(const UniqueId& id) {
  Content content;
  std::memcpy(&content, id.bytes, sizeof(content));
  if (content.magic != kIdMagic) {
    return base::fail(
        base::Status::kInvalidArgument,
        "bootstrap: the 128 bytes that this rank passed are not a unique id. Call verbena_get_unique_id on "
        "one rank, and pass all 128 bytes of the result to every rank");
  }
  if (content.version != kVersion) {
    return base::fail(base::Status::kInvalidArgument,
                      "bootstrap: the unique id has version %u, but this rank needs version %u. Every rank "
                      "needs the same release of this library",
                      content.version, kVersion);
  }
  return content.meeting;
}

base::Result<UniqueId> make_unique_id() {
  Meeting meeting;
  if (auto drawn = base::draw_random(meeting.nonce, "bootstrap"); !drawn) return drawn.error();
  if (base::has_crypto()) {
    if (auto drawn = base::draw_random(meeting.secret, "bootstrap"); !drawn) return drawn.error();
  } else {
    base::log_warn(
        "bootstrap: the unique id has no key, because OpenSSL's libcrypto (3 or 1.1) was not found. Install "
        "libcrypto: without a key, anybody who can read the ranks' traffic can join as a rank");
  }
  auto rendezvous = Rendezvous::open(meeting, base::parameters().bootstrap_timeout_ms);
  if (!rendezvous) return rendezvous.error();
  const UniqueId id = (*rendezvous)->id();
  OpenRendezvous& open = open_rendezvous();
  const std::lock_guard lock(open.mutex);
  open.list.remove_if([](const auto& one) { return one->has_ended(); });
  open.list.emplace_back(rendezvous->release());
  return id;
}

namespace {

constexpr int64_t kPartingMs = 1000;  // to send the last frames
constexpr int kStepMs = 100;

}  // namespace

base::Result<std::unique_ptr<Rendezvous>> Rendezvous::open(const Meeting& meeting, int64_t timeout_ms) {
  auto listener = meeting.address.family == base::IpFamily::kNone ? base::Listener::open()
                                                                  : base::Listener::open_at(meeting.address);
  if (!listener) return listener.error();
  return open_at(std::move(*listener), meeting, timeout_ms);
}

base::Result<std::unique_ptr<Rendezvous>> Rendezvous::open_at(base::Listener listener, const Meeting& meeting,
                                                              int64_t timeout_ms) {
  auto proof = Proof::create(meeting.secret);
  if (!proof) return proof.error();
  auto stop = base::WakeEvent::create("bootstrap");
  if (!stop) return stop.error();
  std::unique_ptr<Rendezvous> rendezvous(
      new Rendezvous(std::move(listener), std::move(*stop), meeting, std::move(*proof), timeout_ms));
  if (auto started = rendezvous->start(); !started) return started.error();
  return rendezvous;
}

Rendezvous::Rendezvous(base::Listener listener, base::WakeEvent stop, const Meeting& meeting, Proof proof,
                       int64_t timeout_ms)
    : callers_(std::move(listener), std::move(proof), "bootstrap: rendezvous"),
      stop_(std::move(stop)),
      id_(make_id({callers_.address(), meeting.nonce, meeting.secret})),
      nonce_(meeting.nonce),
      deadline_(base::Deadline::after_ms(timeout_ms)) {}

base::Outcome Rendezvous::start() {
  try {
    const base::BlockedSignals blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return base::fail_errno(base::Status::kSystem, error.code().value(),
                            "bootstrap: cannot start the rendezvous thread");
  }
  pthread_setname_np(thread_.native_handle(), "verbena-meeting");
  return {};
}

Rendezvous::~Rendezvous() {
  if (!thread_.joinable()) return;
  stop_.ring();
  thread_.join();
}

void Rendezvous::run() {
  while (!is_stopped_ && !is_done()) {
    wait();
    callers_.advance([this](const Hello& hello) { return judge(hello); });
    while (auto link = callers_.take()) guests_.push_back(std::make_unique<Guest>(std::move(*link)));
    for (const auto& guest : guests_) serve(*guest);
    if (deadline_.has_passed()) is_overdue_ = true;
    notice_the_dead();
    tell_parents();
    if (is_overdue_ || !reason_.empty()) break;
    std::erase_if(guests_, [](const auto& guest) {
      if (guest->link.is_closed()) return true;
      return (guest->is_answered && guest->link.is_flushed()) ||
             (!guest->registration && guest->deadline.has_passed());
    });
  }
  if (!is_stopped_ && !is_done()) tell_failure();
  guests_.clear();
  callers_.close();
  has_ended_.store(true, std::memory_order_release);
}

bool Rendezvous::is_done() const {
  if (count_ranks_ == 0 || told_ < count_ranks_) return false;
  return std::all_of(guests_.begin(), guests_.end(),
                     [](const auto& guest) { return !guest->is_answered || guest->link.is_flushed(); });
}

void Rendezvous::wait() {
  std::vector<pollfd> polled{{stop_.fd(), POLLIN, 0}};
  callers_.add_poll_entries(polled);
  for (const auto& guest : guests_) polled.push_back(guest->link.poll_entry());
  const int64_t limit_ms = std::min<int64_t>(deadline_.remaining_ms(), kStepMs);
  ::poll(polled.data(), polled.size(), static_cast<int>(callers_.limit_wait_ms(limit_ms)));
  is_stopped_ = (polled[0].revents & POLLIN) != 0;
}

void Rendezvous::serve(Guest& guest) {
  guest.link.advance();
  while (const Record record = guest.link.take()) {
    const FrameKind kind = header_of(record).kind;
    if (kind == FrameKind::kRegistration && !guest.registration) {
      if (payload_of(record).size() != sizeof(Registration))
        return guest.link.close("the peer's registration has a wrong length");
      std::memcpy(&guest.registration.emplace(), payload_of(record).data(), sizeof(Registration));
      take_registration(guest);
    } else if (kind == FrameKind::kOverdue && guest.registration) {
      is_overdue_ = true;
    }
  }
}

Callers::Verdict Rendezvous::judge(const Hello& hello) const {
  if (!is_same_nonce(hello.nonce, nonce_)) return {Refusal::kOtherJob};
  Refusal refusal = Refusal::kNone;
  if (hello.purpose != Purpose::kRegister || hello.count_ranks == 0 || hello.count_ranks > kMaxRanks ||
      hello.rank >= hello.count_ranks) {
    refusal = Refusal::kUnexpected;
  } else if (count_ranks_ != 0 && hello.count_ranks != count_ranks_) {
    refusal = Refusal::kOtherCount;
  } else if (count_ranks_ != 0 && addresses_[hello.rank]) {
    refusal = Refusal::kRankTaken;
  }
  return {refusal, count_ranks_};
}

void Rendezvous::take_registration(Guest& guest) {
  const Hello& hello = guest.link.hello();
  if (count_ranks_ == 0) {
    count_ranks_ = hello.count_ranks;
    addresses_.resize(count_ranks_);
    is_answered_.resize(count_ranks_);
  }
  if (hello.count_ranks != count_ranks_ || addresses_[hello.rank] ||
      (hello.rank != 0 && guest.registration->parent >= hello.rank)) {
    // Of two peers with the same rank, the first counts.
    return guest.link.close(
        "the peer's rank has already registered, or the peer expects a different number of ranks");
  }
  addresses_[hello.rank] = guest.registration->address;
  ++came_;
}

void Rendezvous::notice_the_dead() {
  for (const auto& guest : guests_) {
    if (!guest->registration || guest->is_answered || !guest->link.is_closed()) continue;
    reason_ =
        "rank " + std::to_string(guest->link.hello().rank) + " disconnected (" + guest->link.problem() + ")";
  }
}

// Answers ranks from the root down. A rank below a missing rank waits here, and is told later which ranks are
// missing.
void Rendezvous::tell_parents() {
  for (bool is_news = true; is_news;) {
    is_news = false;
    for (const auto& guest : guests_) {
      if (!guest->registration || guest->is_answered || guest->link.is_closed()) continue;
      const bool is_root = guest->link.hello().rank == 0;
      const uint32_t parent = guest->registration->parent;
      if (!is_root && !is_answered_[parent]) continue;
      const base::SocketAddress address = is_root ? base::SocketAddress() : *addresses_[parent];
      guest->link.send(make_record({.kind = FrameKind::kParent}, {as_bytes(&address, sizeof(address))}));
      guest->link.advance();
      guest->is_answered = is_answered_[guest->link.hello().rank] = is_news = true;
      ++told_;
    }
  }
}

std::string Rendezvous::describe_missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < count_ranks_; ++rank) {
    if (!addresses_[rank]) missing.push_back(rank);
  }
  return "waited for " + show_ranks(missing) + ", which never reached the rendezvous (" +
         std::to_string(came_) + " of " + std::to_string(count_ranks_) + " ranks did)";
}

void Rendezvous::tell_failure() {
  if (count_ranks_ == 0) {
    base::log_warn(
        "bootstrap: rendezvous at %s: no rank connected. Check that the ranks have started and can reach "
        "this address",
        base::describe(callers_.address()).c_str());
    return;
  }
  const bool is_timeout = reason_.empty();
  const Record record = make_failure({{is_timeout ? base::Status::kTimeout : base::Status::kRemote, 0},
                                      "joining: " + (is_timeout ? describe_missing() : reason_)});
  for (const auto& guest : guests_) {
    if (guest->registration && !guest->is_answered) guest->link.send(record);
  }
  const auto parting = base::Deadline::after_ms(kPartingMs);
  const auto is_flushed = [](const auto& guest) {
    guest->link.advance();
    return !guest->registration || guest->link.is_flushed();
  };
  while (!parting.has_passed() && !std::all_of(guests_.begin(), guests_.end(), is_flushed)) {
    ::poll(nullptr, 0, 1);
  }
}

namespace {

constexpr int64_t kRetryMs = 50;
constexpr int64_t kVerdictMs = 1000;  // for the rendezvous to name the missing ranks

class Asking {
 public:
  Asking(const Meeting& meeting, const TreeLinks::Place& place, const base::SocketAddress& own,
         base::Deadline deadline)
      : meeting_(meeting), place_(place), own_(own), deadline_(deadline) {}

  // Makes one attempt. Returns an empty value if it failed for a temporary reason, which is in `problem`.
  base::Result<std::optional<base::SocketAddress>> ask(std::string& problem);
  // Returns whether the rendezvous dropped the last attempt: if it has many unauthenticated clients, it may
  // drop a rank too.
  bool was_sent_away() const { return was_sent_away_; }
  base::Error fail(base::Status status, const std::string& text) const {
    return base::fail(status, "bootstrap: rank %u of %u: rendezvous at %s: %s", place_.rank,
                      place_.shape.count_ranks, base::describe(meeting_.address).c_str(), text.c_str());
  }
  base::Error fail_interrupted() const {
    base::Error error = fail(base::Status::kSystem, "interrupted by a signal");
    error.errno_value = EINTR;
    return error;
  }

 private:
  base::Result<std::optional<base::SocketAddress>> read(const Record& record) const;

  Meeting meeting_;
  TreeLinks::Place place_;
  base::SocketAddress own_;
  base::Deadline deadline_;
  bool was_sent_away_ = false;
};

base::Result<std::optional<base::SocketAddress>> Asking::ask(std::string& problem) {
  was_sent_away_ = false;
  Hello hello;
  hello.rank = place_.rank;
  hello.count_ranks = place_.shape.count_ranks;
  hello.nonce = place_.nonce;
  auto connected = FrameLink::connect(meeting_.address, hello, place_.secret);
  if (!connected) {
    problem = std::string("the peer cannot be reached: ") + std::strerror(connected.error().errno_value);
    return std::optional<base::SocketAddress>();
  }
  FrameLink link = std::move(*connected);
  const Registration registration{own_, place_.rank == 0 ? 0 : place_.shape.parent_of(place_.rank), 0};
  link.send(make_record({.kind = FrameKind::kRegistration, .rank = place_.rank},
                        {as_bytes(&registration, sizeof(registration))}));
  bool is_overdue = false;
  while (true) {
    link.advance();
    if (const Record record = link.take()) return read(record);
    if (link.is_closed() && (!link.was_answered() || link.refusal() != Refusal::kNone)) {
      problem = link.problem();
      was_sent_away_ = link.was_connected() && !link.was_answered();
      const Refusal refusal = link.refusal();
      const bool may_heal =
          refusal == Refusal::kNone || refusal == Refusal::kOtherJob || refusal == Refusal::kRankTaken;
      if (may_heal) return std::optional<base::SocketAddress>();
      if (refusal == Refusal::kOtherCount) problem += " (" + std::to_string(link.refusal_detail()) + ")";
      return fail(base::Status::kRemote, problem);
    }
    if (link.is_closed()) return fail(base::Status::kRemote, "the connection was closed: " + link.problem());
    if (deadline_.has_passed()) {
      if (is_overdue || !link.is_standing())
        return fail(base::Status::kTimeout, problem.empty() ? "no answer" : problem);
      link.send(make_record({.kind = FrameKind::kOverdue, .rank = place_.rank}));
      is_overdue = true;
      deadline_ = base::Deadline::after_ms(kVerdictMs);
      continue;
    }
    if (base::is_interrupted()) return fail_interrupted();
    pollfd entry = link.poll_entry();
    ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(deadline_.remaining_ms(), kStepMs)));
  }
}

base::Result<std::optional<base::SocketAddress>> Asking::read(const Record& record) const {
  const FrameKind kind = header_of(record).kind;
  if (kind == FrameKind::kFailure) {
    const FailureNote note = read_failure(record);
    return base::fail(note.error.status, "bootstrap: rank %u of %u: %s", place_.rank,
                      place_.shape.count_ranks, note.text.c_str());
  }
  base::SocketAddress parent;
  if (kind != FrameKind::kParent || payload_of(record).size() != sizeof(parent)) {
    return fail(base::Status::kRemote, "the peer sent an unexpected message");
  }
  std::memcpy(&parent, payload_of(record).data(), sizeof(parent));
  return std::optional(parent);
}

}  // namespace

base::Result<base::SocketAddress> ask_for_parent(const Meeting& meeting, const TreeLinks::Place& place,
                                                 const base::SocketAddress& own, base::Deadline deadline,
                                                 Patience patience) {
  Asking asking(meeting, place, own, deadline);
  std::string problem;
  while (true) {
    auto answer = asking.ask(problem);
    if (!answer) return answer.error();
    if (*answer) return **answer;
    if (patience == Patience::kNone && !asking.was_sent_away())
      return asking.fail(base::Status::kRemote, problem);
    if (deadline.has_passed()) return asking.fail(base::Status::kTimeout, problem);
    if (base::is_interrupted()) return asking.fail_interrupted();
    ::poll(nullptr, 0, static_cast<int>(std::min(deadline.remaining_ms(), kRetryMs)));
  }
}

}  // namespace verbena::bootstrap
