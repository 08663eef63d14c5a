#include "transport/peer_watch.h"

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/parameters.h"

namespace verbena::transport {

base::Result<std::unique_ptr<PeerWatch>> PeerWatch::start(base::Socket socket, std::string peer) {
  auto watch = std::unique_ptr<PeerWatch>(new PeerWatch);
  watch->socket_ = std::move(socket);
  watch->peer_ = std::move(peer);
  auto outcome = base::EventLoop::instance().watch(
      watch->socket_.fd(), base::Interest::kPeerClosed,
      [](void* context) { static_cast<PeerWatch*>(context)->closed_.store(true, std::memory_order_release); },
      watch.get());
  if (!outcome) return outcome.error();
  return watch;
}

PeerWatch::~PeerWatch() {
  if (socket_) base::EventLoop::instance().unwatch(socket_.fd());
}

bool PeerWatch::is_grace_over() {
  const int64_t now_ns = base::monotonic_ns();
  if (noticed_ns_ == 0) noticed_ns_ = now_ns;
  return now_ns - noticed_ns_ >= base::parameters().peer_grace_ms * base::kNsPerMs;
}

}  // namespace verbena::transport
