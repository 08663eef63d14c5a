// How a writer admits its readers: Writer::wait_until_ready().
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

constexpr int kStepMs = 100;  // how soon a deadline is noticed where nothing comes

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
  listener_ = {};
  callers_.clear();
  is_ready_ = true;
  return {};
}

Outcome Writer::admit(base::Deadline deadline) {
  const auto is_absent = [](const auto& peer) { return peer->step != Step::kReady; };
  while (std::ranges::any_of(peers_, is_absent)) {
    if (auto taken = take_callers(); !taken) return taken;
    std::erase_if(callers_, [this](Caller& caller) { return !advance(caller); });
    if (auto heard = hear_peers(); !heard) return heard;
    if (auto going_on = check_cancelled(); !going_on) return going_on;
    if (deadline.has_passed()) return fail_absent();
    if (base::is_interrupted()) return base::Error{Status::kTimeout, 0};
    std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    // A post that had no room for our descriptor is tried again soon.
    bool is_post_full = false;
    for (const Caller& caller : callers_) {
      polled.push_back(caller.link.poll_entry());
      is_post_full = is_post_full || caller.post;
    }
    for (const auto& peer : peers_)
      if (peer->link) polled.push_back(peer->link->poll_entry());
    const int64_t limit_ms = is_post_full ? 10 : 1000;
    if (!std::ranges::any_of(peers_, is_absent)) break;
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
      "queue: writer: of %zu readers these did not come in time: %s; are their processes alive and in "
      "wait_until_ready(), and can they reach %s?",
      peers_.size(), absent.c_str(), base::describe(handle_.writer).c_str());
}

Outcome Writer::take_callers() {
  for (;;) {
    auto socket = listener_.accept();
    if (!socket) return socket.error();
    if (!*socket) return {};
    callers_.push_back({bootstrap::Link::accept(std::move(**socket), proof_), std::nullopt, 0,
                        base::Deadline::after_ms(bootstrap::kIntroductionMs)});
  }
}

// Whether no reader has that number yet; of kAnyReader whether any is left.
bool Writer::is_free(uint32_t reader) const {
  const auto is_absent = [](const auto& peer) { return peer->step == Step::kAbsent; };
  return reader == kAnyReader ? std::ranges::any_of(peers_, is_absent) : is_absent(peers_[reader]);
}

// False: it is done with, as a reader or as a stranger.
bool Writer::advance(Caller& caller) {
  bootstrap::Link& link = caller.link;
  link.advance();
  if (const bootstrap::Hello* hello = link.asking()) {
    Refusal refusal = Refusal::kNone;
    if (hello->purpose != kQueuePurpose || !bootstrap::is_same_nonce(hello->nonce, handle_.nonce)) {
      refusal = Refusal::kOtherJob;
    } else if (hello->rank >= peers_.size() && hello->rank != kAnyReader) {
      refusal = Refusal::kUnexpected;
    } else if (!is_free(hello->rank)) {
      refusal = Refusal::kRankTaken;
    }
    caller.reader = hello->rank;
    link.answer(refusal);
    link.advance();
  }
  if (link.refusal() != Refusal::kNone && link.is_closed()) {
    base::log_warn("queue: a caller at %s was refused: %s", base::describe(handle_.writer).c_str(),
                   bootstrap::describe_caller(link.refusal()));
    return false;
  }
  if (link.is_closed() || caller.deadline.has_passed()) {
    if (caller.post) peers_[caller.reader]->step = Step::kAbsent;
    return false;
  }
  if (!caller.post) {
    const Record record = link.take();
    return record == nullptr || hear(caller, record);
  }
  const auto sent = bootstrap::UnixPost::send(*caller.post, caller.reader, ring_.fd());
  if (!sent) return false;
  if (!*sent) return true;
  Peer& peer = *peers_[caller.reader];
  const Admission admission{options_.shape, 1, caller.reader, name_own_process()};
  link.send(make_frame(kAdmitted, {base::as_whole(admission)}));
  link.advance();
  peer.link.emplace(std::move(link));
  return false;
}

bool Writer::hear(Caller& caller, const Record& record) {
  Attachment attachment;
  if (kind_of(record) != kAttach || !read_payload(record, attachment) || !is_free(caller.reader))
    return false;
  if (caller.reader == kAnyReader) {
    caller.reader = static_cast<uint32_t>(peers_.size()) - 1;
    while (!is_free(caller.reader)) --caller.reader;
  }
  Peer& peer = *peers_[caller.reader];
  peer.step = Step::kAdmitted;
  peer.process = attachment.process;
  peer.is_local = attachment.host == host_;
  if (peer.is_local) {
    caller.post = attachment.post;
    return advance(caller);
  }
  const Admission admission{options_.shape, 0, caller.reader, name_own_process()};
  caller.link.send(make_frame(kAdmitted, {base::as_whole(admission)}));
  caller.link.advance();
  peer.link.emplace(std::move(caller.link));
  return false;
}

// Those that were admitted: whether they are ready, or gone.
Outcome Writer::hear_peers() {
  for (uint32_t reader = 0; reader < peers_.size(); ++reader) {
    Peer& peer = *peers_[reader];
    if (peer.step != Step::kAdmitted && peer.step != Step::kReady) continue;
    if (!peer.link) continue;
    peer.link->advance();
    const Record record = peer.link->take();
    if (record != nullptr && kind_of(record) == kMapped) peer.step = Step::kReady;
    if (!peer.link->is_closed()) continue;
    return base::fail(Status::kRemote, "queue: writer: %s went before all readers had come: %s",
                      describe(reader).c_str(), peer.link->problem().c_str());
  }
  return {};
}

// Before a reader is told to go: it looks after our words from then on, as we do after those that it holds.
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

// After a failure the next call goes on from there.
Outcome Writer::start_peer(uint32_t reader, base::Deadline deadline) {
  Peer& peer = *peers_[reader];
  if (peer.is_looked_after) return {};
  if (!std::exchange(peer.is_told_to_go, true)) peer.link->send(make_frame(kGo));
  while (peer.link) {
    peer.link->advance();
    if (peer.link->is_flushed()) break;
    if (auto going_on = check_cancelled(); !going_on) return going_on;
    if (deadline.has_passed()) {
      return base::fail(Status::kTimeout, "queue: writer: %s takes nothing from its connection",
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
