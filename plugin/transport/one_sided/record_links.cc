#include "transport/one_sided/record_links.h"

#include <cstring>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/log.h"
#include "base/random.h"

namespace verbena::transport {

namespace {

using bootstrap::FrameKind;
using bootstrap::Refusal;

constexpr int64_t kIdleNs = 5'000 * base::kNsPerMs;  // a link that is idle for this time is closed

unsigned char* as_chars(void* data) {
  return static_cast<unsigned char*>(data);
}

}  // namespace

base::Result<std::unique_ptr<RecordLinks>> RecordLinks::open(uint32_t rank, uint32_t count_ranks) {
  bootstrap::Nonce nonce, secret{};
  if (auto drawn = base::draw_random(nonce, "endpoint"); !drawn) return drawn.error();
  if (base::has_crypto()) {
    if (auto drawn = base::draw_random(secret, "endpoint"); !drawn) return drawn.error();
  }
  auto proof = bootstrap::Proof::create(secret);
  if (!proof) return proof.error();
  auto listener = base::Listener::open();
  if (!listener) return listener.error();
  std::unique_ptr<RecordLinks> links(
      new RecordLinks(rank, count_ranks, std::move(*listener), std::move(*proof)));
  links->nonce_ = nonce;
  links->secret_ = secret;
  if (auto watched = links->watch(); !watched) return watched.error();
  return links;
}

base::Outcome RecordLinks::watch() {
  const auto note_caller = [](void* links) {
    static_cast<RecordLinks*>(links)->has_caller_.store(true, std::memory_order_release);
  };
  return base::EventLoop::instance().watch(callers_.listener_fd(), base::Interest::kNewData, note_caller,
                                           this);
}

RecordLinks::~RecordLinks() {
  base::EventLoop::instance().unwatch(callers_.listener_fd());
}

void RecordLinks::know(uint32_t peer, const base::SocketAddress& address, const bootstrap::Nonce& nonce,
                       const bootstrap::Nonce& secret) {
  const std::lock_guard lock(mutex_);
  peers_[peer].address = address;
  peers_[peer].nonce = nonce;
  peers_[peer].secret = secret;
}

// --- Links to peers.

void RecordLinks::send(uint32_t peer, const protocol::LaneRecord& record) {
  Peer& to = peers_[peer];
  if (to.is_gone) return;
  to.unsent.push_back(bootstrap::make_record({.kind = FrameKind::kLaneRecord, .rank = rank_},
                                             {bootstrap::as_bytes(&record, sizeof(record))}));
  to.used_at_ns = base::monotonic_ns();
  if (to.link != nullptr) return;
  bootstrap::Hello hello;
  hello.purpose = bootstrap::Purpose::kRecords;
  hello.rank = rank_;
  hello.count_ranks = static_cast<uint32_t>(peers_.size());
  base::SocketAddress address;
  bootstrap::Nonce secret;
  {
    const std::lock_guard lock(mutex_);
    address = to.address;
    hello.nonce = to.nonce;
    secret = to.secret;
  }
  auto link = bootstrap::FrameLink::connect(address, hello, secret);
  if (!link) return lose(peer, std::strerror(link.error().errno_value));
  to.link = std::make_unique<bootstrap::FrameLink>(std::move(*link));
  ++count_connected_;
}

void RecordLinks::lose(uint32_t peer, const std::string& problem) {
  Peer& lost = peers_[peer];
  base::log_info("endpoint of rank %u: the connection to rank %u at %s failed: %s", rank_, peer,
                 base::describe(lost.address).c_str(), problem.c_str());
  if (lost.link != nullptr) --count_connected_;
  lost.link.reset();
  lost.unsent.clear();
  lost.is_gone = true;
}

void RecordLinks::advance_own(uint32_t peer, int64_t now_ns) {
  Peer& to = peers_[peer];
  if (to.link == nullptr) return;
  while (!to.unsent.empty()) {
    to.link->send(std::move(to.unsent.front()));
    to.unsent.pop_front();
  }
  to.link->advance();
  if (to.link->is_closed()) return lose(peer, to.link->problem());
  if (!to.link->is_flushed() || now_ns - to.used_at_ns < kIdleNs) return;
  to.link.reset();
  --count_connected_;
}

// --- Links from peers.

bootstrap::Callers::Verdict RecordLinks::judge(const bootstrap::Hello& hello) const {
  if (!bootstrap::is_same_nonce(hello.nonce, nonce_)) return {Refusal::kOtherJob};
  const bool is_peer = hello.purpose == bootstrap::Purpose::kRecords && hello.rank < peers_.size() &&
                       hello.count_ranks == peers_.size();
  return {is_peer ? Refusal::kNone : Refusal::kUnexpected};
}

void RecordLinks::hear(bootstrap::FrameLink& link) {
  link.advance();
  while (const bootstrap::Record record = link.take()) {
    Arrival arrival{link.hello().rank, {}};
    const base::Bytes payload = bootstrap::payload_of(record);
    if (bootstrap::header_of(record).kind != FrameKind::kLaneRecord ||
        payload.size() != sizeof(arrival.record))
      return link.close("the peer is not an endpoint");
    std::memcpy(as_chars(&arrival.record), payload.data(), sizeof(arrival.record));
    arrived_.push_back(arrival);
  }
}

void RecordLinks::advance(int64_t now_ns) {
  if (has_caller_.exchange(false, std::memory_order_acquire) || !callers_.is_empty()) {
    callers_.advance([this](const bootstrap::Hello& hello) { return judge(hello); });
    while (auto link = callers_.take())
      from_peers_.push_back(std::make_unique<bootstrap::FrameLink>(std::move(*link)));
  }
  for (const auto& link : from_peers_) hear(*link);
  std::erase_if(from_peers_, [](const auto& link) { return link->is_closed(); });
  if (count_connected_ == 0) return;
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) advance_own(peer, now_ns);
}

std::optional<RecordLinks::Arrival> RecordLinks::take() {
  if (arrived_.empty()) return std::nullopt;
  const Arrival next = arrived_.front();
  arrived_.pop_front();
  return next;
}

}  // namespace verbena::transport
