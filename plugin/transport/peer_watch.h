// The control socket of an established connection. It carries nothing any more; that it closes is how an end
// learns, without a system call of its own, that the other one is gone.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/socket.h"
#include "base/status.h"

namespace verbena::transport {

class PeerWatch {
 public:
  // Watched from here on by the process's event thread.
  static base::Result<std::unique_ptr<PeerWatch>> start(base::Socket socket, std::string peer);
  ~PeerWatch();

  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  // Only for the slow path. True once the peer has been gone for VERBENA_PEER_GRACE_MS: what it sent before
  // has arrived by then.
  bool is_grace_over();
  const std::string& peer() const { return peer_; }

 private:
  PeerWatch() = default;

  base::Socket socket_;
  std::string peer_;
  std::atomic<bool> closed_{false};
  int64_t noticed_ns_ = 0;  // when is_grace_over() first saw it; data thread only
};

}  // namespace verbena::transport
