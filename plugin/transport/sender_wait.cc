// The slow path of a sender's waits: what each open message waits for, when that is a stall, when it is in
// vain.
#include "base/clock.h"
#include "base/log.h"
#include "transport/recovery_times.h"
#include "transport/sender.h"

namespace verbena::transport {

using protocol::kMessageRing;
using Wait = SendMessage::Wait;

Wait Sender::find_wait(const SendMessage& message, uint32_t posting, uint32_t consumed) {
  if (message.is_complete()) return Wait::kTest;
  if (message.is_posted) return Wait::kCompletions;
  if (protocol::is_before(message.sequence, posting)) return Wait::kReplay;
  if (message.sequence != posting) return Wait::kTurn;
  if (message.path != SendMessage::Path::kUndecided) return Wait::kRoom;
  const bool is_too_far = protocol::count_between(consumed, message.sequence) >= int32_t{kMessageRing};
  return is_too_far ? Wait::kConsumption : Wait::kGrant;
}

// A peer that is gone grants nothing any more. Work already posted fails by itself.
base::Outcome Sender::check_wait() {
  if (has_choice_) share_.note_waiting(base::monotonic_ns());
  const bool is_stall = wait_.is_stall_due();
  if (auto outcome = check_completions(); !outcome) return outcome;
  if (is_stall) warn_of_stall();
  if (auto outcome = check_rails(); !outcome) return outcome;
  if (!channel_->is_closed() || !channel_->is_grace_over()) return {};
  return stick(base::fail(base::Status::kRemote,
                          "send to %s: peer closed the connection with %u messages open; its log says why",
                          channel_->peer().c_str(), next_ - consumed_));
}

// Stamps what is waited for. What a device never completes is the queue pair's failure: its successor carries
// what the peer has not got.
base::Outcome Sender::check_completions() {
  const int64_t now_ns = wait_.checked_at_ns();
  for (const SendMessage& message : ring_) {
    if (!message.in_use) continue;
    const Wait wait = find_wait(message, posting_, consumed_);
    const int64_t since_ns = wait_stamps_.note(message.sequence, static_cast<uint8_t>(wait), now_ns);
    if (wait != Wait::kCompletions || now_ns - since_ns < find_device_patience_ns()) continue;
    for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
      if (message.outstanding[q] == 0 || !recovery_.is_live(q)) continue;
      give_up(q, link_.describe(q) + ": its device does not say what became of its requests");
    }
  }
  return sticky_;
}

}  // namespace verbena::transport
