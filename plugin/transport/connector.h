// The connecting (sending) side's half of the handshake, polled until it yields a Sender. Owns everything
// made so far: dropping it half-way leaks nothing.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/socket.h"
#include "protocol/handshake.h"
#include "transport/nic.h"
#include "transport/sender.h"

namespace verbena::transport {

class Connector {
 public:
  // `handle` has passed protocol::check_handle.
  static base::Result<std::unique_ptr<Connector>> start(const Nic& nic, const protocol::Handle& handle,
                                                        int traffic_class);
  // Null until the connection stands. An error ends the attempt.
  base::Result<std::unique_ptr<Sender>> poll();
  uint64_t nonce() const { return handle_.header.nonce; }

 private:
  enum class Step : uint8_t { kConnecting, kSendingHello, kAwaitingWelcome, kSendingReady, kStanding };

  Connector(const Nic& nic, const protocol::Handle& handle, base::Socket socket);
  base::Outcome prepare(int traffic_class);
  base::Result<bool> advance();
  base::Outcome accept_welcome();
  base::Error fail_refused() const;
  base::Result<std::unique_ptr<Sender>> finish();

  const Nic& nic_;
  protocol::Handle handle_;
  base::Socket socket_;
  std::string peer_;
  base::Deadline deadline_;
  Step step_ = Step::kConnecting;
  size_t offset_bytes_ = 0;  // of the message that is being sent or received
  Link link_;
  ControlMemory control_;
  protocol::Hello hello_{};
  protocol::Welcome welcome_{};
  protocol::Ready ready_{};
};

}  // namespace verbena::transport
