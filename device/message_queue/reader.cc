#include "device/message_queue/reader.h"

#include <poll.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "device/message_queue/patience.h"

namespace verbena::message_queue {
namespace {

using base::Outcome;
using base::Status;
using bootstrap::Record;

// Tickets of joined messages are above all numbers of parts.
constexpr uint64_t kWholeTicket = uint64_t{1} << 63;
// Memory grows with the bytes received, not with the length that a header claims.
constexpr uint64_t kMaxReservedBytes = uint64_t{1} << 26;

std::span<const std::byte> as_std_bytes(base::Bytes bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

}  // namespace

std::string Reader::name_writer() const {
  std::string name = "the writer at " + base::describe(handle_.writer);
  if (writer_process_.pid != 0) name += " (process " + std::to_string(writer_process_.pid) + ")";
  return name;
}

base::Error Reader::fail_end(bool is_orderly) {
  const std::string own = name_reader(number_), writer = name_writer();
  if (is_orderly) {
    return base::fail_quietly(Status::kRemote,
                              "queue: %s: %s has shut the queue down, so no more messages will arrive",
                              own.c_str(), writer.c_str());
  }
  return base::fail(Status::kRemote,
                    "queue: %s: %s is dead or unreachable; the writer's log says why. Restart the writer and "
                    "create a new queue",
                    own.c_str(), writer.c_str());
}

Outcome Reader::check_cancelled() {
  const uint32_t news = interrupt_.fetch_and(~uint32_t{kCancelled}, std::memory_order_acquire);
  if ((news & (kCancelled | kShut)) == 0) return {};
  wake_.clear();
  return base::fail_quietly(Status::kInvalidUsage, "queue: %s: the call was cancelled%s",
                            name_reader(number_).c_str(),
                            (news & kShut) != 0 ? ": this process has shut the queue down" : "");
}

Reader::~Reader() {
  end();
  leave();
}

void Reader::end() {
  is_leaving_ = true;
  watch_.stop();
  if (count_held() == 0) leave();
}

void Reader::leave() {
  if (local_) {
    has_ring_.store(false, std::memory_order_relaxed);
    local_->reader.leave();
    life_.stop();
    local_.reset();
  } else if (is_ready_ && link_) {
    link_->send(make_frame(kLeave));
    link_->advance();
  }
  link_.reset();
  post_.reset();
}

void Reader::cancel(bool is_for_good) {
  interrupt_.fetch_or(is_for_good ? kShut : kCancelled, std::memory_order_release);
  if (has_ring_.load(std::memory_order_acquire)) {
    RingMemory memory = local_->ring.memory();
    RingReader<RingMemory>::interrupt(memory);
  }
  wake_.ring();
}

Outcome Reader::pin() {
  if (local_) return local_->ring.pin();
  return base::fail(Status::kInvalidUsage,
                    "queue: %s: there is no shared memory to pin, because this reader uses TCP or because "
                    "wait_until_ready() has not returned yet",
                    name_reader(number_).c_str());
}

base::Result<Message> Reader::dequeue(int64_t timeout_ms) {
  if (!is_ready_) {
    return base::fail(Status::kInvalidUsage,
                      "queue: %s: the queue is not ready. Call wait_until_ready() before dequeue()",
                      name_reader(number_).c_str());
  }
  const int64_t deadline_ns = deadline_after(timeout_ms);
  for (;;) {
    if (count_held_parts_ >= count_slots_) {
      return base::fail(Status::kInvalidUsage,
                        "queue: %s: all %u chunks contain messages that this reader has not released. "
                        "Release a message before the next dequeue()",
                        name_reader(number_).c_str(), count_slots_);
    }
    auto awaited = local_ ? await_local(deadline_ns) : await_remote(deadline_ns);
    if (!awaited) return awaited.error();
    if (!*awaited) return base::Error{Status::kTimeout, 0};
    const Part part = **awaited;
    const uint64_t number = hold_part(part);
    const bool is_first = (part.flags & SlotHead::kFirst) != 0, is_last = (part.flags & SlotHead::kLast) != 0;
    if (is_first && is_last) return Message{part.bytes, number};
    if (is_first) {  // an incomplete earlier message is dropped, because the writer has given it up
      partial_.clear();
      partial_.reserve(std::min(part.message_bytes, kMaxReservedBytes));
      is_partial_ = true;
    }
    if (is_partial_) partial_.insert(partial_.end(), part.bytes.begin(), part.bytes.end());
    give_back(number);
    if (!is_last || !is_partial_) continue;
    is_partial_ = false;
    const uint64_t ticket = kWholeTicket | next_whole_++;
    const auto& whole = whole_[ticket] = std::exchange(partial_, {});
    return Message{whole, ticket};
  }
}

base::Result<std::optional<Reader::Part>> Reader::await_local(int64_t deadline_ns) {
  auto& ring = local_->reader;
  for (bool was_awaited = false;; was_awaited = true) {
    Look look = Look::kNothing;
    const auto has_news = [&] {
      look = ring.look();
      return look != Look::kNothing || interrupt_.load(std::memory_order_relaxed) != 0;
    };
    const int64_t now_ns = base::monotonic_ns();
    const bool is_over = deadline_ns <= now_ns;
    if (!has_news() && !is_over) {
      was_awaited = true;
      if (spin(std::min(deadline_ns, plan_.find_spin_end(now_ns)), has_news) == SpinEnd::kInterrupted)
        return std::optional<Part>();
    }
    if (look == Look::kMessage) {
      const SlotHead& head = ring.memory().head(ring.slot());
      record(head.flags, was_awaited);
      const std::byte* const data = ring.memory().data(ring.slot());
      ring.take();
      if (head.length_bytes > ring.memory().shape().chunk_bytes) {
        return base::fail(Status::kRemote,
                          "queue: %s: the length of a chunk is invalid (%" PRIu64
                          " bytes), so the shared memory was probably overwritten",
                          name_reader(number_).c_str(), head.length_bytes);
      }
      return std::optional(Part{{data, head.length_bytes}, head.message_bytes, head.flags});
    }
    if (look == Look::kEnd) return fail_end(true);
    if (auto going_on = check_cancelled(); !going_on) return going_on.error();
    interrupt_.fetch_and(~uint32_t{kPeerNews}, std::memory_order_acquire);
    if (watch_.has_closed() || watch_.has_ended() ||
        LifeLine::has_died(ring.memory().life_of_writer(number_))) {
      if (ring.look() != Look::kNothing) continue;
      interrupt_.fetch_or(kPeerNews, std::memory_order_relaxed);  // later calls fail as well
      return fail_end(false);
    }
    if (is_over) return std::optional<Part>();
    const int64_t wake_ns = std::min(deadline_ns, plan_.find_sleep_end(base::monotonic_ns()));
    if (ring.sleep(interrupt_, wake_ns) == SleepEnd::kSignal && must_return_after_signal())
      return std::optional<Part>();
  }
}

// The first part of a message says when the message came.
void Reader::record(uint32_t flags, bool was_awaited) {
  if (plan_.is_adaptive() && (flags & SlotHead::kFirst) != 0) plan_.record(base::monotonic_ns(), was_awaited);
}

std::optional<Reader::Part> Reader::take_frame() {
  Record record = link_->take();
  if (record == nullptr) return std::nullopt;
  const base::Bytes payload = bootstrap::payload_of(record);
  if (kind_of(record) == kEnd) has_ended_ = true;
  if (kind_of(record) != kPart || payload.size() < sizeof(PartHead)) return std::nullopt;
  PartHead head;
  std::memcpy(&head, payload.data(), sizeof(head));
  records_.push_back(std::move(record));
  return Part{as_std_bytes(payload.subspan(sizeof(head))), head.message_bytes, head.flags};
}

base::Result<std::optional<Reader::Part>> Reader::await_remote(int64_t deadline_ns) {
  for (bool was_awaited = false;; was_awaited = true) {
    // The number of outstanding parts is at most the number of slots, so the link never buffers more parts.
    std::optional<Part> part;
    const auto has_news = [&] {
      if (!link_->has_arrivals()) link_->advance();
      part = take_frame();
      return part || has_ended_ || link_->is_closed() || interrupt_.load(std::memory_order_relaxed) != 0;
    };
    const int64_t now_ns = base::monotonic_ns();
    const bool is_over = deadline_ns <= now_ns;
    if (!has_news() && !is_over) {
      was_awaited = true;
      if (spin(std::min(deadline_ns, plan_.find_spin_end(now_ns)), has_news) == SpinEnd::kInterrupted)
        return std::optional<Part>();
    }
    if (part) {
      record(part->flags, was_awaited);
      return part;
    }
    if (has_ended_ || link_->is_closed()) return fail_end(has_ended_);
    if (auto going_on = check_cancelled(); !going_on) return going_on.error();
    if (is_over) return std::optional<Part>();
    pollfd polled[] = {link_->poll_entry(), {wake_.fd(), POLLIN, 0}};
    const int64_t slept_ns = base::monotonic_ns();
    const int64_t wake_ns = std::min(deadline_ns, plan_.find_sleep_end(slept_ns));
    const int64_t left_ns = std::max<int64_t>(0, wake_ns - slept_ns);
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    const bool is_signal =
        ppoll(polled, 2, wake_ns == kNoDeadline ? nullptr : &left, nullptr) < 0 && errno == EINTR;
    if (is_signal && must_return_after_signal()) return std::optional<Part>();
  }
}

uint64_t Reader::hold_part(const Part&) {
  given_back_.push_back(false);
  ++count_held_parts_;
  return first_held_ + given_back_.size() - 1;
}

void Reader::give_back(uint64_t number) {
  given_back_[number - first_held_] = true;
  --count_held_parts_;
  const uint64_t before = first_held_;
  while (!given_back_.empty() && given_back_.front()) {
    given_back_.pop_front();
    if (!local_) records_.pop_front();
    ++first_held_;
  }
  if (first_held_ == before) return;
  if (local_) return local_->reader.release(first_held_);
  link_->send(make_frame(kCredit, {}, first_held_));
  link_->advance();
}

Outcome Reader::release(uint64_t ticket) {
  const auto let_go = [this](bool is_done) {
    if (is_done && is_leaving_ && count_held() == 0) leave();
    return is_done;
  };
  if (let_go(whole_.erase(ticket) != 0)) return {};
  if (ticket < first_held_ || ticket - first_held_ >= given_back_.size() ||
      given_back_[ticket - first_held_]) {
    return base::fail(Status::kInvalidUsage, "queue: %s: this message was already released",
                      name_reader(number_).c_str());
  }
  give_back(ticket);
  let_go(true);
  return {};
}

}  // namespace verbena::message_queue
