#include "transport/state_text.h"

#include "base/clock.h"
#include "base/text.h"

namespace verbena::transport {

using base::append;

std::string describe_since(int64_t since_ns) {
  return since_ns == 0 ? "" : " for " + base::show_duration(base::monotonic_ns() - since_ns);
}

std::string describe_head(const BlockHead& head) {
  std::string text = head.who;
  if (head.communicator_id != 0)
    base::append(text, ", communicator 0x%llx", static_cast<unsigned long long>(head.communicator_id));
  text += ", open" + describe_since(head.opened_at_ns);
  if (head.has_failed) text += ", failed";
  if (head.is_peer_closed) text += ", closed by the peer";
  if (head.open == 0) {
    text += ", idle";
  } else {
    base::append(text, ", %u requests open", head.open);
    if (head.waiting_since_ns != 0) text += ", none completed" + describe_since(head.waiting_since_ns);
  }
  if (head.is_seen_from_outside)
    text += "; the connection's thread does not call the plugin, so another thread read this state";
  return text + "\n";
}

std::string describe_life(const protocol::QueuePairStates& lives, uint32_t queue_pair) {
  using Phase = protocol::QueuePairStates::Phase;
  static constexpr const char* kNames[] = {"live", "stopping: waits for the peer's reply", "down",
                                           "replacement offered: waits for the peer's reply",
                                           "replaced, under test"};
  const Phase phase = lives.phase(queue_pair);
  std::string text = kNames[static_cast<size_t>(phase)];
  if (phase != Phase::kLive) text += describe_since(lives.phase_since_ns(queue_pair));
  if (const uint32_t generation = lives.generation(queue_pair); generation != 0)
    base::append(text, ", generation %u", generation);
  return text;
}

// --- Messages.

std::string explain_wait(const Sender::Core& core, const SendMessage& message) {
  using Wait = SendMessage::Wait;
  const uint32_t queue_pairs = core.recovery().queue_pairs();
  std::string text;
  switch (core.find_wait(message)) {
    case Wait::kTest:
      return "sent: waits for the caller to call test";
    case Wait::kCompletions:
      text = "waits for completions:";
      for (uint32_t q = 0; q < queue_pairs; ++q) {
        if (message.outstanding[q] != 0)
          append(text, " %u on queue pair %u", static_cast<unsigned>(message.outstanding[q]), q);
      }
      return text;
    case Wait::kReplay:
      return "waits for retransmission of the chunks that a failed queue pair lost";
    case Wait::kTurn:
      append(text, "waits until message %u is sent", core.leaving());
      return text;
    case Wait::kGrant:
      return "waits for a grant: the peer has not posted its receive";
    case Wait::kRoom:
      text = "waits for credits or for space in a send queue: credits";
      for (uint32_t q = 0; q < queue_pairs; ++q)
        append(text, " %u on queue pair %u", core.credits().available(q), q);
      return text;
  }
  return text;
}

const char* explain_wait(const Receiver::Core& core, const ReceiveMessage& message) {
  using Wait = ReceiveMessage::Wait;
  switch (core.find_wait(message)) {
    case Wait::kGrant:
      return "waits for space in the send queue of grants";
    case Wait::kArrival:
      return message.arrivals.is_empty() ? "waits for data: nothing has arrived"
                                         : "waits for the rest of its data";
    case Wait::kCopy:
      return "waits for the copy of its data to GPU memory";
    case Wait::kPush:
      return "waits for the flush of its pages";
    case Wait::kConsumption:
      return "complete: waits until the GPU has unpacked or used the message (irecvConsumed)";
    case Wait::kTest:
      break;
  }
  return "arrived: waits for the caller to call test";
}

namespace {

// Returns ` for 3.1 s`, the time for which the message has waited for the same event.
template <typename Core>
std::string describe_wait_since(const Core& core, const typename Core::Message& message) {
  return describe_since(
      core.wait_stamps().find(message.sequence, static_cast<uint8_t>(core.find_wait(message))));
}

}  // namespace

std::string describe_messages(const Sender::Core& core) {
  std::string text;
  append(text, "  messages: next %u, posted before %u, consumed by the peer before %u\n", core.next(),
         core.posting(), core.consumed());
  core.for_each_open([&](const SendMessage& message) {
    static constexpr const char* kPaths[] = {"no path yet", "staged", "direct"};
    append(text, "  message %u, %llu bytes, %s: %s%s\n", message.sequence, as_ull(message.length_bytes),
           kPaths[static_cast<size_t>(message.path)], explain_wait(core, message).c_str(),
           describe_wait_since(core, message).c_str());
  });
  const Statistics& s = core.statistics();
  append(text, "  complete: staged %llu messages %llu bytes, direct %llu messages %llu bytes",
         as_ull(s.sent_staged().messages), as_ull(s.sent_staged().bytes), as_ull(s.sent_direct().messages),
         as_ull(s.sent_direct().bytes));
  append(text, "; queue pairs failed %llu, revived %llu; chunks retransmitted %llu\n",
         as_ull(s.failed_queue_pairs), as_ull(s.revived_queue_pairs), as_ull(s.replayed_chunks));
  return text;
}

std::string describe_messages(const Receiver::Core& core) {
  std::string text;
  append(text, "  messages: next %u, granted before %u, consumed before %u\n", core.next(), core.next_grant(),
         core.consumed());
  core.for_each_open([&](const ReceiveMessage& message) {
    append(text, "  message %u, buffer %llu bytes, arrived %llu bytes%s: %s%s\n", message.sequence,
           as_ull(message.room_bytes), as_ull(message.arrivals.bytes()),
           message.slot_taken ? (", slot " + std::to_string(message.slot)).c_str() : "",
           explain_wait(core, message), describe_wait_since(core, message).c_str());
  });
  for (const FlushRequest& flush : core.flushes()) {
    if (!flush.in_use) continue;
    append(text, "  flush %u: waits for %u reads by the device%s\n", flush.number, flush.outstanding,
           describe_since(core.flush_stamps().find(flush.number, 0)).c_str());
  }
  const Statistics& s = core.statistics();
  append(text, "  complete: staged %llu messages %llu bytes, direct %llu messages %llu bytes",
         as_ull(s.received_staged_messages), as_ull(s.received_staged_bytes),
         as_ull(s.received_direct_messages), as_ull(s.received_direct_bytes));
  append(text, "; unpack descriptors %llu, messages copied %llu; queue pairs failed %llu, revived %llu\n",
         as_ull(s.unpack_descriptors), as_ull(s.copied_messages), as_ull(s.failed_queue_pairs),
         as_ull(s.revived_queue_pairs));
  return text;
}

}  // namespace verbena::transport
