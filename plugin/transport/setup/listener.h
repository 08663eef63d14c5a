// Where one sender is awaited: a TCP port whose address, with a nonce, is the handle that NCCL carries to the
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

  // Null until a peer's connection stands; strangers are logged and dropped. `*device_handle` then is the
  // address of the unpack queue's handle, or null.
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
  bool is_polled_ = false;  // the deadline runs from the first poll
  bool has_told_of_strangers_ = false;
  std::atomic<bool> is_over_{false};  // a connection stands: nobody is awaited any more
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
};

}  // namespace verbena::transport
