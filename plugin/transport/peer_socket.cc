#include "transport/peer_socket.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/event_loop.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "transport/link/advice.h"

namespace verbena::transport {

using protocol::FrameHeader;
using protocol::FrameKind;

base::Result<ProcessId> find_process_id() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static ProcessId id;
  const std::lock_guard lock(mutex);
  if (owner == getpid()) return id;
  if (auto drawn = base::draw_random(id, "handshake"); !drawn) return drawn.error();
  owner = getpid();
  return id;
}

// --- PeerSocket.

std::shared_ptr<PeerSocket> PeerSocket::create(base::Socket socket, ConnectionEnd end) {
  return std::make_shared<PeerSocket>(std::move(socket), end);
}

PeerSocket::PeerSocket(base::Socket socket, ConnectionEnd end) : end_(end), socket_(std::move(socket)) {}

PeerSocket::~PeerSocket() {
  if (is_registered_) PeerSockets::instance().remove(*this);
  if (is_started_) base::EventLoop::instance().unwatch(socket_.fd());
}

base::Result<bool> PeerSocket::receive_ready(protocol::Ready& ready) {
  const std::lock_guard lock(mutex_);
  auto received = socket_.receive_exact(&ready_, sizeof(ready_), ready_bytes_);
  if (received && *received) ready = ready_;
  return received;
}

bool PeerSocket::add(uint64_t connection, User* user) {
  const std::lock_guard lock(mutex_);
  if (!users_.emplace(connection, user).second) return false;
  if (is_closed()) user->note_closed();
  return true;
}

void PeerSocket::remove(uint64_t connection) {
  const std::lock_guard lock(mutex_);
  users_.erase(connection);
  if (!is_open() || is_closed()) return;
  append(connection, FrameKind::kClosed, {});
  push_now();
}

base::Outcome PeerSocket::start() {
  {
    const std::lock_guard lock(mutex_);
    if (is_started_) return {};
    socket_.limit_silence(base::parameters().failover_timeout_ms);
    auto outcome = base::EventLoop::instance().watch(
        socket_.fd(), base::Interest::kDataOrRoom,
        [](void* context) { static_cast<PeerSocket*>(context)->read(); }, this);
    if (!outcome) return outcome;
    is_started_ = true;
  }
  read();  // process bytes that the encryption layer has buffered, because epoll does not report them
  return {};
}

void PeerSocket::send(uint64_t connection, std::span<const uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  if (is_closed()) return;
  append(connection, FrameKind::kBytes, bytes);
  push_now();
}

void PeerSocket::push() {
  const std::lock_guard lock(mutex_);
  push_now();
}

void PeerSocket::append(uint64_t connection, FrameKind kind, std::span<const uint8_t> bytes) {
  const FrameHeader header{connection, static_cast<uint32_t>(bytes.size()), kind};
  const auto* head = reinterpret_cast<const uint8_t*>(&header);
  unsent_.insert(unsent_.end(), head, head + sizeof(header));
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
}

void PeerSocket::push_now() {
  size_t sent = 0;
  while (sent < unsent_.size()) {
    const size_t now = socket_.send_some(unsent_.data() + sent, unsent_.size() - sent);
    if (now == 0) break;
    sent += now;
  }
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<ptrdiff_t>(sent));
  has_unsent_.store(!unsent_.empty(), std::memory_order_relaxed);
}

// Checks first whether the peer has closed, so that everything the peer sent before is read.
void PeerSocket::read() {
  const std::lock_guard lock(mutex_);
  if (is_closed()) return;
  bool is_over = socket_.is_peer_closed();
  push_now();
  if (read_ready()) {
    std::array<uint8_t, 4096> bytes;
    while (const size_t count = socket_.receive_some(bytes.data(), bytes.size())) {
      if (digest(std::span(bytes).first(count))) continue;
      base::log_warn("control socket of %s: invalid frame (kind %u, %u bytes)%s",
                     base::describe(socket_.peer()).c_str(), static_cast<unsigned>(incoming_.kind),
                     incoming_.length_bytes, kPeerAdvice);
      is_over = true;
      break;
    }
  }
  if (is_over || socket_.is_spoilt()) close_all();
}

// Returns true once the socket carries frames.
bool PeerSocket::read_ready() {
  if (end_ == ConnectionEnd::kSender) return true;
  auto* bytes = reinterpret_cast<uint8_t*>(&ready_);
  while (ready_bytes_ < sizeof(ready_)) {
    const size_t count = socket_.receive_some(bytes + ready_bytes_, sizeof(ready_) - ready_bytes_);
    if (count == 0) return false;
    ready_bytes_ += count;
  }
  return true;
}

// Returns false if the bytes are not a valid frame. Drops frames for connections that this end has closed.
bool PeerSocket::digest(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (header_bytes_ < sizeof(incoming_)) {
      const size_t count = std::min(bytes.size(), sizeof(incoming_) - header_bytes_);
      std::memcpy(reinterpret_cast<uint8_t*>(&incoming_) + header_bytes_, bytes.data(), count);
      bytes = bytes.subspan(count);
      header_bytes_ += count;
      if (header_bytes_ < sizeof(incoming_)) return true;
      if (!protocol::is_sane(incoming_)) return false;
      left_bytes_ = incoming_.length_bytes;
    }
    const auto user = users_.find(incoming_.connection);
    const auto part = bytes.first(std::min<size_t>(bytes.size(), left_bytes_));
    if (user != users_.end()) {
      if (incoming_.kind == FrameKind::kClosed) user->second->note_closed();
      if (!part.empty()) user->second->take(part);
    }
    bytes = bytes.subspan(part.size());
    left_bytes_ -= static_cast<uint32_t>(part.size());
    if (left_bytes_ == 0) header_bytes_ = 0;
  }
  return true;
}

void PeerSocket::close_all() {
  is_closed_.store(true, std::memory_order_relaxed);
  unsent_ = {};
  has_unsent_.store(false, std::memory_order_relaxed);
  for (const auto& [connection, user] : users_) user->note_closed();
}

// --- PeerSockets.

PeerSockets& PeerSockets::instance() {
  static const base::Lasting<PeerSockets> sockets;
  return *sockets;
}

bool PeerSockets::is_idle() {
  const std::lock_guard lock(mutex_);
  return sockets_.empty();
}

void PeerSockets::add(const std::shared_ptr<PeerSocket>& socket, const ProcessId& peer, uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (socket->is_registered_) sockets_.erase(name(*socket));
  socket->peer_ = peer;
  socket->id_ = id;
  socket->is_registered_ = true;
  sockets_[name(*socket)] = socket;
}

void PeerSockets::remove(const PeerSocket& socket) {
  const std::lock_guard lock(mutex_);
  sockets_.erase(name(socket));
}

// The peer also has every socket that is ready here, unless the socket is just closing or the handshake that
// creates it is not complete at the peer; then the peer declines the offer. If two processes connect to each
// other at the same time, the process with the greater id uses the socket that it opened itself, so that the
// processes share one socket and not two. For connections within one process, each end uses only sockets of
// its own kind.
PeerSockets::Choice PeerSockets::find_to_offer(const ProcessId& peer) {
  const auto own = find_process_id();
  if (!own) return {};
  // Outlives the lock, because the last reference may be dropped here.
  std::vector<std::shared_ptr<PeerSocket>> looked_at;
  const std::lock_guard lock(mutex_);
  Choice choice;
  for (auto entry = sockets_.lower_bound({peer, 1, nullptr});
       entry != sockets_.end() && std::get<ProcessId>(entry->first) == peer; ++entry) {
    looked_at.push_back(entry->second.lock());
    const auto& socket = looked_at.back();
    if (socket == nullptr || socket->is_closed()) continue;
    const bool is_call = socket->end() == ConnectionEnd::kSender;
    if (is_call && peer == *own) continue;
    if (socket->is_standing()) return {socket, false};
    if (!is_call) choice.socket = socket;
    if (is_call && *own > peer) choice.is_late = true;
  }
  if (*own > peer && is_calling(peer)) choice.is_late = true;
  return choice;
}

PeerSockets::Choice PeerSockets::find_offered(const ProcessId& peer, uint64_t id) {
  const auto own = find_process_id();
  if (!own) return {};
  std::shared_ptr<PeerSocket> socket;  // outlives the lock, as in find_to_offer()
  const std::lock_guard lock(mutex_);
  for (auto entry = sockets_.lower_bound({peer, id, nullptr});
       entry != sockets_.end() && std::get<ProcessId>(entry->first) == peer &&
       std::get<uint64_t>(entry->first) == id;
       ++entry) {
    auto found = entry->second.lock();
    if (found != nullptr && (peer != *own || found->end() == ConnectionEnd::kSender)) socket.swap(found);
  }
  if (socket == nullptr) return {nullptr, is_calling(peer)};
  if (socket->is_open()) return {socket, false};
  return {nullptr, socket->end() == ConnectionEnd::kSender};
}

// Returns whether this process has an unanswered connection attempt to the peer.
bool PeerSockets::is_calling(const ProcessId& peer) const {
  const auto entry = sockets_.lower_bound({peer, 0, nullptr});
  return entry != sockets_.end() && std::get<ProcessId>(entry->first) == peer &&
         std::get<uint64_t>(entry->first) == 0;
}

}  // namespace verbena::transport
