// The parts that both ends of a connection share, besides moving messages: they detect that a queue pair has
// failed, agree with the peer on the chunks to send again (recovery.h), and limit every wait.
//
// Pure: no clock, socket, verbs, CUDA or allocation. For all of these the core calls `Port`, the class that
// derives from SendCore<Port, ...> or ReceiveCore<Port, ...>. The calls are bound at compile time, so they
// cost nothing in the plugin (transport/sender.h, transport/receiver.h). tests/protocol/simulation runs the
// same code over a simulated network with a seed. Functions that a port offers, for either end:
//
//   time         now_ns()
//                patience_ns(): after this time a device no longer reports the result of a request
//   lock         enter() -> bool: this thread now holds the connection; leave()
//                is_wanted(), want(), take_news() -> bool
//   failure      has_failed(), is_peer_closed(), is_grace_over()
//                fail(Failure, number, queue_pair) -> false
//   records      send_record(record, arrived), receive_record(&arrived), push_records(), has_unsent()
//   queue pairs  free_slots(q), poll_completions() -> bool, is_usable(q), stop_pair(q), retire_pair(q)
//                renew_pair(q, record) -> bool, connect_pair(q, record) -> bool
//                and two that end in fail_queue_pair(): give_up_dying_pairs(waited_ns), for queue pairs that
//                are known not to work any more, and give_up_silent_pair(q)
//   events       note_lost(q): the queue pair has failed
//                note_lost_at_peer(q): the peer reported this failure before this end detected it
//                note_loss(q): both ends know of the failure; note_revived(q), warn_of_stall()
//
// One thread at a time uses a core. A function that returns bool returns false once the connection has
// failed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/recovery.h"
#include "protocol/statistics.h"
#include "protocol/wait_monitor.h"

namespace verbena::protocol {

inline constexpr uint32_t kMaxRecordsPerLook = 64;  // each queue pair needs only a few during its life

// Why a core gives up the connection. In parentheses: the meaning of the number passed to fail(); by default
// it is the number of a message.
enum class Failure : uint8_t {
  kRequest,        // `queue_pair` rejected a request that would fail on any queue pair
  kOverdue,        // no queue pair is left, or the peer does not answer (the waiting message)
  kPeerGone,       // the same, and the peer is gone (the waiting message)
  kPeerClosed,     // the peer closed while messages were open (the waiting message)
  kBroken,         // no further data can arrive
  kRecord,         // a recovery record is invalid (its kind)
  kCreditsOfLine,  // more credits were returned than were taken (unused; on `queue_pair`)
  kCreditsOfNote,  // the same, in a grant
  kGrantAhead,     // a grant for a message too far ahead
  kConsumed,       // consumed before it was sent
  kShortRoom,      // the message is longer than its receive
  kDeviceLoss,     // the peer's device lost data that it had acknowledged, on `queue_pair`
  kChunk,          // a chunk is invalid (unused; on `queue_pair`)
  kUncredited,     // a chunk arrived without a credit (unused; on `queue_pair`)
  kOtherLength,    // a chunk has another length than announced (unused; on `queue_pair`)
  kLongStaged,     // a staged message is longer than allowed
  kSilentCopy,     // this end's device does not complete its copy or flush
  kSilentFlush,    // the same for an iflush (the number of the flush)
};

template <typename Port, typename Recovery>
class ConnectionCore {
 public:
  ConnectionCore(uint32_t queue_pairs, const RecoveryTimes& times, int64_t stall_ns)
      : wait_(stall_ns), recovery_(queue_pairs, times) {}

  const Recovery& recovery() const { return recovery_; }
  const Statistics& statistics() const { return statistics_; }
  uint32_t open_requests() const { return open_; }
  const WaitMonitor& wait() const { return wait_; }
  const WaitStamps& wait_stamps() const { return wait_stamps_; }

  // Handles a queue pair that has failed or must be given up; the port knows the cause. If it has failed
  // before, the requests are flushed ones. `is_final` means that request `sequence` would fail on any other
  // queue pair too.
  [[gnu::cold, gnu::noinline]] void fail_queue_pair(uint32_t queue_pair, bool is_final, uint32_t sequence) {
    if (!recovery_.is_in_use(queue_pair)) return;
    if (is_final) return port().end_for_good(queue_pair, sequence);
    if (recovery_.is_live(queue_pair)) count_lost(queue_pair);
    auto host = port().recovery_host();
    recovery_.fail(host, queue_pair, port().now_ns());
    port().update_rails();
  }

  // Called by the service thread. Between requests NCCL makes no calls, but the peer may need an answer, or a
  // queue pair may be due to be created again. Returns the time of the next call that is needed without a
  // request, or kNever.
  int64_t serve() {
    if (port().has_failed() || !port().poll_completions() || !recover() || recovery_.are_all_live())
      return kNever;
    const int64_t poll_ns = port().now_ns() + recovery_.times().poll_ns;
    const bool is_polling = port().has_unsent() || recovery_.is_polling();
    return is_polling ? poll_ns : std::max(poll_ns, recovery_.find_next_ns());
  }

 protected:
  Port& port() { return static_cast<Port&>(*this); }

  // Returns whether a wait must be checked in every test call because it may have to end in an error. With
  // busy CPUs, tests are rare.
  bool is_pressing() {
    return port().is_peer_closed() || (!recovery_.are_all_live() && recovery_.find_waiting_since() != kNever);
  }

  // Called in the data thread's calls while there is a failure or data from the peer, and in serve().
  [[gnu::cold, gnu::noinline]] bool recover() {
    const bool has_news = port().take_news();
    // Read before the poll, so that the poll finds all data sent before the close.
    const bool is_closed = port().is_peer_closed();
    const int64_t now_ns = port().now_ns();
    if (has_news && !absorb_records(now_ns)) return false;
    auto host = port().recovery_host();
    recovery_.step(host, now_ns);
    port().push_records();
    if (is_closed && recovery_.find_waiting_since() != kNever) port().lose_peer();
    return !port().has_failed() && port().resume();
  }

  // For a long wait: gives up queue pairs that no longer work, and checks whether the wait can still end.
  bool check_rails(uint32_t waiting_message) {
    const int64_t waited_ns = wait_.waited_ns();
    port().give_up_dying_pairs(waited_ns);
    if (port().has_failed()) return false;
    const bool is_over = waited_ns >= recovery_.times().limit_ns && recovery_.is_overdue(port().now_ns());
    return is_over ? port().fail(Failure::kOverdue, waiting_message) : true;
  }
  // By the end of the grace time, all data that the peer sent before it was gone has arrived.
  bool check_peer(uint32_t waiting_message) {
    if (!port().is_peer_closed() || !port().is_grace_over()) return true;
    return port().fail(Failure::kPeerClosed, waiting_message);
  }

  // Call this when a request is done. If another thread wants the connection, it gets the connection.
  void finish_request() {
    if (--open_ == 0) rest();
  }
  void rest() {
    if (!recovery_.are_all_live()) [[unlikely]]
      port().want();
    port().leave();
  }

  WaitMonitor wait_;
  WaitStamps wait_stamps_;
  Recovery recovery_;
  uint32_t open_ = 0;  // number of open requests
  Statistics statistics_;

 private:
  bool absorb_records(int64_t now_ns) {
    const ArrivedRecord* arrived = nullptr;
    for (uint32_t left = kMaxRecordsPerLook;; --left) {
      if (left == 0) return port().want(), true;  // the service thread may have other connections to serve
      const RecoveryRecord* record = port().receive_record(&arrived);
      if (record == nullptr) return true;
      const bool is_sound = is_sane(*record, recovery_.queue_pairs());
      if (is_sound && tells_of_loss(*record)) {
        port().note_lost_at_peer(record->queue_pair);
        count_lost(record->queue_pair);
      }
      if (!is_sound || !port().absorb_record(*record, arrived, now_ns))
        return port().fail(Failure::kRecord, static_cast<uint32_t>(record->kind), record->queue_pair);
      port().update_rails();
    }
  }
  // Returns whether this record reports the failure of a queue pair that still works here.
  bool tells_of_loss(const RecoveryRecord& record) const {
    return record.kind == RecoveryKind::kDown && recovery_.is_live(record.queue_pair) &&
           record.generation == recovery_.generation(record.queue_pair);
  }
  void count_lost(uint32_t queue_pair) {
    ++statistics_.failed_queue_pairs;
    port().note_lost(queue_pair);
  }
};

}  // namespace verbena::protocol
