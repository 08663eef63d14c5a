// Connects a reader to its writer: Reader::attach() and wait_until_ready().
#include <poll.h>

#include <utility>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/parameters.h"
#include "device/message_queue/reader.h"

namespace verbena::message_queue {

using base::Outcome;
using base::Status;
using bootstrap::Record;

base::Result<std::unique_ptr<Reader>> Reader::attach(const Handle& handle, uint32_t number, int64_t spin_us) {
  if (handle.magic != kHandleMagic || handle.version != kHandleVersion) {
    return base::fail(Status::kInvalidArgument,
                      "queue: the handle does not belong to a queue, or a different version of the library "
                      "created the handle. All processes must load the same libverbena.so");
  }
  if (number >= handle.count_readers && number != kAnyReader) {
    return base::fail(Status::kInvalidArgument,
                      "queue: reader %u does not exist: the queue has %u readers, counted from 0", number,
                      handle.count_readers);
  }
  auto wake = base::WakeEvent::create("queue");
  if (!wake) return wake.error();
  auto link = bootstrap::FrameLink::connect(
      handle.writer,
      {.purpose = kQueuePurpose, .rank = number, .count_ranks = handle.count_readers, .nonce = handle.nonce},
      handle.secret);
  if (!link) {
    return base::fail_errno(Status::kRemote, link.error().errno_value,
                            "queue: %s: the writer at %s cannot be reached", name_reader(number).c_str(),
                            base::describe(handle.writer).c_str());
  }
  return std::unique_ptr<Reader>(new Reader(handle, number, spin_us, std::move(*link), std::move(*wake)));
}

base::Error Reader::fail_setup(const char* what) const {
  if (link_->is_closed()) {
    return base::fail(Status::kRemote, "queue: %s: %s: %s", name_reader(number_).c_str(),
                      name_writer().c_str(), link_->problem().c_str());
  }
  return base::fail(Status::kTimeout,
                    "queue: %s: %s did not %s in time. Check that the writer's process and all %u readers "
                    "have called wait_until_ready()",
                    name_reader(number_).c_str(), name_writer().c_str(), what, handle_.count_readers);
}

base::Result<Record> Reader::await_frame(uint8_t kind, base::Deadline deadline, const char* what) {
  for (;;) {
    link_->advance();
    if (Record record = link_->take(); record != nullptr) {
      if (kind_of(record) == kind) return record;
      link_->close("the peer sent an unexpected message");
    }
    if (link_->is_closed()) return fail_setup(what);
    if (auto taken = take_ring(); !taken) return taken.error();
    if (auto waited = wait_for_setup(deadline, what); !waited) return waited.error();
  }
}

// Called at each step, so that connections from strangers cannot fill the backlog of the descriptor socket
// and keep the writer out.
Outcome Reader::take_ring() {
  while (post_ && !local_ && !ring_file_) {
    bootstrap::UnixPost::Arrival arrival;
    const auto verdict = post_->receive(arrival);
    if (!verdict) return verdict.error();
    if (*verdict == bootstrap::UnixPost::Verdict::kNothing) return {};
    if (*verdict == bootstrap::UnixPost::Verdict::kArrived) ring_file_ = std::move(arrival.descriptor);
  }
  return {};
}

// Waits until data arrives, at most a second.
Outcome Reader::wait_for_setup(base::Deadline deadline, const char* what) {
  if (auto going_on = check_cancelled(); !going_on) return going_on;
  if (deadline.has_passed()) return fail_setup(what);
  if (base::is_interrupted()) return base::Error{Status::kTimeout, 0};
  pollfd entries[] = {link_->poll_entry(), {wake_.fd(), POLLIN, 0}, {post_ ? post_->fd() : -1, POLLIN, 0}};
  ::poll(entries, 3, static_cast<int>(std::min<int64_t>(deadline.remaining_ms(), 1000)));
  return {};
}

Outcome Reader::map_ring(base::Deadline deadline) {
  for (;;) {
    if (auto taken = take_ring(); !taken) return taken;
    if (local_ || ring_file_) break;
    link_->advance();
    if (link_->is_closed()) return fail_setup("send its shared memory");
    if (auto waited = wait_for_setup(deadline, "send its shared memory"); !waited) return waited;
  }
  if (!local_) {
    auto ring = SharedRing::open(ring_file_, admission_.shape);
    if (!ring) return ring.error();
    const RingMemory memory = ring->memory();
    local_.emplace(Local{std::move(*ring), RingReader<RingMemory>(memory, number_)});
    has_ring_.store(true, std::memory_order_release);
  }
  return life_.start({&local_->ring.memory().life_of_reader(number_)}, [this] { notify(); });
}

void Reader::notify() {
  interrupt_.fetch_or(kPeerNews, std::memory_order_release);
  RingMemory memory = local_->ring.memory();
  RingReader<RingMemory>::interrupt(memory);
}

// Each step runs only once. After a timeout, the next call continues with the step that timed out.
Outcome Reader::introduce(base::Deadline deadline) {
  if (!post_) {
    auto host = bootstrap::identify_host(base::parameters().host_id);
    if (!host) return host.error();
    auto post = bootstrap::UnixPost::open();
    if (!post) return post.error();
    post_.emplace(std::move(*post));
    const Attachment attachment{*host, post_->address(), name_own_process()};
    link_->send(make_frame(kAttach, {base::as_whole(attachment)}));
  }
  if (count_slots_ == 0) {
    const auto record = await_frame(kAdmitted, deadline, "answer");
    if (!record) return record.error();
    if (!read_payload(*record, admission_) || !admission_.shape.is_valid() ||
        admission_.shape.count_readers != handle_.count_readers ||
        admission_.reader >= handle_.count_readers) {
      return base::fail(
          Status::kRemote,
          "queue: %s: %s sent an unexpected message. Check that both processes run the same release",
          name_reader(number_).c_str(), name_writer().c_str());
    }
    number_ = admission_.reader;
    writer_process_ = admission_.process;
    count_slots_ = admission_.shape.count_slots;
  }
  if (admission_.is_local != 0) {
    if (auto mapped = map_ring(deadline); !mapped) return mapped;
  }
  link_->send(make_frame(kMapped));
  is_introduced_ = true;
  return {};
}

Outcome Reader::wait_until_ready(int64_t timeout_ms) {
  if (is_ready_) return {};
  const auto deadline =
      base::Deadline::after_ms(timeout_ms < 0 ? base::parameters().bootstrap_timeout_ms : timeout_ms);
  if (!is_introduced_) {
    if (auto introduced = introduce(deadline); !introduced) return introduced;
  }
  if (!may_go_) {
    if (const auto go = await_frame(kGo, deadline, "find all readers"); !go) return go.error();
    may_go_ = true;
  }
  if (local_) {
    life_.watch({&local_->ring.memory().life_of_writer(number_)});
    if (auto watched = watch_.start(link_->poll_entry().fd, false, writer_process_, [this] { notify(); });
        !watched)
      return watched;
  }
  post_.reset();
  is_ready_ = true;
  return {};
}

}  // namespace verbena::message_queue
