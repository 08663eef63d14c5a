// The parts that both ends of a connection share: the link, the control socket to the peer, the progress
// token (progress_token.h), the state dump (registry.h), the failed rails with their causes, the first error,
// and the counters. Sender and Receiver derive from Connection and from a core of protocol/. The core makes
// the decisions; the derived class gives the core access to verbs. Only the thread that holds the progress
// token uses a connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "observe/connection.h"
#include "protocol/connection_core.h"
#include "protocol/recovery.h"
#include "transport/failed_rails.h"
#include "transport/link/link.h"
#include "transport/peer_channel.h"
#include "transport/service/progress_token.h"
#include "transport/service/registry.h"

namespace verbena::transport {

class Connection : public ProgressToken, public RegistryMember {
 public:
  // Call once, before the first post. From then on the service thread may serve the connection. Failover
  // recovers queue pairs that were not connected during setup.
  base::Outcome open();
  // Must be the last call before destruction. After the call returns, no other thread uses the connection.
  void close();
  // Returns null if the connection is not observed.
  observe::Connection* observed() const { return observed_.get(); }

 protected:
  Connection(observe::Direction direction, Link link, std::unique_ptr<PeerChannel> channel,
             const protocol::QueuePairStates& lives);
  ~Connection() = default;

  // Returns the first error, which is final. Does not need the progress token.
  base::Outcome outcome() const { return first_error_.load(std::memory_order_relaxed); }
  base::Outcome stick(base::Error error);

  // --- The port of either core (protocol/connection_core.h).
  int64_t now_ns() const { return base::monotonic_ns(); }
  int64_t patience_ns() const;
  bool has_failed() const { return outcome().has_failed(); }
  bool is_peer_closed() const { return channel_->is_closed(); }
  bool is_grace_over() { return channel_->is_grace_over(); }
  [[gnu::cold, gnu::noinline]] bool fail(protocol::Failure fault, uint32_t number, uint32_t queue_pair = 0);
  bool take_news();
  void send_record(const protocol::RecoveryRecord& record, const protocol::ArrivedRecord* arrived) {
    channel_->send(record, arrived);
  }
  const protocol::RecoveryRecord* receive_record(const protocol::ArrivedRecord** arrived) {
    return channel_->receive(arrived);
  }
  void push_records() {
    if (channel_->has_unsent()) channel_->push();
  }
  bool has_unsent() const { return channel_->has_unsent(); }
  uint32_t free_slots(uint32_t queue_pair) { return link_.pair(queue_pair).free_slots(); }
  bool is_usable(uint32_t queue_pair) const { return link_.is_replaceable(queue_pair); }
  void stop_pair(uint32_t queue_pair) { link_.pair(queue_pair).stop(); }
  void retire_pair(uint32_t queue_pair) { link_.retire_pair(queue_pair); }
  bool renew_pair(uint32_t queue_pair, protocol::RecoveryRecord& record) {
    return link_.renew(queue_pair, &record.pair, &record.rail).is_ok();
  }
  bool connect_pair(uint32_t queue_pair, const protocol::RecoveryRecord& peer) {
    return link_.connect_one(queue_pair, peer.rail, peer.pair).is_ok();
  }
  void give_up_dying_pairs(int64_t waited_ns);
  void give_up_silent_pair(uint32_t queue_pair);
  void note_lost(uint32_t queue_pair);
  void note_lost_at_peer(uint32_t queue_pair);
  void note_loss(uint32_t queue_pair) { failed_.log_loss(queue_pair); }
  void note_revived(uint32_t queue_pair);
  void note_post_end() { observed_->end_post(); }
  void note_chunk(uint32_t sequence, bool is_staged, uint32_t queue_pair, uint64_t bytes);
  void note_done(uint32_t sequence, uint64_t bytes) { observed_->note_done(sequence, bytes); }

  // --- For Sender and Receiver. Reports a failed queue pair to the core, unless the queue pair is already
  // out of use. The cause is in failed_. `sequence` is the message whose request failed.
  [[gnu::cold, gnu::noinline]] void note_failed(const verbs::Completion& completion, uint32_t queue_pair,
                                                uint32_t sequence);
  // Gives up a queue pair. The recorded cause is the name of the queue pair followed by `what`.
  void give_up(uint32_t queue_pair, const char* what);
  [[gnu::cold, gnu::noinline]] bool fail_completion_queue();
  // Logs a warning and requests a state dump: `cause` has lasted for `waited_ns`.
  void report_stall(const std::string& cause, uint32_t open, int64_t waited_ns);
  // Returns `send to <peer>` or `receive from <peer>`, as in every line of the log.
  std::string describe_briefly() const;

  // --- Functions that each end implements. They are on slow paths only.
  virtual void fail_pair(uint32_t queue_pair, bool is_final, uint32_t sequence) = 0;  // calls its core
  virtual uint32_t oldest_message() const = 0;
  // Returns this end's own description of a fault, or an empty string to use the general description.
  virtual std::string explain(protocol::Failure fault, uint32_t number) const = 0;
  virtual StateDump describe() = 0;  // needs the progress token
  // Returns the state dump for a system on which another thread cannot read the state.
  StateDump dump_nothing() const;
  // describe_head() returns the first line of the state dump. explain_device_wait() returns its last line,
  // which is empty if the device is not waiting.
  std::string explain_device_wait() const;
  std::string describe_head(int64_t waiting_since_ns, uint32_t open, bool is_seen_from_outside) const;
  bool is_idle(uint32_t open) const { return open == 0 && lives_.are_all_live() && !has_failed(); }

  Link link_;
  std::unique_ptr<PeerChannel> channel_;
  FailedRails failed_;
  std::shared_ptr<observe::Connection> observed_;  // null if no output is enabled

 private:
  bool dump_state(StateDump& dump) final;
  void dump_now();
  std::string describe_fault(protocol::Failure fault, uint32_t number, uint32_t queue_pair) const;

  const observe::Direction direction_;
  const protocol::QueuePairStates& lives_;
  std::atomic<base::Outcome> first_error_{base::Outcome()};  // written only with the progress token
  const int64_t opened_at_ns_ = base::monotonic_ns();
  // close() clears it, though the service thread may still report an error.
  std::atomic<bool> is_registered_{false};
  std::atomic<bool> is_asked_{false};
};

}  // namespace verbena::transport
