#include "transport/connection.h"

#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "transport/link/advice.h"
#include "transport/recovery_times.h"
#include "transport/service/observation.h"
#include "transport/service/state_dump.h"
#include "transport/state_text.h"

namespace verbena::transport {

using protocol::Failure;

namespace {

const char* name_direction(observe::Direction direction) {
  return direction == observe::Direction::kSend ? "send to" : "receive from";
}

}  // namespace

Connection::Connection(observe::Direction direction, Link link, std::unique_ptr<PeerChannel> channel,
                       const protocol::QueuePairStates& lives)
    : link_(std::move(link)),
      channel_(std::move(channel)),
      failed_(name_direction(direction), channel_->peer(), link_, lives),
      observed_(observe_end(direction, channel_->peer(), link_)),
      direction_(direction),
      lives_(lives) {}

// --- Life.

base::Outcome Connection::open() {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    const bool is_left = (link_.joined_pairs() >> q & 1) == 0;
    if (is_left) give_up(q, "the queue pair was not connected when the connection started");
  }
  is_registered_ = true;
  Registry::instance().add(this);
  return channel_->watch(this);
}

// The order matters: first no thread wakes the connection any more, then no thread asks for its state, then
// the service thread no longer serves it.
void Connection::close() {
  channel_->unwatch();
  is_registered_ = false;
  Registry::instance().remove(this);
  forget_reports_if_alone();
  retire();
  end_observation(observed_);
}

// --- Errors.

base::Outcome Connection::stick(base::Error error) {
  if (has_failed()) return outcome();  // keep the first cause
  first_error_.store(error, std::memory_order_relaxed);
  if (observed_ != nullptr) observed_->note_failed();
  if (is_registered_ && request_report(ReportCause::kFailure, describe_briefly() + " failed")) dump_now();
  return outcome();
}

bool Connection::fail(Failure fault, uint32_t number, uint32_t queue_pair) {
  if (has_failed()) return false;
  const auto status = fault == Failure::kShortRoom ? base::Status::kInvalidUsage
                      : fault == Failure::kSilentCopy || fault == Failure::kSilentFlush
                          ? base::Status::kSystem
                          : base::Status::kRemote;
  const std::string special = explain(fault, number);
  const std::string& text = special.empty() ? describe_fault(fault, number, queue_pair) : special;
  static_cast<void>(stick(base::fail(status, "%s: %s", describe_briefly().c_str(), text.c_str())));
  return false;
}

std::string Connection::describe_fault(Failure fault, uint32_t number, uint32_t queue_pair) const {
  std::string text;
  const auto message = [&](const char* rest) { base::append(text, "message %u%s", number, rest); };
  switch (fault) {
    case Failure::kRequest:
      message((": " + failed_.cause(queue_pair)).c_str());
      break;
    case Failure::kOverdue:
      message((": " + failed_.describe()).c_str());
      base::append(text, " (VERBENA_FAILOVER_TIMEOUT_MS %lld ms)",
                   static_cast<long long>(base::parameters().failover_timeout_ms));
      break;
    case Failure::kPeerGone:
      message((": " + failed_.describe() + "; and the peer's process has exited").c_str());
      break;
    case Failure::kDeviceLoss:
      message((": the peer's device lost data that it had acknowledged (" + failed_.cause(queue_pair) + ")")
                  .c_str());
      break;
    case Failure::kRecord:
      base::append(text, "the peer sent an invalid recovery record (kind %u, qp index %u)%s", number,
                   queue_pair, kPeerAdvice);
      break;
    case Failure::kCreditsOfLine:
      base::append(text, "%s: the peer returned more credits than it had received%s",
                   link_.describe(queue_pair).c_str(), kPeerAdvice);
      break;
    case Failure::kCreditsOfNote:
      base::append(text,
                   "the peer returned more credits than it had received (in a grant, queue pair index %u)%s",
                   queue_pair, kPeerAdvice);
      break;
    case Failure::kConsumed:
      base::append(text, "the peer consumed message %u before it was sent%s", number, kPeerAdvice);
      break;
    case Failure::kChunk:
    case Failure::kUncredited:
    case Failure::kOtherLength:
      base::append(text, "%s: a chunk %s%s", link_.describe(queue_pair).c_str(),
                   fault == Failure::kChunk ? "is invalid"
                   : fault == Failure::kUncredited
                       ? "arrived without a credit"
                       : "arrived with a length that differs from the length that the sender announced",
                   kPeerAdvice);
      break;
    case Failure::kSilentCopy:
    case Failure::kSilentFlush:
      base::append(text,
                   "%s %u: the device reports no completions of its local reads and writes (%s); see dmesg, "
                   "and check that GPUDirect works on this device",
                   fault == Failure::kSilentCopy ? "message" : "flush", number, link_.describe(0).c_str());
      break;
    default:  // the two ends explain all other faults
      message(" cannot continue");
  }
  return text;
}

bool Connection::fail_completion_queue() {
  static_cast<void>(
      stick(base::fail(base::Status::kSystem,
                       "%s: completion queue failed: the queue overran, or the device is gone. See dmesg",
                       describe_briefly().c_str())));
  return false;
}

// --- Queue pairs that fail.

int64_t Connection::patience_ns() const {
  return find_device_patience_ns();
}

void Connection::note_failed(const verbs::Completion& completion, uint32_t queue_pair, uint32_t sequence) {
  if (!lives_.is_in_use(queue_pair)) return;  // a completion of a queue pair that has already failed
  failed_.note(queue_pair, link_.describe_failure(completion, queue_pair));
  const bool is_final = !base::parameters().failover || verbs::is_request_at_fault(completion.error);
  fail_pair(queue_pair, is_final, sequence);
}

void Connection::give_up(uint32_t queue_pair, const char* what) {
  if (!lives_.is_in_use(queue_pair)) return;
  failed_.note(queue_pair, link_.describe(queue_pair) + ": " + what);
  fail_pair(queue_pair, !base::parameters().failover, oldest_message());
}

void Connection::give_up_dying_pairs(int64_t waited_ns) {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    std::string cause = failed_.find_dying(q, waited_ns);
    if (cause.empty()) continue;
    failed_.note(q, std::move(cause));
    fail_pair(q, !base::parameters().failover, oldest_message());
  }
}

void Connection::give_up_silent_pair(uint32_t queue_pair) {
  if (!link_.is_healthy(queue_pair)) return give_up(queue_pair, "the port is down");
  give_up(queue_pair, direction_ == observe::Direction::kSend
                          ? "the device reports no completions of the queue pair's requests"
                          : "the device reports no completions of grants and credits");
}

void Connection::note_lost(uint32_t queue_pair) {
  if (observed_ != nullptr) observed_->note_rail_down(link_.rail_of(queue_pair), queue_pair);
}

void Connection::note_lost_at_peer(uint32_t queue_pair) {
  failed_.note(queue_pair,
               link_.describe(queue_pair) + ": failed at the peer; the peer's log gives the cause");
}

void Connection::note_revived(uint32_t queue_pair) {
  if (observed_ != nullptr) observed_->note_rail_up(link_.rail_of(queue_pair), queue_pair);
  base::log_info("%s: %s works again", describe_briefly().c_str(), link_.describe(queue_pair).c_str());
}

void Connection::note_chunk(uint32_t sequence, bool is_staged, uint32_t queue_pair, uint64_t bytes) {
  observed_->note_chunk(sequence, is_staged ? observe::Path::kStaged : observe::Path::kDirect,
                        link_.rail_of(queue_pair), link_.pair(queue_pair).number(), bytes);
}

// --- Diagnosis.

bool Connection::take_news() {
  const bool has_news = take_request();
  if (is_asked_.load(std::memory_order_relaxed)) dump_now();
  return has_news;
}

void Connection::dump_now() {
  is_asked_.store(false, std::memory_order_relaxed);
  Registry::instance().answer(this, describe());
}

// Called on the service thread, which writes the report. While another thread holds the progress token, the
// request makes that thread check is_asked_.
bool Connection::dump_state(StateDump& dump) {
  if (enter_as_service()) {
    is_asked_.store(false, std::memory_order_relaxed);
    dump = describe();
    leave_as_service();
    return true;
  }
  is_asked_.store(true, std::memory_order_relaxed);
  want();
  return false;
}

StateDump Connection::dump_nothing() const {
  return {describe_briefly() +
          ": the state is unknown. The connection's thread does not call the plugin, and the system does not "
          "let another thread read the state\n"};
}

std::string Connection::describe_briefly() const {
  return name_direction(direction_) + (" " + channel_->peer());
}

std::string Connection::describe_head(int64_t waiting_since_ns, uint32_t open,
                                      bool is_seen_from_outside) const {
  const std::string reason = explain_device_wait();
  return transport::describe_head({describe_briefly(), communicator_id(), opened_at_ns_, waiting_since_ns,
                                   open, has_failed(), channel_->is_closed(), is_seen_from_outside}) +
         (reason.empty() ? "" : "  device: " + reason + "\n");
}

std::string Connection::explain_device_wait() const {
  return link_.rails() == 0 ? std::string() : link_.device(0).explain_wait();
}

void Connection::report_stall(const std::string& cause, uint32_t open, int64_t waited_ns) {
  if (observed_ != nullptr) observed_->note_stall(waited_ns);
  const std::string reason = explain_device_wait();
  const std::string what = describe_briefly() + ": stall: " + cause + "; " + std::to_string(open) +
                           " requests are open, and none has completed for " +
                           base::show_duration(waited_ns) + (reason.empty() ? "" : "; " + reason);
  base::log_warn("%s (VERBENA_STALL_WARNING_MS %lld ms)", what.c_str(),
                 static_cast<long long>(base::parameters().stall_warning_ms));
  request_report(ReportCause::kStall, what);
}

}  // namespace verbena::transport
