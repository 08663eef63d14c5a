// The connecting (sending) side of the handshake. The caller polls it until it returns a Sender. It owns all
// objects created so far, so destroying it early leaks nothing.
#pragma once

#include <atomic>
#include <memory>

#include "base/clock.h"
#include "base/socket.h"
#include "protocol/handshake.h"
#include "transport/handshake_auth.h"
#include "transport/link/nic.h"
#include "transport/sender.h"
#include "transport/setup/handshake_watch.h"

namespace verbena::transport {

class Connector final : public WatchedHandshake {
 public:
  // `handle` must have passed protocol::check_handle.
  static base::Result<std::unique_ptr<Connector>> start(const Nic& nic, const protocol::Handle& handle,
                                                        int traffic_class);
  // Returns null until the connection is established. An error ends the attempt.
  base::Result<std::unique_ptr<Sender>> poll();
  ~Connector();
  uint64_t nonce() const { return handle_.header.nonce; }

 private:
  enum class Step : uint8_t {
    kConnecting,
    kSendingHello,
    kAwaitingWelcome,
    kJoining,
    kPlacing,
    kSendingReady,
    kStanding
  };

  Connector(const Nic& nic, const protocol::Handle& handle, base::Socket socket);
  base::Result<bool> place();
  Step get_step() const { return step_.load(std::memory_order_relaxed); }
  base::Outcome prepare(int traffic_class);
  base::Result<bool> advance();
  base::Result<bool> receive_welcome();
  StateDump dump_from_outside() const override;
  base::Outcome accept_welcome();
  base::Error fail_refused() const;
  protocol::RailShare::Speeds find_speeds();
  base::Result<std::unique_ptr<Sender>> finish();

  const Nic& nic_;
  protocol::Handle handle_;
  std::shared_ptr<PeerSocket> own_;       // the socket of this handshake
  std::unique_ptr<PeerChannel> channel_;  // the channel of the connection
  std::string peer_;
  base::Deadline deadline_, placing_deadline_;
  std::atomic<Step> step_{Step::kConnecting};  // only poll() changes it; relaxed
  size_t offset_bytes_ = 0;                    // progress in the message that is being sent or received
  Link link_;
  ControlMemory control_;
  protocol::Hello hello_{};
  protocol::Welcome welcome_{};
  protocol::Ready ready_{};
  HandshakeAuth auth_;
};

}  // namespace verbena::transport
