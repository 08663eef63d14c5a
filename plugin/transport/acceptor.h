// The listening (receiving) side's half of one handshake, polled until it yields a Receiver. Owns everything
// made so far: dropping it half-way leaks nothing.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "protocol/handshake.h"
#include "transport/handshake_auth.h"
#include "transport/handshake_watch.h"
#include "transport/nic.h"
#include "transport/rail_pairing.h"
#include "transport/receiver.h"

namespace verbena::transport {

struct AcceptOptions {
  int traffic_class = -1;
  bool unpacks = false;  // the caller gave a device handle to fill
};

class Acceptor final : public WatchedHandshake {
 public:
  Acceptor(const Nic& nic, uint64_t nonce, base::Socket socket);
  ~Acceptor();

  enum class Verdict : uint8_t { kWaiting, kStanding, kStranger };
  // kStranger: whoever called is no peer of ours; it was logged, the listener goes on. An error: it was our
  // peer, and the connection cannot be made.
  base::Result<Verdict> poll(const AcceptOptions& options);
  // Once, after kStanding.
  base::Result<std::unique_ptr<Receiver>> finish();
  // Where NCCL's kernels find the unpack queue; null if this connection has none. Valid after kStanding.
  void* device_handle() const { return device_handle_; }
  // Has not said yet who it is.
  bool is_unknown() const { return get_step() == Step::kAwaitingHello; }

 private:
  enum class Step : uint8_t { kAwaitingHello, kSendingWelcome, kAwaitingReady, kStanding };

  Step get_step() const { return step_.load(std::memory_order_relaxed); }
  Telling tell_from_outside() const override;
  base::Result<bool> advance();
  base::Result<bool> receive_hello();
  base::Outcome confirm_ready();
  base::Result<Verdict> judge_hello(const AcceptOptions& options);
  base::Outcome check_key();
  base::Outcome make_welcome(const AcceptOptions& options);
  void refuse(protocol::Refusal refusal);
  base::Error refuse_unreachable();
  std::vector<RailPath> choose_paths();
  base::Outcome build(const AcceptOptions& options);
  base::Outcome take_entries(const AcceptOptions& options);
  base::Result<bool> take_entries_of(const std::shared_ptr<BouncePool>& pool, const BouncePool::Wish& wish);
  base::Outcome make_link(int traffic_class);
  base::Outcome make_loopback(int traffic_class);
  void describe_welcome(const AcceptOptions& options);
  base::Outcome set_up_unpack();
  void give_back();

  const Nic& nic_;
  uint64_t nonce_;
  base::Socket socket_;
  std::string peer_;
  base::Deadline deadline_;
  std::atomic<Step> step_{Step::kAwaitingHello};  // changed by poll() alone; relaxed
  size_t offset_bytes_ = 0;
  protocol::Hello hello_{};
  protocol::Welcome welcome_{};
  protocol::Ready ready_{};
  HandshakeAuth auth_;
  std::vector<verbs::LocalAddress> addresses_;  // of our rails, as the peer is told
  std::vector<RailPath> paths_;                 // one a queue pair
  std::optional<Receiver::Parts> parts_;
  void* device_handle_ = nullptr;
};

}  // namespace verbena::transport
