#include "transport/peer_channel.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/clock.h"
#include "base/parameters.h"

namespace verbena::transport {

using protocol::ArrivedRecord;
using protocol::RecoveryKind;
using protocol::RecoveryRecord;

namespace {

// Far more than both ends' queue pairs can send before the service thread reads it.
constexpr size_t kMaxArrivedBytes = 1 << 20;

}  // namespace

std::unique_ptr<PeerChannel> PeerChannel::join(std::shared_ptr<PeerSocket> socket, uint64_t id,
                                               std::string peer) {
  std::unique_ptr<PeerChannel> channel(new PeerChannel(std::move(socket), id, std::move(peer)));
  channel->is_joined_ = channel->socket_->add(id, channel.get());
  return channel->is_joined_ ? std::move(channel) : nullptr;
}

base::Outcome PeerChannel::watch(ProgressToken* owner) {
  {
    const std::lock_guard lock(socket_->mutex());
    owner_ = owner;
    if (is_closed() || !arrived_.empty()) owner->want();  // bytes arrived before the watch began
  }
  auto outcome = socket_->start();
  if (!outcome) unwatch();
  return outcome;
}

PeerChannel::~PeerChannel() {
  if (is_joined_) socket_->remove(id_);
}

void PeerChannel::unwatch() {
  const std::lock_guard lock(socket_->mutex());
  owner_ = nullptr;
}

// The socket's mutex is held during the next two functions.
void PeerChannel::take(std::span<const uint8_t> bytes) {
  if (is_closed()) return;
  if (arrived_.size() + bytes.size() > kMaxArrivedBytes) return note_closed();
  arrived_.insert(arrived_.end(), bytes.begin(), bytes.end());
  if (owner_ != nullptr) owner_->want();
}

void PeerChannel::note_closed() {
  closed_.store(true, std::memory_order_release);
  if (owner_ != nullptr) owner_->want();
}

bool PeerChannel::is_grace_over() {
  const int64_t now_ns = base::monotonic_ns();
  if (noticed_ns_ == 0) noticed_ns_ = now_ns;
  return now_ns - noticed_ns_ >= base::parameters().peer_grace_ms * base::kNsPerMs;
}

void PeerChannel::send(const RecoveryRecord& record, const ArrivedRecord* arrived) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&record);
  std::vector<uint8_t> sealed(bytes, bytes + sizeof(record));
  if (arrived != nullptr) {
    bytes = reinterpret_cast<const uint8_t*>(arrived);
    sealed.insert(sealed.end(), bytes, bytes + sizeof(*arrived));
  }
  const size_t length = sealed.size();
  sealed.resize(length + auth_.mac_bytes());
  // If the record has no valid MAC, the peer rejects it and ends the connection.
  static_cast<void>(auth_.seal({sealed.data(), length}, std::span(sealed).subspan(length)));
  static_assert(sizeof(record) + sizeof(*arrived) + base::kMacBytes <= protocol::kMaxFrameBytes);
  socket_->send(id_, sealed);
}

// Copies arrived bytes to `target`. Returns true once bytes [begin, begin + length) of the record are
// complete.
bool PeerChannel::fill(void* target, size_t begin_bytes, size_t length_bytes) {
  const std::lock_guard lock(socket_->mutex());
  const size_t offset = received_bytes_ - begin_bytes;
  if (offset >= length_bytes) return true;
  const size_t now = std::min(arrived_.size(), length_bytes - offset);
  std::copy_n(arrived_.begin(), now, static_cast<uint8_t*>(target) + offset);
  arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<ptrdiff_t>(now));
  received_bytes_ += now;
  return offset + now == length_bytes;
}

const RecoveryRecord* PeerChannel::receive(const ArrivedRecord** arrived) {
  *arrived = nullptr;
  if (incoming_ == nullptr) incoming_ = std::make_unique<Incoming>();
  socket_->read();
  constexpr size_t kHead = sizeof(RecoveryRecord);
  if (received_bytes_ < kHead && !fill(&incoming_->record, 0, kHead)) return nullptr;
  if (incoming_->record.kind == RecoveryKind::kArrived) {
    if (!fill(&incoming_->arrived, kHead, sizeof(ArrivedRecord))) return nullptr;
    *arrived = &incoming_->arrived;
  }
  static_assert(offsetof(Incoming, arrived) == kHead);  // one MAC covers both
  const size_t length = kHead + (*arrived != nullptr ? sizeof(ArrivedRecord) : 0);
  if (!fill(incoming_->mac, length, auth_.mac_bytes())) return nullptr;
  received_bytes_ = 0;
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(incoming_.get()), length);
  if (!auth_.verify(bytes, {incoming_->mac, auth_.mac_bytes()})) incoming_->record.kind = {};
  return &incoming_->record;
}

}  // namespace verbena::transport
