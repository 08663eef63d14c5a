#include "transport/peer_channel.h"

#include <cstddef>
#include <span>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/parameters.h"

namespace verbena::transport {

using protocol::ArrivedRecord;
using protocol::RecoveryKind;
using protocol::RecoveryRecord;

std::unique_ptr<PeerChannel> PeerChannel::start(base::Socket socket, std::string peer, RecordAuth auth) {
  auto channel = std::unique_ptr<PeerChannel>(new PeerChannel);
  channel->socket_ = std::move(socket);
  channel->peer_ = std::move(peer);
  channel->auth_ = std::move(auth);
  channel->socket_.limit_silence(base::parameters().failover_timeout_ms);
  return channel;
}

base::Outcome PeerChannel::watch(ProgressToken* owner) {
  owner_ = owner;
  auto outcome = base::EventLoop::instance().watch(
      socket_.fd(), base::Interest::kNewData,
      [](void* context) {
        auto* channel = static_cast<PeerChannel*>(context);
        if (channel->socket_.is_peer_closed()) channel->closed_.store(true, std::memory_order_release);
        channel->owner_->want();
      },
      this);
  if (!outcome) owner_ = nullptr;
  return outcome;
}

PeerChannel::~PeerChannel() {
  unwatch();
}

void PeerChannel::unwatch() {
  if (owner_ != nullptr) base::EventLoop::instance().unwatch(socket_.fd());
  owner_ = nullptr;
}

bool PeerChannel::is_grace_over() {
  const int64_t now_ns = base::monotonic_ns();
  if (noticed_ns_ == 0) noticed_ns_ = now_ns;
  return now_ns - noticed_ns_ >= base::parameters().peer_grace_ms * base::kNsPerMs;
}

void PeerChannel::send(const RecoveryRecord& record, const ArrivedRecord* arrived) {
  const size_t begin = unsent_.size();
  const auto* bytes = reinterpret_cast<const uint8_t*>(&record);
  unsent_.insert(unsent_.end(), bytes, bytes + sizeof(record));
  if (arrived != nullptr) {
    bytes = reinterpret_cast<const uint8_t*>(arrived);
    unsent_.insert(unsent_.end(), bytes, bytes + sizeof(*arrived));
  }
  const size_t length = unsent_.size() - begin;
  unsent_.resize(unsent_.size() + auth_.mac_bytes());
  const std::span<uint8_t> sealed(unsent_.data() + begin, length + auth_.mac_bytes());
  // Without its proof the peer does not take it, and ends the connection.
  static_cast<void>(auth_.seal(sealed.first(length), sealed.subspan(length)));
  push();
}

void PeerChannel::push() {
  size_t sent = 0;
  while (sent < unsent_.size()) {
    const size_t now = socket_.send_some(unsent_.data() + sent, unsent_.size() - sent);
    if (now == 0) break;
    sent += now;
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(sent));
}

// True once bytes [begin, begin + length) of what is coming are in `target`.
bool PeerChannel::fill(void* target, size_t begin_bytes, size_t length_bytes) {
  const size_t end_bytes = begin_bytes + length_bytes;
  while (received_bytes_ < end_bytes) {
    const size_t offset = received_bytes_ - begin_bytes;
    const size_t now = socket_.receive_some(static_cast<uint8_t*>(target) + offset, length_bytes - offset);
    if (now == 0 && socket_.is_spoilt()) closed_.store(true, std::memory_order_release);
    if (now == 0) return false;
    received_bytes_ += now;
  }
  return true;
}

const RecoveryRecord* PeerChannel::receive(const ArrivedRecord** arrived) {
  *arrived = nullptr;
  if (incoming_ == nullptr) incoming_ = std::make_unique<Incoming>();
  constexpr size_t kHead = sizeof(RecoveryRecord);
  if (received_bytes_ < kHead && !fill(&incoming_->record, 0, kHead)) return nullptr;
  if (incoming_->record.kind == RecoveryKind::kArrived) {
    if (!fill(&incoming_->arrived, kHead, sizeof(ArrivedRecord))) return nullptr;
    *arrived = &incoming_->arrived;
  }
  static_assert(offsetof(Incoming, arrived) == kHead);  // proved as one piece
  const size_t length = kHead + (*arrived != nullptr ? sizeof(ArrivedRecord) : 0);
  if (!fill(incoming_->mac, length, auth_.mac_bytes())) return nullptr;
  received_bytes_ = 0;
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(incoming_.get()), length);
  if (!auth_.verify(bytes, {incoming_->mac, auth_.mac_bytes()})) incoming_->record.kind = {};
  return &incoming_->record;
}

}  // namespace verbena::transport
