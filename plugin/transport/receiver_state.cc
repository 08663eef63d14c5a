// What a receiver tells of itself: when it is asked (roster.h), and in a line when it stalls.
#include "base/outside_view.h"
#include "base/text.h"
#include "transport/receiver.h"
#include "transport/state_text.h"

namespace verbena::transport {

using base::append;
using protocol::kMessageRing;
using Phase = ReceiveMessage::Phase;
using Wait = ReceiveMessage::Wait;

struct Receiver::Numbers {
  uint32_t next = 0, next_grant = 0, consumed = 0, open = 0;
  std::array<ReceiveMessage, kMessageRing> ring;
  std::array<FlushRequest, kMessageRing> flushes;
  WaitMonitor wait{0};
  WaitStamps wait_stamps, flush_stamps;
  base::Outcome sticky;
  Statistics statistics;

  // In the order of posting.
  template <typename See>
  void for_each_open(See&& see) const {
    for (uint32_t ahead = kMessageRing; ahead != 0; --ahead) {
      const ReceiveMessage& message = ring[(next - ahead) % kMessageRing];
      if (message.is_posted && message.sequence == next - ahead) see(message);
    }
  }
  Wait get_wait(const ReceiveMessage& message) const { return find_wait(message, next_grant); }
  const char* explain_wait(const ReceiveMessage& message) const;
  int64_t find_since(const ReceiveMessage& message) const {
    return wait_stamps.find(message.sequence, static_cast<uint8_t>(get_wait(message)));
  }
};

const char* Receiver::Numbers::explain_wait(const ReceiveMessage& message) const {
  switch (get_wait(message)) {
    case Wait::kGrant:
      return "waits to be granted: for room in the send queue of grants";
    case Wait::kArrival:
      return message.arrivals.is_empty() ? "waits for data: nothing is here"
                                         : "waits for the rest of its data";
    case Wait::kCopy:
      return "waits for its copy to GPU memory";
    case Wait::kPush:
      return "waits for the flush of its pages";
    case Wait::kConsumption:
      return "is done, and waits for the GPU to unpack or use it (irecvConsumed)";
    case Wait::kTest:
      break;
  }
  return "is here, and waits for the caller's test";
}

template <typename Take>
bool Receiver::take_numbers(Numbers& numbers, Take&& take) const {
  return take(next_, numbers.next) && take(next_grant_, numbers.next_grant) &&
         take(consumed_, numbers.consumed) && take(open_, numbers.open) && take(ring_, numbers.ring) &&
         take(flushes_, numbers.flushes) && take(wait_, numbers.wait) &&
         take(wait_stamps_, numbers.wait_stamps) && take(flush_stamps_, numbers.flush_stamps) &&
         take(sticky_, numbers.sticky) && take(statistics_, numbers.statistics);
}

void Receiver::read_numbers(Numbers& numbers) const {
  take_numbers(numbers, [](const auto& from, auto& to) {
    to = from;
    return true;
  });
}

std::string Receiver::describe_briefly() const {
  return "receive from " + channel_->peer();
}

namespace {

unsigned long long as_ull(uint64_t value) {
  return value;
}

std::string describe_done(const Statistics& s) {
  std::string text;
  append(text, "  done: staged %llu messages %llu bytes, direct %llu messages %llu bytes",
         as_ull(s.received_staged_messages), as_ull(s.received_staged_bytes),
         as_ull(s.received_direct_messages), as_ull(s.received_direct_bytes));
  append(text, "; unpack descriptors %llu, copied %llu messages; queue pairs failed %llu, revived %llu\n",
         as_ull(s.unpack_descriptors), as_ull(s.copied_messages), as_ull(s.failed_queue_pairs),
         as_ull(s.revived_queue_pairs));
  return text;
}

}  // namespace

std::string Receiver::describe_numbers(const Numbers& numbers, bool is_seen_from_outside) const {
  std::string text =
      describe_head({describe_briefly(), communicator_id(), opened_at_ns_, numbers.wait.waiting_since_ns(),
                     numbers.open, !numbers.sticky, channel_->is_closed(), is_seen_from_outside});
  append(text, "  messages: next %u, granted before %u, consumed before %u\n", numbers.next,
         numbers.next_grant, numbers.consumed);
  numbers.for_each_open([&](const ReceiveMessage& message) {
    append(text, "  message %u, room %llu bytes, %llu bytes are here%s: %s%s\n", message.sequence,
           as_ull(message.room_bytes), as_ull(message.arrivals.bytes()),
           message.slot_taken ? (", slot " + std::to_string(message.slot)).c_str() : "",
           numbers.explain_wait(message), describe_since(numbers.find_since(message)).c_str());
  });
  for (const FlushRequest& flush : numbers.flushes) {
    if (!flush.in_use) continue;
    append(text, "  flush %u: waits for %u reads%s\n", flush.number, flush.outstanding,
           describe_since(numbers.flush_stamps.find(flush.number, 0)).c_str());
  }
  return text + describe_done(numbers.statistics);
}

std::string Receiver::describe_queue_pair(uint32_t q) {
  const Link& link = parts_.link;
  std::string text;
  append(
      text,
      "  queue pair %u: %s: %s, port %s, entries promised %u, taken and not given back %u (%u of them free)",
      q, link.describe(q).c_str(), describe_life(recovery_, q).c_str(), link.is_healthy(q) ? "up" : "down",
      parts_.promises[q].entries, held_[q], spares_[q].count);
  if (recovery_.is_live(q))
    append(text, ", room for %u of %u grants and credits", parts_.link.pair(q).free_slots(), kControlDepth);
  if (q == home_) text += ", grants go here";
  if (!failed_.cause(q).empty()) append(text, ", failed last because: %s", failed_.cause(q).c_str());
  return text + "\n";
}

Telling Receiver::describe() {
  const auto numbers = std::make_unique<Numbers>();
  read_numbers(*numbers);
  Telling telling{describe_numbers(*numbers, false)};
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) telling.text += describe_queue_pair(q);
  for (uint32_t ahead = 0; ahead < kMessageRing; ++ahead) {
    const ReceiveMessage& early = ring_[(next_ + ahead) % kMessageRing];
    if (early.is_posted || early.arrivals.is_empty()) continue;
    append(telling.text, "  message %u: %llu bytes are here before its receive is posted\n", next_ + ahead,
           as_ull(early.arrivals.bytes()));
  }
  telling.text += "  " + parts_.pool->describe() + "\n";
  if (!broken_.empty()) append(telling.text, "  nothing more can arrive: %s\n", broken_.c_str());
  if (channel_->has_unsent()) telling.text += "  control socket: takes no more just now\n";
  telling.is_idle = open_ == 0 && recovery_.are_all_live() && static_cast<bool>(sticky_);
  return telling;
}

Telling Receiver::tell_from_outside() const {
  const auto numbers = std::make_unique<Numbers>();
  const auto look = [](const auto& from, auto& to) { return base::look_from_outside(from, to); };
  return take_numbers(*numbers, look) ? Telling{describe_numbers(*numbers, true)} : tell_nothing();
}

// The oldest request of those that wait for something of ours, or of the peer.
void Receiver::warn_of_stall() {
  const auto numbers = std::make_unique<Numbers>();
  read_numbers(*numbers);
  std::string cause;
  numbers->for_each_open([&](const ReceiveMessage& message) {
    const Wait wait = numbers->get_wait(message);
    if (!cause.empty() || wait == Wait::kTest || wait == Wait::kConsumption) return;
    append(cause, "message %u: %s, %llu of at most %llu bytes are here", message.sequence,
           numbers->explain_wait(message), as_ull(message.arrivals.bytes()), as_ull(message.room_bytes));
  });
  for (const FlushRequest& flush : flushes_) {
    if (cause.empty() && flush.in_use)
      append(cause, "flush %u: waits for %u reads of the device", flush.number, flush.outstanding);
  }
  if (cause.empty()) return;
  ++statistics_.stalls;
  if (observed_ != nullptr) observed_->note_stall(wait_.waited_ns());
  report_stall(cause, open_, wait_.waited_ns());
}

}  // namespace verbena::transport
