#include "transport/state_text.h"

#include "base/clock.h"
#include "base/text.h"

namespace verbena::transport {

std::string describe_since(int64_t since_ns) {
  return since_ns == 0 ? "" : " for " + base::show_duration(base::monotonic_ns() - since_ns);
}

std::string describe_head(const BlockHead& head) {
  std::string text = head.who;
  if (head.communicator_id != 0)
    base::append(text, ", communicator 0x%llx", static_cast<unsigned long long>(head.communicator_id));
  text += ", open" + describe_since(head.opened_at_ns);
  if (head.has_failed) text += ", has failed";
  if (head.is_peer_closed) text += ", the peer has closed";
  if (head.open == 0) {
    text += ", rests";
  } else {
    base::append(text, ", %u requests open", head.open);
    if (head.waiting_since_ns != 0) text += ", none has become done" + describe_since(head.waiting_since_ns);
  }
  if (head.is_seen_from_outside) text += "; its thread does not call, so that this is a look from outside";
  return text + "\n";
}

std::string describe_life(const protocol::QueuePairLives& lives, uint32_t queue_pair) {
  using Phase = protocol::QueuePairLives::Phase;
  static constexpr const char* kNames[] = {"live", "stopping: waits for the peer's answer", "down",
                                           "offered: waits for the peer's answer", "on trial"};
  const Phase phase = lives.phase(queue_pair);
  std::string text = kNames[static_cast<size_t>(phase)];
  if (phase != Phase::kLive) text += describe_since(lives.phase_since_ns(queue_pair));
  if (const uint32_t generation = lives.generation(queue_pair); generation != 0)
    base::append(text, ", generation %u", generation);
  return text;
}

}  // namespace verbena::transport
