// Receives in, chunks in, grants and credits out. What happens once a message is complete:
// receiver_finish.cc.
#include "transport/receiver.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/parameters.h"
#include "protocol/sequence.h"
#include "transport/advice.h"
#include "transport/observation.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

namespace {

using protocol::kMessageRing;

constexpr uint32_t kSignalEvery = Receiver::kControlDepth / 4;  // control writes

}  // namespace

Receiver::Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerChannel> channel)
    : parts_(std::move(parts)),
      peer_(peer),
      channel_(std::move(channel)),
      is_direct_only_(parts_.pool != parts_.pages),
      first_home_(protocol::choose_home(parts_.link.pair(0).number(), parts_.link.queue_pairs())),
      home_(first_home_),
      wait_(base::parameters().stall_warning_ms),
      recovery_(parts_.link.queue_pairs(), read_recovery_times()),
      failed_("receive from", channel_->peer(), parts_.link, recovery_),
      observed_(observe_end(observe::Direction::kReceive, channel_->peer(), parts_.link)) {
  if (parts_.unpack != nullptr) queue_.emplace(parts_.unpack->host_meta(), parts_.unpack->descriptors());
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) {
    const uint32_t entries = parts_.promises[q].entries;
    credits_.set_window(q, entries);
    spares_[q].limit = std::clamp(entries / 8, 1U, Spare::kMax);
  }
  for (auto& message : ring_) {
    message.kind = RequestKind::kReceive;
    message.owner = this;
  }
  for (auto& flush : flushes_) {
    flush.kind = RequestKind::kFlush;
    flush.owner = this;
  }
}

base::Outcome Receiver::open() {
  join_roster();
  return channel_->watch(this);
}

void Receiver::close() {
  channel_->unwatch();
  leave_roster();
  retire();
  end_observation(observed_);
}

Receiver::~Receiver() {
  close();
  parts_.loopback.reset();  // it may be reading pages
  for (auto& message : ring_) static_cast<void>(release_pages(message));
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) static_cast<void>(repost_spare(q));
  parts_.give_back();
}

void Receiver::Parts::give_back() {
  link.stop();
  give_back_entries();
  if (unpack != nullptr) pages->unpack_memories().give_back(std::move(unpack));
  if (pool != nullptr) pool->retire(std::move(link), rails);
}

void Receiver::Parts::give_back_entries() {
  for (auto& [rail, entries] : promises) {
    if (entries != 0) pool->release(*rail, entries);
    entries = 0;
  }
}

// What most chunks are: a whole message in its place. False: a case for place_chunk().
inline bool Receiver::place_whole(const verbs::Completion& completion) {
  const uint32_t imm = completion.imm();
  if (!protocol::is_whole_direct(imm) || completion.kind() != verbs::CompletionKind::kReceiveWrite)
    return false;
  ReceiveMessage& message = ring_[imm % kMessageRing];
  const bool is_awaited = message.is_posted && static_cast<uint16_t>(message.sequence ^ imm) == 0 &&
                          message.phase == ReceiveMessage::Phase::kArriving && message.arrivals.is_empty();
  if (is_awaited) message.arrivals.record_whole(completion.length);
  return is_awaited;
}

inline void Receiver::absorb_chunk(const verbs::Completion& completion, uint32_t queue_pair) {
  if (observed_ != nullptr) [[unlikely]]
    observe_chunk(completion, queue_pair);
  const bool is_within_window = ++held_[queue_pair] <= parts_.promises[queue_pair].entries;
  if (is_within_window && place_whole(completion)) [[likely]] {
    static_cast<void>(give_back(queue_pair, cookie_page(completion.cookie)));  // a failure sticks
    return;
  }
  if (is_within_window && place_chunk(completion, queue_pair)) return;
  refuse_chunk(completion, queue_pair, is_within_window);
}

// Its message's number modulo the ring is enough to know it by.
void Receiver::observe_chunk(const verbs::Completion& completion, uint32_t queue_pair) {
  const auto tag = protocol::decode_tag(completion.imm());
  if (!tag) return;
  const bool is_write = completion.kind() == verbs::CompletionKind::kReceiveWrite;
  const uint32_t sequence = protocol::expand_sequence(consumed_ + kMessageRing / 2, tag->sequence);
  observed_->note_chunk(sequence, is_write ? observe::Path::kDirect : observe::Path::kStaged,
                        parts_.link.rail_of(queue_pair), completion.qp_number, completion.length);
}

void Receiver::refuse_chunk(const verbs::Completion& completion, uint32_t queue_pair, bool is_within_window) {
  const uint32_t page = cookie_page(completion.cookie);
  static_cast<void>(repost(queue_pair, {&page, 1}));
  static_cast<void>(
      stick(fail_at_pair("receive from", channel_->peer(), parts_.link, queue_pair,
                         is_within_window ? "a chunk makes no sense" : "a chunk came without a credit")));
}

base::Outcome Receiver::absorb_completions() {
  const auto take = [&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error != 0) {
      note_failure(completion, queue_pair);
    } else if (completion.kind() != verbs::CompletionKind::kSend) {
      absorb_chunk(completion, queue_pair);
    }
  };
  const bool ok = parts_.link.poll(
      take, [&](const verbs::Completion& completion, uint32_t rail) { take_back(completion, rail); });
  if (!ok) {
    return stick(
        base::fail(base::Status::kSystem,
                   "receive from %s: completion queue failed: it overran or its device is gone; see dmesg",
                   channel_->peer().c_str()));
  }
  return parts_.loopback ? poll_loopback() : sticky_;
}

base::Outcome Receiver::progress() {
  if (auto outcome = absorb_completions(); !outcome) return outcome;
  if (is_anything_wrong()) [[unlikely]] {
    if (auto outcome = recover(); !outcome) return outcome;
  }
  if (next_grant_ != next_) send_grants();
  if (credits_.is_update_due(consumed_) || must_send_credits_) send_credits();
  return {};
}

base::Outcome Receiver::post(void* data, uint64_t length_bytes, const Registration* memory,
                             ReceiveClass receive_class, Request** request) {
  *request = nullptr;
  if (open_ == 0 && !enter()) return {};
  if (!sticky_) return refuse();
  ReceiveMessage& message = ring_[next_ % kMessageRing];
  const bool takes_slot = queue_ && receive_class != ReceiveClass::kNoSlot;
  if (message.is_posted || (takes_slot && !queue_->has_free_slot())) return progress();
  ++open_;
  message.is_posted = true;
  message.sequence = next_++;
  message.receive_class = queue_ ? receive_class : ReceiveClass::kNoSlot;
  message.slot_taken = takes_slot;
  if (takes_slot) message.slot = queue_->take_slot();
  message.data = static_cast<uint8_t*>(data);
  message.memory = memory;
  message.room_bytes = length_bytes;
  message.outstanding = message.rails_to_flush = 0;
  message.phase = ReceiveMessage::Phase::kArriving;
  *request = &message;
  if (observed_ != nullptr) [[unlikely]]
    return begin_observed(message);
  return begin_receive();
}

inline base::Outcome Receiver::begin_receive() {
  if (queue_) return progress();  // what is staged may be here already, and then needs no grant
  send_grants();
  return sticky_;
}

base::Outcome Receiver::begin_observed(const ReceiveMessage& message) {
  observed_->note_post(message.sequence, message.room_bytes, parts_.link.pair(home_).number());
  const auto outcome = begin_receive();
  observed_->end_post();
  return outcome;
}

base::Outcome Receiver::poll_loopback() {
  std::string failure;
  if (parts_.loopback->poll(&failure)) return sticky_;
  return stick(base::fail(base::Status::kSystem, "receive from %s: loopback: %s", channel_->peer().c_str(),
                          failure.c_str()));
}

// A queue pair failed: often a peer that is done and gone while we still send it credits. What has arrived
// counts.
void Receiver::note_failure(const verbs::Completion& completion, uint32_t queue_pair) {
  take_back(completion, parts_.link.rail_of(queue_pair));
  const std::string cause = parts_.link.describe_failure(completion, queue_pair);
  if (verbs::is_request_at_fault(completion.error)) return note_broken(cause);
  give_up(queue_pair, cause);
}

void Receiver::note_broken(const std::string& cause) {
  if (broken_.empty()) broken_ = cause;
  note_writable();
}

// The page that a failed receive had taken.
void Receiver::take_back(const verbs::Completion& completion, uint32_t rail) {
  if (!is_page_cookie(completion.cookie)) return;
  const uint32_t page = cookie_page(completion.cookie);
  static_cast<void>(parts_.pool->repost(*parts_.rails[rail], {&page, 1}));
}

// False: the peer broke the protocol; then the page is still the caller's.
bool Receiver::place_chunk(const verbs::Completion& completion, uint32_t queue_pair) {
  const auto tag = protocol::decode_tag(completion.imm());
  const bool is_write = completion.kind() == verbs::CompletionKind::kReceiveWrite;
  if (!tag || (tag->direct && !is_write)) return false;  // what is staged may be sent again as a write
  const uint32_t sequence = protocol::expand_sequence(consumed_ + kMessageRing / 2, tag->sequence);
  const int32_t ahead = protocol::count_between(consumed_, sequence);
  if (ahead < 0 || ahead >= static_cast<int32_t>(kMessageRing)) return false;
  if (!tag->direct && !tag->last && completion.length != parts_.pool->page_bytes()) return false;  // a hole

  ReceiveMessage& message = ring_[sequence % kMessageRing];
  // Complete, or closed while an older one is still open.
  const bool is_closed = !message.is_posted && protocol::is_before(sequence, next_);
  if (is_closed || message.phase > ReceiveMessage::Phase::kArriving) return false;
  if (is_write && !message.is_posted) return false;  // it answers no grant
  const auto arrival = message.arrivals.record(*tag, completion.length);
  if (arrival == protocol::Arrival::kInvalid) return false;
  if (arrival == protocol::Arrival::kNew && !is_write && completion.length != 0) {
    hold_page(message, completion, tag->index, queue_pair);
    return true;
  }
  static_cast<void>(give_back(queue_pair, cookie_page(completion.cookie)));  // a failure sticks
  return true;
}

void Receiver::hold_page(ReceiveMessage& message, const verbs::Completion& completion, uint16_t chunk,
                         uint32_t queue_pair) {
  const uint32_t page = cookie_page(completion.cookie);
  parts_.pool->info(page) = {kNoPage, completion.length, chunk, static_cast<uint8_t>(queue_pair)};
  if (message.last_page == kNoPage) {
    message.first_page = page;
  } else {
    parts_.pool->info(message.last_page).next = page;
  }
  message.last_page = page;
}

inline void Receiver::write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes) {
  const bool signaled = ++control_writes_[queue_pair] % kSignalEvery == 0;
  const verbs::WorkRequest request{.opcode = verbs::Opcode::kWrite,
                                   .signaled = signaled,
                                   .send_inline = true,
                                   .cookie = make_cookie(queue_pair, 0),
                                   .local = line,
                                   .length = 64,
                                   .remote_key = peer_.control_keys[queue_pair],
                                   .remote = peer_.control_address + offset_bytes};
  if (!parts_.link.pair(queue_pair).post(request))
    give_up(queue_pair, parts_.link.describe(queue_pair) + ": cannot post a grant or credits");
}

inline void Receiver::send_grant(const ReceiveMessage& message) {
  protocol::Grant grant;
  grant.address = reinterpret_cast<uintptr_t>(message.data);
  std::memcpy(grant.remote_keys, message.memory->remote_keys.data(), sizeof(grant.remote_keys));
  grant.length_bytes = message.room_bytes;
  grant.note = is_direct_only_ ? credits_.take_note(consumed_, home_) : protocol::CreditNote{};
  grant.sequence_plus_one = uint64_t{message.sequence} + 1;
  write_control(home_, &grant,
                offsetof(protocol::ControlBlock, grants) + message.sequence % kMessageRing * sizeof(grant));
}

// In order of posting. A message that has begun to arrive staged needs no grant; where nothing is staged each
// gets one, as credits ride on it. After a failure those that are open get theirs once more.
void Receiver::send_grants() {
  if (observed_ != nullptr) [[unlikely]]
    return send_grants_observed();
  send_grants_noting([](uint32_t) {});
}

void Receiver::send_grants_observed() {
  send_grants_noting([&](uint32_t sequence) { observed_->note_grant(sequence); });
}

template <typename Note>
inline void Receiver::send_grants_noting(Note&& note) {
  while (next_grant_ != next_ && may_write_control_) {
    const ReceiveMessage& message = ring_[next_grant_ % kMessageRing];
    const bool is_open = message.is_posted && message.sequence == next_grant_ &&
                         message.phase == ReceiveMessage::Phase::kArriving;
    if (is_open && (is_direct_only_ || message.arrivals.is_empty() || is_recovering_)) {
      if (parts_.link.pair(home_).free_slots() == 0) return;
      send_grant(message);
      note(next_grant_);
    }
    ++next_grant_;
  }
}

// All on one queue pair, as long as it lives: updates cannot overtake each other.
void Receiver::send_credits() {
  if (!may_write_control_ || parts_.link.pair(credit_pair_).free_slots() == 0) return;
  must_send_credits_ = false;
  const protocol::CreditLine line = credits_.take_update(consumed_);
  write_control(credit_pair_, &line, offsetof(protocol::ControlBlock, credits));
}

base::Outcome Receiver::stick(base::Error error) {
  if (sticky_) {
    sticky_ = error;
    if (observed_ != nullptr) observed_->note_failed();
    report_failure();
  }
  return sticky_;
}

}  // namespace verbena::transport
