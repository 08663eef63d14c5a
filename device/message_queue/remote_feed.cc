#include "device/message_queue/remote_feed.h"

#include <poll.h>
#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/message_queue/queue_messages.h"

namespace verbena::message_queue {
namespace {

constexpr int64_t kLingerMs = 5000;
constexpr int kPollMs = 100;  // how soon a stop is noticed while the socket is full

}  // namespace

RemoteFeed::RemoteFeed(RingMemory memory, uint32_t reader, bootstrap::FrameLink link,
                       std::function<void()> on_end)
    : ring_(memory, reader), link_(std::move(link)), on_end_(std::move(on_end)) {}

void RemoteFeed::notify() {
  interrupt_.store(1, std::memory_order_release);
  RingReader<RingMemory>::interrupt(ring_.memory());
}

base::Outcome RemoteFeed::start() {
  auto watched = watch_.start(link_.poll_entry().fd, true, {}, [this] { notify(); });
  if (!watched) return watched;
  try {
    const base::BlockedSignals blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    watch_.stop();
    return base::fail_errno(base::Status::kSystem, error.code().value(),
                            "queue: cannot start the thread that serves a reader over TCP");
  }
  pthread_setname_np(thread_.native_handle(), "verbena-queue");
  return {};
}

RemoteFeed::~RemoteFeed() {
  watch_.stop();
  stop_at_ns_.store(base::monotonic_ns() + kLingerMs * base::kNsPerMs, std::memory_order_release);
  notify();
  if (thread_.joinable()) thread_.join();
}

void RemoteFeed::run() {
  while (!is_broken_ && !has_left_ && !is_overdue()) {
    interrupt_.store(0, std::memory_order_relaxed);
    // Read pending data before the end of the connection: a reader that leaves sends a notice and then
    // closes.
    hear();
    if (is_broken_ || has_left_) break;
    const Look look = ring_.look();
    if (look == Look::kMessage) {
      send_next();
    } else if (look == Look::kEnd) {
      link_.send(make_frame(kEnd));
      return flush();
    } else if (must_stop()) {
      return;
    } else {
      ring_.sleep(interrupt_, kNoDeadline);
    }
  }
  if (has_left_) return ring_.leave();
  if (!is_broken_) return;
  problem_ = link_.problem();
  on_end_();
}

void RemoteFeed::send_next() {
  const SlotHead& head = ring_.memory().head(ring_.slot());
  const std::byte* const data = ring_.memory().data(ring_.slot());
  const PartHead part{head.message_bytes, head.flags, 0};
  link_.send(
      make_frame(kPart, {base::as_whole(part), base::as_bytes(data, head.length_bytes)}, ring_.next()));
  ring_.take();
  flush();
}

// Sends until the socket has taken everything, or the link has failed.
void RemoteFeed::flush() {
  for (;;) {
    hear();
    if (link_.is_flushed() || link_.is_closed()) return;
    if (is_overdue()) return;
    pollfd entry = link_.poll_entry();
    ::poll(&entry, 1, kPollMs);
  }
}

void RemoteFeed::hear() {
  link_.advance();
  while (const bootstrap::Record record = link_.take()) {
    if (kind_of(record) == kLeave) has_left_ = true;
    if (kind_of(record) != kCredit) continue;
    // The credit has only the lower 32 bits; it is at most the number of parts sent.
    const uint64_t sent = ring_.next();
    const auto behind = static_cast<uint32_t>(sent) - bootstrap::header_of(record).sequence;
    if (behind > ring_.memory().count_slots() || sent - behind < given_back_) {
      link_.close("the reader released data that was not sent");
      break;
    }
    given_back_ = sent - behind;
    ring_.release(given_back_);
  }
  is_broken_ = link_.is_closed() && !has_left_;
}

}  // namespace verbena::message_queue
