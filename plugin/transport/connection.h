// What both ends of a connection have once: the link and the control socket to the peer, whose turn it is
// (progress_token.h), what it tells of itself when it is asked (registry.h), the rails that have failed and
// why, the first error, and what is observed of it. Sender and Receiver are this, a core of protocol/ that
// decides, and the few functions by which the core reaches verbs. One thread at a time: whoever has the turn.
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
  // Once, before the first post: from here on the service thread may serve it. Queue pairs that were not
  // joined are taken up by failover.
  base::Outcome open();
  // The last call before destruction: no other thread is at work on it any more.
  void close();
  // Null: it is not observed.
  observe::Connection* observed() const { return observed_.get(); }

 protected:
  Connection(observe::Direction direction, Link link, std::unique_ptr<PeerChannel> channel,
             const protocol::QueuePairStates& lives);
  ~Connection() = default;

  // The first error; it is final. Also without the turn.
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

  // --- For Sender and Receiver.
  // Of a queue pair in use that has failed: the core is told, with the cause in failed_. `sequence`: the
  // message whose request it was.
  [[gnu::cold, gnu::noinline]] void note_failed(const verbs::Completion& completion, uint32_t queue_pair,
                                                uint32_t sequence);
  // `what` becomes the cause, behind the queue pair's name.
  void give_up(uint32_t queue_pair, const char* what);
  [[gnu::cold, gnu::noinline]] bool fail_completion_queue();
  // A line, and a report: `cause` has lasted for `waited_ns`.
  void report_stall(const std::string& cause, uint32_t open, int64_t waited_ns);
  // `send to <peer>`, as in every line of the log.
  std::string describe_briefly() const;

  // --- What only the end itself knows. Slow paths.
  virtual void fail_pair(uint32_t queue_pair, bool is_final, uint32_t sequence) = 0;  // its core's
  virtual uint32_t oldest_message() const = 0;
  // What is special in its words about a fault; empty: nothing.
  virtual std::string explain(protocol::Failure fault, uint32_t number) const = 0;
  virtual StateDump describe() = 0;  // with the turn
  // Where not even a look from outside is possible.
  StateDump dump_nothing() const;
  // The first line of its state, as `waiting_since_ns` and `open` say; the last.
  // Empty if the device has nothing to say.
  std::string explain_device_wait() const;
  std::string describe_head(int64_t waiting_since_ns, uint32_t open, bool is_seen_from_outside) const;
  bool is_idle(uint32_t open) const { return open == 0 && lives_.are_all_live() && !has_failed(); }

  Link link_;
  std::unique_ptr<PeerChannel> channel_;
  FailedRails failed_;
  std::shared_ptr<observe::Connection> observed_;  // null: nobody wants to know

 private:
  bool dump_state(StateDump& dump) final;
  void dump_now();
  std::string describe_fault(protocol::Failure fault, uint32_t number, uint32_t queue_pair) const;

  const observe::Direction direction_;
  const protocol::QueuePairStates& lives_;
  std::atomic<base::Outcome> first_error_{base::Outcome()};  // written with the turn
  const int64_t opened_at_ns_ = base::monotonic_ns();
  std::atomic<bool> is_registered_{false};  // close() ends it while the service may still find an error
  std::atomic<bool> is_asked_{false};
};

}  // namespace verbena::transport
