// What both ends of a connection do alike besides moving messages: they notice that a queue pair has failed,
// settle with the peer what is to be sent again (recovery.h), and bound every wait.
//
// Pure: no clock, socket, verbs, CUDA or allocation. Everything of that kind is asked of `Port`, the class
// that derives from SendCore<Port, ...> or ReceiveCore<Port, ...>: the calls are bound at compile time, so
// that the plugin (transport/sender.h, transport/receiver.h) pays for none, and tests/protocol/simulation
// runs the same code over a network that a seed decides. What a port has to offer, for either end:
//
//   time         now_ns()
//                patience_ns(): after this long a device no longer reports what became of a request
//   lock         enter() -> bool: the connection is this thread's; leave()
//                is_wanted(), want(), take_news() -> bool
//   failure      has_failed(), is_peer_closed(), is_grace_over()
//                fail(Failure, number, queue_pair) -> false
//   records      send_record(record, arrived), receive_record(&arrived), push_records(), has_unsent()
//   queue pairs  free_slots(q), poll_completions() -> bool, is_usable(q), stop_pair(q), retire_pair(q)
//                renew_pair(q, record) -> bool, connect_pair(q, record) -> bool
//                and two that end in fail_queue_pair(): give_up_dying_pairs(waited_ns), for queue pairs that
//                are known not to work any more, and give_up_silent_pair(q)
//   events       note_lost(q): the queue pair does not work any more
//                note_lost_at_peer(q): the same, reported by the peer before this end has seen it
//                note_loss(q): both ends know; note_revived(q), warn_of_stall()
//
// One thread at a time. A function that returns bool returns false once the connection has failed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/recovery.h"
#include "protocol/statistics.h"
#include "protocol/wait_monitor.h"

namespace verbena::protocol {

inline constexpr uint32_t kMaxRecordsPerLook = 64;  // each queue pair needs a few in its life

// Why a core gives the connection up. In brackets: the number that fail() is told, of a message unless it
// says otherwise.
enum class Failure : uint8_t {
  kRequest,        // `queue_pair` refused a request that no other would carry
  kOverdue,        // no queue pair is left, or the peer does not answer (the one that waits)
  kPeerGone,       // ... and it never will
  kPeerClosed,     // the peer closed with messages open (the one that waits)
  kBroken,         // nothing more can arrive
  kRecord,         // a recovery record makes no sense (its kind)
  kCreditsOfLine,  // more credits came back than were taken (none; of `queue_pair`)
  kCreditsOfNote,  // the same, on a grant
  kGrantAhead,     // a grant too far ahead
  kConsumed,       // consumed before it was sent
  kShortRoom,      // longer than its receive
  kDeviceLoss,     // the peer's device lost what it had acknowledged, over `queue_pair`
  kChunk,          // a chunk makes no sense (none; of `queue_pair`)
  kUncredited,     // a chunk came without a credit (none; of `queue_pair`)
  kOtherLength,    // a chunk came without the bytes that it announced, or with more (none; of `queue_pair`)
  kLongStaged,     // staged, and longer than what may be
  kSilentCopy,     // our own device does not complete its copy or flush
  kSilentFlush,    // the same of iflush (the flush)
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

  // A queue pair has failed, or is to be given up; the port knows why. One that failed before has flushed its
  // requests. `is_final`: no other queue pair would do better with request `sequence`.
  [[gnu::cold, gnu::noinline]] void fail_queue_pair(uint32_t queue_pair, bool is_final, uint32_t sequence) {
    if (!recovery_.is_in_use(queue_pair)) return;
    if (is_final) return port().end_for_good(queue_pair, sequence);
    if (recovery_.is_live(queue_pair)) count_lost(queue_pair);
    auto host = port().recovery_host();
    recovery_.fail(host, queue_pair, port().now_ns());
    port().update_rails();
  }

  // Between requests nobody calls, but the peer may need an answer, or a queue pair is due to be built anew.
  // When this is to be called again though nobody wants it; kNever.
  int64_t serve() {
    if (port().has_failed() || !port().poll_completions() || !recover() || recovery_.are_all_live())
      return kNever;
    const int64_t poll_ns = port().now_ns() + recovery_.times().poll_ns;
    const bool is_polling = port().has_unsent() || recovery_.is_polling();
    return is_polling ? poll_ns : std::max(poll_ns, recovery_.find_next_ns());
  }

 protected:
  Port& port() { return static_cast<Port&>(*this); }

  // What may have to end in an error is looked at in every test: where others have the cores, many take long.
  bool is_pressing() {
    return port().is_peer_closed() || (!recovery_.are_all_live() && recovery_.find_waiting_since() != kNever);
  }

  // In the data thread's calls while anything is wrong or the peer has sent something, and in serve().
  [[gnu::cold, gnu::noinline]] bool recover() {
    const bool has_news = port().take_news();
    const bool is_closed = port().is_peer_closed();  // before the look: what it sent first is found by it
    const int64_t now_ns = port().now_ns();
    if (has_news && !absorb_records(now_ns)) return false;
    auto host = port().recovery_host();
    recovery_.step(host, now_ns);
    port().push_records();
    if (is_closed && recovery_.find_waiting_since() != kNever) port().lose_peer();
    return !port().has_failed() && port().resume();
  }

  // For a wait that lasts: queue pairs that will not do any more, and whether anything is left to wait for.
  bool check_rails(uint32_t waiting_message) {
    const int64_t waited_ns = wait_.waited_ns();
    port().give_up_dying_pairs(waited_ns);
    if (port().has_failed()) return false;
    const bool is_over = waited_ns >= recovery_.times().limit_ns && recovery_.is_overdue(port().now_ns());
    return is_over ? port().fail(Failure::kOverdue, waiting_message) : true;
  }
  // Whatever a peer that is gone had sent before has arrived by the end of the grace.
  bool check_peer(uint32_t waiting_message) {
    if (!port().is_peer_closed() || !port().is_grace_over()) return true;
    return port().fail(Failure::kPeerClosed, waiting_message);
  }

  // One request less. The turn goes to whoever wants it.
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
  uint32_t open_ = 0;  // requests
  Statistics statistics_;

 private:
  bool absorb_records(int64_t now_ns) {
    const ArrivedRecord* arrived = nullptr;
    for (uint32_t left = kMaxRecordsPerLook;; --left) {
      if (left == 0) return port().want(), true;  // the others on the service thread are due
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
  // By this record a queue pair fails that has worked until now.
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
