// Admits a queue's readers: Writer::wait_until_ready().
#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/parameters.h"
#include "device/message_queue/writer.h"

namespace verbena::message_queue {

using base::Outcome;
using base::Status;
using bootstrap::Record;
using bootstrap::Refusal;

namespace {

constexpr int kStepMs = 100;  // how soon an expired deadline is noticed if no data arrives

}  // namespace

Outcome Writer::wait_until_ready(int64_t timeout_ms) {
  if (is_ready_) return {};
  const auto deadline =
      base::Deadline::after_ms(timeout_ms < 0 ? base::parameters().bootstrap_timeout_ms : timeout_ms);
  if (auto admitted = admit(deadline); !admitted) return admitted;
  if (auto held = hold_life(); !held) return held;
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    if (auto started = start_peer(reader, deadline); !started) return started;
  }
  newcomers_.clear();
  callers_.close();
  is_ready_ = true;
  return {};
}

Outcome Writer::admit(base::Deadline deadline) {
  const auto is_absent = [](const auto& peer) { return peer->step != Step::kReady; };
  while (std::ranges::any_of(peers_, is_absent)) {
    callers_.advance([this](const bootstrap::Hello& hello) { return judge(hello); });
    while (auto link = callers_.take()) {
      const uint32_t reader = link->hello().rank;
      newcomers_.push_back({std::move(*link), reader,
                            base::Deadline::after_ms(bootstrap::Callers::kIntroductionMs), std::nullopt});
    }
    std::erase_if(newcomers_, [this](Newcomer& newcomer) { return !advance(newcomer); });
    if (auto heard = hear_peers(); !heard) return heard;
    if (!std::ranges::any_of(peers_, is_absent)) break;
    if (auto going_on = check_cancelled(); !going_on) return going_on;
    if (deadline.has_passed()) return fail_absent();
    if (base::is_interrupted()) return base::Error{Status::kTimeout, 0};
    std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}};
    callers_.add_poll_entries(polled);
    // If a reader's socket had no space for the descriptor, retry soon.
    bool is_post_full = false;
    for (const Newcomer& newcomer : newcomers_) {
      polled.push_back(newcomer.link.poll_entry());
      is_post_full = is_post_full || newcomer.post;
    }
    for (const auto& peer : peers_)
      if (peer->link) polled.push_back(peer->link->poll_entry());
    const int64_t limit_ms = callers_.limit_wait_ms(is_post_full ? 10 : 1000);
    ::poll(polled.data(), polled.size(), static_cast<int>(std::min(deadline.remaining_ms(), limit_ms)));
  }
  return {};
}

base::Error Writer::fail_absent() const {
  constexpr size_t kMaxNamed = 8;
  size_t count = 0;
  std::string absent;
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    if (peers_[reader]->step == Step::kReady || ++count > kMaxNamed) continue;
    absent += (absent.empty() ? "" : ", ") + describe(reader);
  }
  if (count > kMaxNamed) absent += " and " + std::to_string(count - kMaxNamed) + " more";
  return base::fail(
      Status::kTimeout,
      "queue: writer: not all of the %zu readers attached in time; the missing readers are: %s. Check that "
      "the processes of these readers run, have called wait_until_ready(), and can reach %s",
      peers_.size(), absent.c_str(), base::describe(handle_.writer).c_str());
}

bootstrap::Callers::Verdict Writer::judge(const bootstrap::Hello& hello) const {
  if (hello.purpose != kQueuePurpose || !bootstrap::is_same_nonce(hello.nonce, handle_.nonce))
    return {Refusal::kOtherJob};
  if (hello.rank >= peers_.size() && hello.rank != kAnyReader) return {Refusal::kUnexpected};
  return {is_free(hello.rank) ? Refusal::kNone : Refusal::kRankTaken};
}

// Returns whether the number is free. For kAnyReader, returns whether any number is free.
bool Writer::is_free(uint32_t reader) const {
  const auto is_absent = [](const auto& peer) { return peer->step == Step::kAbsent; };
  return reader == kAnyReader ? std::ranges::any_of(peers_, is_absent) : is_absent(peers_[reader]);
}

// Returns false if the newcomer has become a reader, or has gone.
bool Writer::advance(Newcomer& newcomer) {
  bootstrap::FrameLink& link = newcomer.link;
  link.advance();
  if (link.is_closed() || newcomer.deadline.has_passed()) {
    if (newcomer.post) peers_[newcomer.reader]->step = Step::kAbsent;
    return false;
  }
  if (!newcomer.post) {
    const Record record = link.take();
    return record == nullptr || hear(newcomer, record);
  }
  const auto sent = bootstrap::UnixPost::send(*newcomer.post, newcomer.reader, ring_.fd());
  if (!sent) return false;
  if (!*sent) return true;
  Peer& peer = *peers_[newcomer.reader];
  const Admission admission{options_.shape, 1, newcomer.reader, name_own_process()};
  link.send(make_frame(kAdmitted, {base::as_whole(admission)}));
  link.advance();
  peer.link.emplace(std::move(link));
  return false;
}

bool Writer::hear(Newcomer& newcomer, const Record& record) {
  Attachment attachment;
  if (kind_of(record) != kAttach || !read_payload(record, attachment) || !is_free(newcomer.reader))
    return false;
  if (newcomer.reader == kAnyReader) {
    newcomer.reader = static_cast<uint32_t>(peers_.size()) - 1;
    while (!is_free(newcomer.reader)) --newcomer.reader;
  }
  Peer& peer = *peers_[newcomer.reader];
  peer.step = Step::kAdmitted;
  peer.process = attachment.process;
  peer.is_local = attachment.host == host_;
  if (peer.is_local) {
    newcomer.post = attachment.post;
    return advance(newcomer);
  }
  const Admission admission{options_.shape, 0, newcomer.reader, name_own_process()};
  newcomer.link.send(make_frame(kAdmitted, {base::as_whole(admission)}));
  newcomer.link.advance();
  peer.link.emplace(std::move(newcomer.link));
  return false;
}

// Reads messages of admitted readers, which report that they are ready or leave.
Outcome Writer::hear_peers() {
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    Peer& peer = *peers_[reader];
    if (peer.step != Step::kAdmitted && peer.step != Step::kReady) continue;
    if (!peer.link) continue;
    peer.link->advance();
    const Record record = peer.link->take();
    if (record != nullptr && kind_of(record) == kMapped) peer.step = Step::kReady;
    if (!peer.link->is_closed()) continue;
    return base::fail(Status::kRemote,
                      "queue: writer: the process of %s ended before all readers had attached: %s",
                      describe(reader).c_str(), peer.link->problem().c_str());
  }
  return {};
}

// This must happen before any reader gets kGo, because from then on both sides watch each other's words.
Outcome Writer::hold_life() {
  std::vector<LifeWord*> own, peers;
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    if (!peers_[reader]->is_local) continue;
    own.push_back(&writer_.memory().life_of_writer(reader));
    peers.push_back(&writer_.memory().life_of_reader(reader));
  }
  if (own.empty()) return {};
  if (auto started = life_.start(std::move(own), [this] { notify(); }); !started) return started;
  life_.watch(std::move(peers));
  return {};
}

// After a failure, the next call continues with the step that failed.
Outcome Writer::start_peer(uint32_t reader, base::Deadline deadline) {
  Peer& peer = *peers_[reader];
  if (peer.is_looked_after) return {};
  if (!std::exchange(peer.is_told_to_go, true)) peer.link->send(make_frame(kGo));
  while (peer.link) {
    peer.link->advance();
    if (peer.link->is_flushed()) break;
    if (auto going_on = check_cancelled(); !going_on) return going_on;
    if (deadline.has_passed()) {
      return base::fail(Status::kTimeout, "queue: writer: %s does not read from its connection",
                        describe(reader).c_str());
    }
    pollfd entry = peer.link->poll_entry();
    ::poll(&entry, 1, kStepMs);
  }
  if (!peer.is_local && peer.feed == nullptr) {
    peer.feed = std::make_unique<RemoteFeed>(writer_.memory(), reader, std::move(*peer.link), [this, &peer] {
      peer.feed_ended.store(true, std::memory_order_release);
      notify();
    });
    peer.link.reset();
  }
  const Outcome started =
      peer.is_local ? peer.watch.start(peer.link->poll_entry().fd, false, peer.process, [this] { notify(); })
                    : peer.feed->start();
  peer.is_looked_after = started.is_ok();
  return started;
}

}  // namespace verbena::message_queue
