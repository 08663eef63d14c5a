// The listening (receiving) side of one handshake. The caller polls it until it returns a Receiver. It owns
// all objects created so far, so destroying it early leaks nothing.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "protocol/handshake.h"
#include "transport/handshake_auth.h"
#include "transport/link/nic.h"
#include "transport/link/rail_pairing.h"
#include "transport/receiver.h"
#include "transport/setup/handshake_watch.h"
#include "transport/transport.h"

namespace verbena::transport {

class Acceptor final : public WatchedHandshake {
 public:
  // The listener owns `has_told_of_strangers`. It is set after the first warning about an unauthenticated
  // client; later lines are not warnings.
  Acceptor(const Nic& nic, uint64_t nonce, base::Socket socket, bool* has_told_of_strangers);
  ~Acceptor();

  enum class Verdict : uint8_t { kWaiting, kStanding, kStranger };
  // Returns kStranger if the client is not a peer or, with a job key, has not authenticated itself. poll()
  // has logged this, and the listener continues. Returns an error if the client is the peer but the
  // connection cannot be made.
  base::Result<Verdict> poll(const AcceptOptions& options);
  // Call this once, after poll() has returned kStanding.
  base::Result<std::unique_ptr<Receiver>> finish();
  // Returns the handle by which NCCL's kernels find the unpack queue, or null if this connection has none.
  // Valid after kStanding.
  void* device_handle() const { return device_handle_; }
  // Returns whether the client has not sent its connect request yet.
  bool is_unknown() const { return get_step() == Step::kAwaitingHello; }
  // Returns whether the client may be replaying the messages of another process. Only with a job key, and
  // until the handshake is complete.
  bool is_unproven() const { return auth_.is_keyed() && get_step() != Step::kStanding; }

 private:
  enum class Step : uint8_t {
    kAwaitingHello,
    kPlacing,
    kJoining,
    kSendingWelcome,
    kAwaitingReady,
    kStanding
  };

  Step get_step() const { return step_.load(std::memory_order_relaxed); }
  StateDump dump_from_outside() const override;
  base::Result<bool> advance();
  base::Result<bool> receive_hello();
  bool place();
  base::Result<bool> join();
  base::Outcome confirm_ready();
  base::Result<Verdict> judge_hello(const AcceptOptions& options);
  base::Result<Verdict> turn_away(const base::Error& error) const;
  Verdict dismiss(const std::string& cause);
  void refuse(protocol::Refusal refusal);
  base::Error refuse_unreachable();
  void choose_paths();
  bool leave_failed_rails();
  base::Outcome build(const AcceptOptions& options);
  base::Outcome take_entries(const AcceptOptions& options);
  base::Result<bool> take_entries_of(const std::shared_ptr<BouncePool>& pool,
                                     const BouncePool::WindowRequest& request);
  uint32_t count_pairs(uint32_t rail) const;
  base::Outcome make_link(int traffic_class);
  void offer_loopback();
  void describe_welcome();
  base::Outcome set_up_unpack();
  void give_back();

  const Nic& nic_;
  uint64_t nonce_;
  bool* has_told_of_strangers_;
  std::shared_ptr<PeerSocket> own_;       // the socket of this handshake
  std::unique_ptr<PeerChannel> channel_;  // uses the offered socket, if one was offered
  std::string peer_;
  base::Deadline deadline_, placing_deadline_;
  std::atomic<Step> step_{Step::kAwaitingHello};  // only poll() changes it; relaxed
  size_t offset_bytes_ = 0;
  protocol::Hello hello_{};
  protocol::Welcome welcome_{};
  protocol::Ready ready_{};
  HandshakeAuth auth_;
  std::vector<verbs::LocalAddress> addresses_;  // of the local rails, as sent to the peer
  std::vector<RailPath> paths_;                 // one for each queue pair
  std::optional<Receiver::Parts> parts_;
  void* device_handle_ = nullptr;
};

}  // namespace verbena::transport
