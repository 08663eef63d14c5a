#include "transport/sender.h"

#include "base/hot_path.h"
#include "base/parameters.h"
#include "base/text.h"
#include "transport/link/advice.h"
#include "transport/recovery_times.h"
#include "transport/state_text.h"

namespace verbena::transport {

using base::append;
using protocol::Failure;

namespace {

protocol::SendOptions complete(protocol::SendOptions options, Link& link) {
  options.queue_pairs = link.queue_pairs();
  const auto& parameters = base::parameters();
  for (uint32_t q = 0; q < link.queue_pairs(); ++q) {
    const uint32_t rail = link.rail_of(q);
    options.rail_of[q] = static_cast<uint8_t>(rail);
    // With adaptive routing, a long message ends in a separate write with an immediate. A device that
    // receives out of order does not need the separate write.
    const bool is_adaptive = parameters.adaptive_routing < 0
                                 ? link.device(rail).address().link_layer == verbs::kInfiniBand
                                 : parameters.adaptive_routing != 0;
    options.is_adaptive[q] = is_adaptive && !link.is_out_of_order();
  }
  for (uint32_t rail = 0; rail < link.rails(); ++rail) {
    constexpr uint64_t kUnit = protocol::kDirectAlignBytes;
    // 0 if the device does not report it
    const uint64_t longest = link.device(rail).max_message_bytes() / kUnit * kUnit;
    if (longest != 0 && longest < options.max_stripe_bytes)
      options.max_stripe_bytes = static_cast<uint32_t>(longest);
  }
  options.adaptive_above_bytes = static_cast<uint64_t>(parameters.ar_threshold_bytes);
  options.splits_over_all = parameters.split_data_on_qps;
  options.times = read_recovery_times();
  options.stall_ns = base::parameters().stall_warning_ms * base::kNsPerMs;
  return options;
}

}  // namespace

Sender::Sender(Link link, ControlMemory control, const protocol::SendOptions& peer,
               std::unique_ptr<PeerChannel> channel)
    : SendingEnd(peer.staging),
      Core(complete(peer, link)),
      Connection(observe::Direction::kSend, std::move(link), std::move(channel), recovery()),
      control_(std::move(control)) {
  for (SendMessage& message : ring_) {
    message.kind = RequestKind::kSend;
    message.owner = this;
  }
  if (observed() != nullptr) observe();
}

// Destroys the queue pairs before the control memory, because the peer writes to this memory through them.
Sender::~Sender() {
  Connection::close();
  link_ = Link();
}

Statistics Sender::close() {
  Connection::close();
  return statistics();
}

// Flattened into one frame, because every message takes this path.
[[gnu::flatten]] VERBENA_HOT_PATH Posted Sender::post(const void* data, uint64_t length_bytes,
                                                      const Registration* memory, bool may_stage,
                                                      int32_t tag) {
  SendMessage* const message = Core::post(data, length_bytes, memory, may_stage, tag);
  return {message, outcome()};
}

[[gnu::flatten]] VERBENA_HOT_PATH base::Outcome Sender::test(SendMessage& message, bool* done) {
  *done = Core::test(message);
  return outcome();
}

[[gnu::flatten]] VERBENA_HOT_PATH base::Outcome Sender::test(Request& request, int* done,
                                                             int* lengths_bytes) {
  auto& message = static_cast<SendMessage&>(request);
  const bool is_done = Core::test(message);
  *done = is_done ? 1 : 0;
  if (is_done && lengths_bytes != nullptr) *lengths_bytes = static_cast<int>(message.length_bytes);
  return outcome();
}

// --- The port.

bool Sender::poll_completions() {
  begin_look();
  const auto take = [&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error != 0 || completion.cookie == kTrialCookie) [[unlikely]]
      return note_exception(completion, queue_pair);
    on_sent(queue_pair, completion.cookie);
  };
  const bool is_sound = link_.poll(take);
  end_look();
  return is_sound ? !has_failed() : fail_completion_queue();
}

void Sender::note_exception(const verbs::Completion& completion, uint32_t queue_pair) {
  if (completion.error == 0) {
    on_trial_passed(queue_pair);
  } else {
    note_failed(completion, queue_pair, protocol::cookie_sequence(completion.cookie));
  }
}

bool Sender::note_unposted(uint32_t queue_pair) {
  give_up(queue_pair, "cannot post a request; an earlier line of the log gives the device's error");
  return !has_failed();
}

// A write of no bytes. The device does not check its key and address.
bool Sender::post_trial(uint32_t queue_pair, uint64_t cookie) {
  return link_.pair(queue_pair)
      .post({.opcode = verbs::Opcode::kWrite, .signaled = true, .cookie = cookie})
      .is_ok();
}

protocol::Replay* Sender::make_replay() {
  replays_ = std::make_unique<protocol::Replay>();
  return replays_.get();
}

// --- Diagnosis.

std::string Sender::explain(Failure fault, uint32_t number) const {
  std::string text;
  if (fault == Failure::kPeerClosed) {
    append(text, "the peer closed the connection while %u messages were open. The peer's log says why",
           next() - consumed());
  } else if (fault == Failure::kGrantAhead) {
    append(text, "the peer sent a grant for message %u, but the next message is %u%s", number, next(),
           kPeerAdvice);
  } else if (fault == Failure::kShortRoom) {
    const SendMessage& message = ring()[number % protocol::kMessageRing];
    append(text, "message %u is longer than its receive buffer (message %llu bytes, buffer %llu bytes)%s",
           number, as_ull(message.length_bytes), as_ull(message.grant.length_bytes), kLengthAdvice);
  }
  return text;
}

std::string Sender::describe_state(const Core& core, bool is_seen_from_outside) const {
  return describe_head(core.wait().waiting_since_ns(), core.open_requests(), is_seen_from_outside) +
         describe_messages(core);
}

std::string Sender::describe_queue_pair(uint32_t q) {
  std::string text;
  uint32_t outstanding = 0;
  for (const SendMessage& message : ring()) outstanding += message.outstanding[q];
  append(text,
         "  queue pair %u: %s: %s, port %s, credits %u of %u, send queue %u of %u free, completions due %u",
         q, link_.describe(q).c_str(), describe_life(recovery(), q).c_str(),
         link_.is_healthy(q) ? "up" : "down", credits().available(q), credits().window(q),
         recovery().is_live(q) ? free_slots(q) : 0, protocol::kSendDepth, outstanding);
  return text + failed_.describe_last(q);
}

StateDump Sender::describe() {
  StateDump dump{describe_state(*this, false)};
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) dump.text += describe_queue_pair(q);
  if (has_any_replays()) dump.text += "  replay: some chunks must be retransmitted\n";
  if (has_unsent()) dump.text += "  control socket: its send buffer is full\n";
  dump.is_idle = is_idle(open_requests());
  return dump;
}

StateDump Sender::dump_from_outside() const {
  const OutsideCopy<Core> copy(*this);
  return copy ? StateDump{describe_state(*copy, true)} : dump_nothing();
}

// Warns about the oldest message, because all later messages wait for it.
void Sender::warn_of_stall() {
  const SendMessage* oldest = nullptr;
  for_each_open([&](const SendMessage& message) {
    if (oldest == nullptr && !message.is_complete()) oldest = &message;
  });
  std::string cause;
  if (oldest != nullptr) {
    append(cause, "message %u of %llu bytes: %s", oldest->sequence, as_ull(oldest->length_bytes),
           explain_wait(*this, *oldest).c_str());
  } else if (stages() && is_ring_full()) {
    append(cause, "no message can be posted until the peer consumes message %u", consumed());
  } else if (!stages()) {
    append(
        cause,
        "no message with tag %d can be posted until the peer posts a receive with this tag and sends a grant",
        static_cast<int>(wanted_tag()));
  } else {
    return;
  }
  ++statistics_.stalls;
  report_stall(cause, open_requests(), wait().waited_ns());
}

}  // namespace verbena::transport
