// The slow path of a receiver's waits: what each open request waits for, when that is a stall, when it is in
// vain.
#include "base/clock.h"
#include "base/log.h"
#include "transport/receiver.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

using Phase = ReceiveMessage::Phase;
using Wait = ReceiveMessage::Wait;

Wait Receiver::find_wait(const ReceiveMessage& message, uint32_t next_grant) {
  switch (message.phase) {
    case Phase::kArriving:
      if (message.arrivals.is_complete()) return Wait::kTest;
      return protocol::is_before(message.sequence, next_grant) ? Wait::kArrival : Wait::kGrant;
    case Phase::kMoving:
      return message.receive_class == ReceiveClass::kUnpacked ? Wait::kPush : Wait::kCopy;
    case Phase::kReported:
      return Wait::kConsumption;
    default:
      return Wait::kTest;
  }
}

base::Outcome Receiver::check_wait(const ReceiveMessage& message) {
  parts_.pool->reap();  // what we wait for may wait for a page
  if (auto outcome = check_requests(); !outcome) return outcome;
  if (message.phase == Phase::kMoving) return {};  // all of it is here, the peer is not needed any more
  if (auto outcome = check_rails(message); !outcome) return outcome;
  if (!channel_->is_closed() || !channel_->is_grace_over()) return {};
  return stick(base::fail(
      base::Status::kRemote,
      "receive from %s: peer closed the connection before message %u arrived (%llu bytes are here); its "
      "log says why",
      channel_->peer().c_str(), message.sequence, static_cast<unsigned long long>(message.arrivals.bytes())));
}

// Stamps what is waited for. What our own devices never complete nobody else can bring.
base::Outcome Receiver::check_requests() {
  if (wait_.is_stall_due()) warn_of_stall();
  const int64_t now_ns = wait_.checked_at_ns();
  const int64_t patience_ns = find_device_patience_ns();
  for (const ReceiveMessage& message : ring_) {
    if (!message.is_posted) continue;
    const Wait wait = find_wait(message, next_grant_);
    const int64_t since_ns = wait_stamps_.note(message.sequence, static_cast<uint8_t>(wait), now_ns);
    if (now_ns - since_ns < patience_ns) continue;
    if (wait == Wait::kCopy || wait == Wait::kPush) return fail_device("message", message.sequence);
    const bool is_stuck =
        wait == Wait::kGrant && recovery_.is_live(home_) && parts_.link.pair(home_).free_slots() == 0;
    if (is_stuck)
      give_up(home_, parts_.link.describe(home_) + ": its device does not say what became of our grants");
  }
  for (const FlushRequest& flush : flushes_) {
    if (flush.in_use && now_ns - flush_stamps_.note(flush.number, 0, now_ns) >= patience_ns)
      return fail_device("flush", flush.number);
  }
  return {};
}

base::Outcome Receiver::fail_device(const char* what, uint32_t number) {
  return stick(
      base::fail(base::Status::kSystem,
                 "receive from %s: %s %u: the device does not say what became of its local reads and writes "
                 "(%s); see dmesg, and whether GPUDirect works on it",
                 channel_->peer().c_str(), what, number, parts_.link.describe(0).c_str()));
}

}  // namespace verbena::transport
