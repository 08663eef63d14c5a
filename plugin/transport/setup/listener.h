// Waits for one sender on a TCP port. The port's address and a nonce form the handle that NCCL passes to the
// peer.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/socket.h"
#include "protocol/handshake.h"
#include "transport/setup/acceptor.h"
#include "transport/setup/handshake_watch.h"

namespace verbena::transport {

class Listener final : public WatchedHandshake {
 public:
  static base::Result<std::unique_ptr<Listener>> open(const Nic& nic, protocol::Handle* handle);

  // Returns null until the connection of a peer is established. Unauthenticated clients are logged and
  // disconnected. Sets `*device_handle` to the address of the unpack queue's handle, or to null.
  base::Result<std::unique_ptr<Receiver>> poll(const AcceptOptions& options, void** device_handle);
  ~Listener();
  const Nic& nic() const { return nic_; }

 private:
  Listener(const Nic& nic, base::Listener socket, uint64_t nonce);
  void drop_stranger();
  StateDump dump_from_outside() const override;

  const Nic& nic_;
  base::Listener socket_;
  uint64_t nonce_;
  base::Deadline deadline_;
  bool is_polled_ = false;  // the deadline starts with the first poll
  bool has_told_of_strangers_ = false;
  std::atomic<bool> is_over_{false};  // the connection is established, so no further peer is expected
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
};

}  // namespace verbena::transport
