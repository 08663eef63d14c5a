#include "bootstrap/pair_links.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/random.h"

namespace verbena::bootstrap {
namespace {

constexpr uint64_t kPairMagic = 0x7269'6170'6272'6576;  // "verbpair"
constexpr size_t kMaxPartBytes = size_t{64} << 20;
// The length of a message is only the peer's claim, so beyond this limit memory grows with the bytes that
// arrive.
constexpr uint64_t kMaxReservedBytes = uint64_t{1} << 26;
constexpr int64_t kPollMs = 100;
// A waiting thread may receive a message that another thread waits for.
constexpr int64_t kSharedPollMs = 1;

struct PartHeader {
  uint64_t tag = 0;
  uint64_t message_bytes = 0;
};

}  // namespace

base::Result<std::unique_ptr<PairLinks>> PairLinks::open(uint32_t rank, uint32_t count_ranks,
                                                         const base::SocketAddress& address) {
  if (rank >= count_ranks || count_ranks > kMaxRanks) {
    return base::fail(base::Status::kInvalidArgument,
                      "bootstrap: pairs: invalid rank %u of %u. The first rank has number 0, and there can "
                      "be at most %u ranks",
                      rank, count_ranks, kMaxRanks);
  }
  PairAddress own{.magic = kPairMagic, .version = kVersion, .rank = rank};
  if (auto drawn = base::draw_random(own.nonce, "bootstrap"); !drawn) return drawn.error();
  if (base::has_crypto()) {
    if (auto drawn = base::draw_random(own.secret, "bootstrap"); !drawn) return drawn.error();
  }
  auto proof = Proof::create(own.secret);
  if (!proof) return proof.error();
  auto listener =
      address.family == base::IpFamily::kNone ? base::Listener::open() : base::Listener::open_at(address);
  if (!listener) return listener.error();
  own.address = listener->address();
  return std::unique_ptr<PairLinks>(new PairLinks(own, count_ranks, std::move(*listener), std::move(*proof)));
}

PairLinks::PairLinks(const PairAddress& address, uint32_t count_ranks, base::Listener listener, Proof proof)
    : address_(address),
      callers_(std::move(listener), std::move(proof),
               "bootstrap: pairs of rank " + std::to_string(address.rank)),
      peers_(count_ranks) {}

base::Outcome PairLinks::learn(std::span<const PairAddress> all) {
  const std::lock_guard lock(mutex_);
  if (all.size() != peers_.size()) {
    return base::fail(base::Status::kInvalidArgument,
                      "bootstrap: pairs: %zu addresses were passed for %zu ranks", all.size(), peers_.size());
  }
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].magic != kPairMagic || all[rank].version != kVersion || all[rank].rank != rank) {
      return base::fail(
          base::Status::kRemote,
          "bootstrap: pairs: rank %u published the address of another rank, or runs a different release",
          rank);
    }
    peers_[rank].address = all[rank];
  }
  return {};
}

base::Outcome PairLinks::check(uint32_t peer) const {
  if (peer < peers_.size() && peer != address_.rank) return {};
  return base::fail(base::Status::kInvalidArgument,
                    "bootstrap: pairs: rank %u of %zu cannot exchange messages with rank %u", address_.rank,
                    peers_.size(), peer);
}

void PairLinks::connect(Peer& peer) {
  if (peer.out != nullptr || !peer.unreachable.empty()) return;
  const Hello hello{.purpose = Purpose::kPairs,
                    .rank = address_.rank,
                    .count_ranks = static_cast<uint32_t>(peers_.size()),
                    .nonce = peer.address.nonce};
  auto link = FrameLink::connect(peer.address.address, hello, peer.address.secret);
  if (link) {
    peer.out = std::make_unique<FrameLink>(std::move(*link));
  } else {
    peer.unreachable = base::describe(peer.address.address) + ": " + std::strerror(link.error().errno_value);
  }
}

base::Outcome PairLinks::send(uint32_t to, uint64_t tag, std::span<const std::byte> bytes,
                              int64_t timeout_ms) {
  if (auto checked = check(to); !checked) return checked;
  Peer& peer = peers_[to];
  {
    const std::lock_guard lock(mutex_);
    connect(peer);
    const PartHeader header{tag, bytes.size()};
    do {
      const auto part = bytes.first(std::min(bytes.size(), kMaxPartBytes));
      bytes = bytes.subspan(part.size());
      if (peer.is_lost()) break;
      peer.out->send(make_record({.kind = FrameKind::kPairPart, .rank = address_.rank},
                                 {base::as_whole(header), base::as_bytes(part.data(), part.size())}));
    } while (!bytes.empty());
  }
  return wait(
      to, "to take a message", timeout_ms, [&] { return !peer.is_lost() && peer.out->is_flushed(); },
      [&] { return peer.is_lost(); });
}

base::Result<std::vector<std::byte>> PairLinks::receive(uint32_t from, uint64_t tag, int64_t timeout_ms) {
  if (auto checked = check(from); !checked) return checked.error();
  Peer& peer = peers_[from];
  std::vector<std::byte> message;
  const auto take = [&] {
    const auto found = peer.arrived.find(tag);
    if (found == peer.arrived.end()) return false;
    message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) peer.arrived.erase(found);
    return true;
  };
  // The peer's last messages arrive over the link that the peer opened. That link may close later than this
  // rank's link, or may still be unauthenticated.
  const auto has_left = [&] {
    if (!peer.is_lost()) return false;
    return peer.in != nullptr ? peer.in->is_closed() : !callers_.has_welcomed(from);
  };
  auto waited = wait(from, "to send a message", timeout_ms, take, has_left);
  if (!waited) return waited.error();
  return message;
}

template <typename IsDone, typename HasLeft>
base::Outcome PairLinks::wait(uint32_t rank, const char* what, int64_t timeout_ms, const IsDone& is_done,
                              const HasLeft& has_left) {
  const auto deadline = base::Deadline::after_ms(timeout_ms);
  const auto fail = [&](base::Status status, const std::string& why) {
    return base::fail(status, "bootstrap: rank %u of %zu: waited for rank %u %s: %s", address_.rank,
                      peers_.size(), rank, what, why.c_str());
  };
  struct Waiting {
    std::atomic<uint32_t>& count;
    explicit Waiting(std::atomic<uint32_t>& waiting) : count(waiting) { count.fetch_add(1); }
    ~Waiting() { count.fetch_sub(1); }
  } const waiting(waiting_);
  for (;;) {
    std::vector<pollfd> polled;
    int64_t poll_ms = 0;
    {
      const std::lock_guard lock(mutex_);
      // A receiver also connects to the sender. When this link closes, the receiver knows that a peer which
      // never sent has left.
      connect(peers_[rank]);
      advance();
      if (is_done()) return {};
      if (has_left())
        return fail(base::Status::kRemote,
                    "that rank has closed its connection (" + peers_[rank].problem() + ")");
      callers_.add_poll_entries(polled);
      for (const Peer& one : peers_) {
        if (one.out != nullptr) polled.push_back(one.out->poll_entry());
        if (one.in != nullptr) polled.push_back(one.in->poll_entry());
      }
      poll_ms = callers_.limit_wait_ms(waiting_.load() > 1 ? kSharedPollMs : kPollMs);
    }
    if (deadline.has_passed()) return fail(base::Status::kTimeout, "timed out");
    if (base::is_interrupted()) return fail(base::Status::kSystem, "interrupted by a signal");
    ::poll(polled.data(), polled.size(), static_cast<int>(std::min(deadline.remaining_ms(), poll_ms)));
  }
}

void PairLinks::advance() {
  callers_.advance([this](const Hello& hello) -> Callers::Verdict {
    if (!is_same_nonce(hello.nonce, address_.nonce)) return {Refusal::kOtherJob};
    if (hello.purpose != Purpose::kPairs || hello.rank >= peers_.size() || hello.rank == address_.rank ||
        hello.count_ranks != peers_.size())
      return {Refusal::kUnexpected};
    return {peers_[hello.rank].in == nullptr ? Refusal::kNone : Refusal::kRankTaken};
  });
  while (auto link = callers_.take()) {
    Peer& peer = peers_[link->hello().rank];
    if (peer.in == nullptr) peer.in = std::make_unique<FrameLink>(std::move(*link));
  }
  for (Peer& peer : peers_) {
    if (peer.out != nullptr) peer.out->advance();
    if (peer.in != nullptr) take_arrivals(peer);
  }
}

void PairLinks::take_arrivals(Peer& peer) {
  FrameLink& link = *peer.in;
  link.advance();
  while (const Record record = link.take()) {
    const base::Bytes payload = payload_of(record);
    PartHeader header;
    if (header_of(record).kind != FrameKind::kPairPart || payload.size() < sizeof(header)) {
      link.close("the peer sent a frame that is not part of a message");
      break;
    }
    std::memcpy(&header, payload.data(), sizeof(header));
    const base::Bytes part = payload.subspan(sizeof(header));
    if (part.size() >
        header.message_bytes - std::min<uint64_t>(header.message_bytes, peer.incomplete.size())) {
      link.close("the peer sent more bytes than the length that it announced");
      break;
    }
    if (peer.incomplete.empty()) peer.incomplete.reserve(std::min(header.message_bytes, kMaxReservedBytes));
    const auto* const begin = reinterpret_cast<const std::byte*>(part.data());
    peer.incomplete.insert(peer.incomplete.end(), begin, begin + part.size());
    if (peer.incomplete.size() == header.message_bytes)
      peer.arrived[header.tag].push_back(std::exchange(peer.incomplete, {}));
  }
}

}  // namespace verbena::bootstrap
