#include "transport/setup/listener.h"

#include <algorithm>
#include <bit>
#include <span>

#include "base/job_key.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"

namespace verbena::transport {

namespace {

constexpr size_t kMaxHandshakes = 16;  // at the same time

base::Deadline make_deadline() {
  return base::Deadline::after_ms(base::parameters().connect_timeout_ms);
}

}  // namespace

Listener::Listener(const Nic& nic, base::Listener socket, uint64_t nonce)
    : nic_(nic), socket_(std::move(socket)), nonce_(nonce), deadline_(make_deadline()) {
  register_self();
}

Listener::~Listener() {
  unregister_self();
}

StateDump Listener::dump_from_outside() const {
  const std::string who = "accept on " + base::describe(socket_.address());
  if (is_over_.load(std::memory_order_relaxed)) return {who + ": connected\n", true};
  return {describe(who, "waits for the peer to connect")};
}

base::Result<std::unique_ptr<Listener>> Listener::open(const Nic& nic, protocol::Handle* handle) {
  auto socket = base::Listener::open();
  if (!socket) return socket.error();
  uint64_t nonce = 0;
  const std::span bytes(reinterpret_cast<uint8_t*>(&nonce), sizeof(nonce));
  if (auto drawn = base::draw_random(bytes, "listen"); !drawn) return drawn.error();
  auto process = find_process_id();
  if (!process) return process.error();
  *handle = {};
  handle->process = *process;
  handle->address = std::bit_cast<protocol::AddressRecord>(socket->address());
  handle->rails = static_cast<uint32_t>(nic.rails.size());
  handle->queue_pairs_per_rail = count_queue_pairs_per_rail(nic);
  handle->out_of_order = nic.takes_out_of_order;
  protocol::seal_handle(*handle, nonce);
  return std::unique_ptr<Listener>(new Listener(nic, std::move(*socket), nonce));
}

base::Result<std::unique_ptr<Receiver>> Listener::poll(const AcceptOptions& options, void** device_handle) {
  if (!is_polled_) {
    deadline_ = make_deadline();
    restart_watch();
  }
  is_polled_ = true;
  auto socket = socket_.accept();
  if (!socket) return socket.error();
  if (*socket) {
    if (auto outcome = base::encrypt_if_asked(**socket, base::ConnectionEnd::kReceiver); !outcome)
      return outcome.error();
    acceptors_.push_back(
        std::make_unique<Acceptor>(nic_, nonce_, std::move(**socket), &has_told_of_strangers_));
  }
  if (acceptors_.size() > kMaxHandshakes) drop_stranger();
  for (size_t i = 0; i < acceptors_.size();) {
    auto verdict = acceptors_[i]->poll(options);
    if (!verdict) {
      acceptors_.erase(acceptors_.begin() + static_cast<ptrdiff_t>(i));
      return verdict.error();
    }
    if (*verdict == Acceptor::Verdict::kStanding) {
      const auto acceptor = std::move(acceptors_[i]);
      acceptors_.clear();
      is_over_.store(true, std::memory_order_relaxed);
      *device_handle = acceptor->device_handle();
      return acceptor->finish();
    }
    if (*verdict == Acceptor::Verdict::kStranger) {
      acceptors_.erase(acceptors_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  if (!deadline_.has_passed()) {
    if (acceptors_.empty()) warn_if_stalled();
    return std::unique_ptr<Receiver>();
  }
  return base::fail(base::Status::kTimeout,
                    "accept on %s: timed out, because no peer connected (VERBENA_CONNECT_TIMEOUT_MS %lld ms)",
                    base::describe(socket_.address()).c_str(),
                    static_cast<long long>(base::parameters().connect_timeout_ms));
}

// Drops the oldest client that has sent no request, because a peer sends its request at once and silent
// clients must not keep it out. If all clients have sent one, drops the newest unauthenticated client: a
// client that replays the messages of a peer connects after that peer.
void Listener::drop_stranger() {
  const auto latest = acceptors_.end() - 1;
  auto stranger =
      std::find_if(acceptors_.begin(), latest, [](const auto& acceptor) { return acceptor->is_unknown(); });
  if (stranger == latest) {
    const auto unproven = std::find_if(std::make_reverse_iterator(latest), acceptors_.rend(),
                                       [](const auto& acceptor) { return acceptor->is_unproven(); });
    if (unproven != acceptors_.rend()) stranger = unproven.base() - 1;
  }
  base::log_info("accept on %s: disconnected a client that did not authenticate itself",
                 base::describe(socket_.address()).c_str());
  acceptors_.erase(stranger);
}

}  // namespace verbena::transport
