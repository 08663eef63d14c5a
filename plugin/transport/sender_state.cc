// What a sender tells of itself: when it is asked (roster.h), and in a line when it stalls.
#include "base/outside_view.h"
#include "base/text.h"
#include "transport/sender.h"
#include "transport/state_text.h"

namespace verbena::transport {

using base::append;
using protocol::kMessageRing;
using Wait = SendMessage::Wait;

struct Sender::Numbers {
  uint32_t next = 0, posting = 0, consumed = 0, open = 0;
  protocol::SenderCredits credits;
  std::array<SendMessage, kMessageRing> ring;
  WaitMonitor wait{0};
  WaitStamps wait_stamps;
  base::Outcome sticky;
  Statistics statistics;

  // In the order of posting: `see(message)` for each that the caller has not been told to be done.
  template <typename See>
  void for_each_open(See&& see) const {
    for (uint32_t ahead = kMessageRing; ahead != 0; --ahead) {
      const SendMessage& message = ring[(next - ahead) % kMessageRing];
      if (message.in_use && message.sequence == next - ahead) see(message);
    }
  }
  std::string explain_wait(const SendMessage& message, uint32_t queue_pairs) const;
  int64_t find_since(const SendMessage& message) const;
};

std::string Sender::Numbers::explain_wait(const SendMessage& message, uint32_t queue_pairs) const {
  std::string text;
  switch (find_wait(message, posting, consumed)) {
    case Wait::kTest:
      return "has left, and waits for the caller's test";
    case Wait::kCompletions:
      text = "waits for completions:";
      for (uint32_t q = 0; q < queue_pairs; ++q) {
        if (message.outstanding[q] != 0)
          append(text, " %u on queue pair %u", static_cast<unsigned>(message.outstanding[q]), q);
      }
      return text;
    case Wait::kReplay:
      return "waits for its replay: the rest is to be sent again";
    case Wait::kTurn:
      append(text, "waits for its turn behind message %u", posting);
      return text;
    case Wait::kConsumption:
      append(text, "waits for the peer to consume message %u", consumed);
      return text;
    case Wait::kGrant:
      return "waits for a grant: the peer has not posted its receive";
    case Wait::kRoom:
      text = "waits for credits or room in a send queue: credits";
      for (uint32_t q = 0; q < queue_pairs; ++q)
        append(text, " %u on queue pair %u", credits.available(q), q);
      return text;
  }
  return text;
}

int64_t Sender::Numbers::find_since(const SendMessage& message) const {
  return wait_stamps.find(message.sequence, static_cast<uint8_t>(find_wait(message, posting, consumed)));
}

template <typename Take>
bool Sender::take_numbers(Numbers& numbers, Take&& take) const {
  return take(next_, numbers.next) && take(posting_, numbers.posting) && take(consumed_, numbers.consumed) &&
         take(open_, numbers.open) && take(credits_, numbers.credits) && take(ring_, numbers.ring) &&
         take(wait_, numbers.wait) && take(wait_stamps_, numbers.wait_stamps) &&
         take(sticky_, numbers.sticky) && take(statistics_, numbers.statistics);
}

void Sender::read_numbers(Numbers& numbers) const {
  take_numbers(numbers, [](const auto& from, auto& to) {
    to = from;
    return true;
  });
}

std::string Sender::describe_briefly() const {
  return "send to " + channel_->peer();
}

std::string Sender::describe_numbers(const Numbers& numbers, bool is_seen_from_outside) const {
  std::string text =
      describe_head({describe_briefly(), communicator_id(), opened_at_ns_, numbers.wait.waiting_since_ns(),
                     numbers.open, !numbers.sticky, channel_->is_closed(), is_seen_from_outside});
  append(text, "  messages: next %u, posted before %u, consumed by the peer before %u\n", numbers.next,
         numbers.posting, numbers.consumed);
  numbers.for_each_open([&](const SendMessage& message) {
    static constexpr const char* kPaths[] = {"no path yet", "staged", "direct"};
    append(text, "  message %u, %llu bytes, %s: %s%s\n", message.sequence,
           static_cast<unsigned long long>(message.length_bytes), kPaths[static_cast<size_t>(message.path)],
           numbers.explain_wait(message, link_.queue_pairs()).c_str(),
           describe_since(numbers.find_since(message)).c_str());
  });
  const Statistics& s = numbers.statistics;
  append(text, "  done: staged %llu messages %llu bytes, direct %llu messages %llu bytes",
         static_cast<unsigned long long>(s.sent_staged().messages),
         static_cast<unsigned long long>(s.sent_staged().bytes),
         static_cast<unsigned long long>(s.sent_direct().messages),
         static_cast<unsigned long long>(s.sent_direct().bytes));
  append(text, "; queue pairs failed %llu, revived %llu; chunks sent again %llu\n",
         static_cast<unsigned long long>(s.failed_queue_pairs),
         static_cast<unsigned long long>(s.revived_queue_pairs),
         static_cast<unsigned long long>(s.replayed_chunks));
  return text;
}

std::string Sender::describe_queue_pair(uint32_t q) {
  std::string text;
  uint32_t outstanding = 0;
  for (const SendMessage& message : ring_) outstanding += message.outstanding[q];
  append(text,
         "  queue pair %u: %s: %s, port %s, credits %u of %u, send queue %u of %u free, completions due %u",
         q, link_.describe(q).c_str(), describe_life(recovery_, q).c_str(),
         link_.is_healthy(q) ? "up" : "down", credits_.available(q), credits_.window(q),
         recovery_.is_live(q) ? link_.pair(q).free_slots() : 0, kSendDepth, outstanding);
  if (!failed_.cause(q).empty()) append(text, ", failed last because: %s", failed_.cause(q).c_str());
  return text + "\n";
}

Telling Sender::describe() {
  const auto numbers = std::make_unique<Numbers>();
  read_numbers(*numbers);
  Telling telling{describe_numbers(*numbers, false)};
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) telling.text += describe_queue_pair(q);
  if (replay_ != nullptr && !replay_->is_empty()) telling.text += "  replay: chunks are to be sent again\n";
  if (channel_->has_unsent()) telling.text += "  control socket: takes no more just now\n";
  telling.is_idle = open_ == 0 && recovery_.are_all_live() && static_cast<bool>(sticky_);
  return telling;
}

Telling Sender::tell_from_outside() const {
  const auto numbers = std::make_unique<Numbers>();
  const auto look = [](const auto& from, auto& to) { return base::look_from_outside(from, to); };
  return take_numbers(*numbers, look) ? Telling{describe_numbers(*numbers, true)} : tell_nothing();
}

// The oldest message holds up the others.
void Sender::warn_of_stall() {
  const auto numbers = std::make_unique<Numbers>();
  read_numbers(*numbers);
  const SendMessage* oldest = nullptr;
  numbers->for_each_open([&](const SendMessage& message) {
    if (oldest == nullptr && !message.is_complete()) oldest = &message;
  });
  if (oldest == nullptr && !is_ring_full()) return;
  std::string cause;
  if (oldest == nullptr) {
    append(cause, "no message can be posted: waits for the peer to consume message %u", consumed_);
  } else {
    append(cause, "message %u of %llu bytes: %s", oldest->sequence,
           static_cast<unsigned long long>(oldest->length_bytes),
           numbers->explain_wait(*oldest, link_.queue_pairs()).c_str());
  }
  ++statistics_.stalls;
  if (observed_ != nullptr) observed_->note_stall(wait_.waited_ns());
  report_stall(cause, open_, wait_.waited_ns());
}

}  // namespace verbena::transport
