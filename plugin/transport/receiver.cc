// Receives in, chunks in, grants and credits out. What happens once a message is complete:
// receiver_finish.cc.
#include "transport/receiver.h"

#include "base/log.h"
#include "base/parameters.h"
#include "protocol/sequence.h"

namespace verbena::transport {

namespace {

using protocol::kMessageRing;

constexpr uint32_t kSignalEvery = 16;  // control writes; below send_depth / 4 of a receiving link

}  // namespace

Receiver::Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerWatch> watch)
    : parts_(std::move(parts)),
      peer_(peer),
      watch_(std::move(watch)),
      wait_(base::parameters().stall_warning_ms) {
  if (parts_.unpack != nullptr) queue_.emplace(parts_.unpack->host_meta());
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) credits_.set_window(q, parts_.promised[q]);
  for (auto& message : ring_) {
    message.kind = RequestKind::kReceive;
    message.owner = this;
  }
  for (auto& flush : flushes_) {
    flush.kind = RequestKind::kFlush;
    flush.owner = this;
  }
}

Receiver::~Receiver() {
  parts_.loopback.reset();  // it may be reading pages
  for (auto& message : ring_) static_cast<void>(release_pages(message));
  parts_.give_back();
}

void Receiver::Parts::give_back() {
  link.stop();
  for (uint32_t q = 0; q < link.queue_pairs(); ++q) {
    if (promised[q] != 0) pool->release(*rails[link.rail_of(q)], promised[q]);
  }
  if (unpack != nullptr) pool->return_unpack_memory(std::move(unpack));
  pool->retire(std::move(link), rails);
}

base::Outcome Receiver::post(void* data, uint64_t length_bytes, const Registration* memory,
                             ReceiveClass receive_class, Request** request) {
  *request = nullptr;
  if (!sticky_) return sticky_;
  ReceiveMessage& message = ring_[next_ % kMessageRing];
  const bool takes_slot = queue_ && receive_class != ReceiveClass::kNoSlot;
  if (message.is_posted || (takes_slot && !queue_->has_free_slot())) return progress();
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
  return progress();
}

base::Outcome Receiver::progress() {
  if (auto outcome = absorb_completions(); !outcome) return outcome;
  if (next_grant_ != next_) send_grants();
  if (credits_.is_update_due(consumed_)) send_credits();
  return {};
}

base::Outcome Receiver::absorb_completions() {
  const bool ok = parts_.link.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error != 0) {
      note_broken(completion, queue_pair);
    } else if (completion.kind != verbs::CompletionKind::kSend) {
      absorb_chunk(completion, queue_pair);
    }
  });
  if (!ok) {
    return stick(base::fail(base::Status::kSystem, "receive from %s: completion queue failed",
                            watch_->peer().c_str()));
  }
  std::string failure;
  if (parts_.loopback && !parts_.loopback->poll(&failure)) {
    return stick(base::fail(base::Status::kSystem, "receive from %s: loopback: %s", watch_->peer().c_str(),
                            failure.c_str()));
  }
  return sticky_;
}

// A queue pair failed: usually a peer that is done and gone while we still send it credits. What has arrived
// counts; only a message that is still incomplete fails (test()).
void Receiver::note_broken(const verbs::Completion& completion, uint32_t queue_pair) {
  if (broken_.empty()) broken_ = parts_.link.describe_failure(completion, queue_pair);
  if (!is_page_cookie(completion.cookie)) return;
  const uint32_t page = cookie_page(completion.cookie);
  static_cast<void>(parts_.pool->repost(*parts_.rails[parts_.link.rail_of(queue_pair)], {&page, 1}));
}

void Receiver::absorb_chunk(const verbs::Completion& completion, uint32_t queue_pair) {
  const bool is_within_window = ++held_[queue_pair] <= parts_.promised[queue_pair];
  if (is_within_window && place_chunk(completion, queue_pair)) return;
  const uint32_t page = cookie_page(completion.cookie);
  static_cast<void>(repost(queue_pair, {&page, 1}));
  static_cast<void>(
      stick(base::fail(base::Status::kRemote, "receive from %s: chunk 0x%08x of %u bytes %s (qp %u)",
                       watch_->peer().c_str(), completion.imm, completion.length,
                       is_within_window ? "makes no sense" : "came without a credit", completion.qp_number)));
}

// False: the peer broke the protocol; then the page is still the caller's.
bool Receiver::place_chunk(const verbs::Completion& completion, uint32_t queue_pair) {
  const auto tag = protocol::decode_tag(completion.imm);
  if (!tag || tag->direct != (completion.kind == verbs::CompletionKind::kReceiveWrite)) return false;
  const uint32_t sequence = protocol::expand_sequence(consumed_ + kMessageRing / 2, tag->sequence);
  const int32_t ahead = protocol::count_between(consumed_, sequence);
  if (ahead < 0 || ahead >= static_cast<int32_t>(kMessageRing)) return false;
  if (!tag->direct && !tag->last && completion.length != parts_.pool->page_bytes()) return false;  // a hole

  ReceiveMessage& message = ring_[sequence % kMessageRing];
  // Complete, or closed while an older one is still open.
  const bool is_closed = !message.is_posted && protocol::is_before(sequence, next_);
  if (is_closed || message.phase > ReceiveMessage::Phase::kArriving) return false;
  if (tag->direct && !message.is_posted) return false;  // it answers no grant
  const auto arrival = message.arrivals.record(*tag, completion.length);
  if (arrival == protocol::Arrival::kInvalid) return false;
  if (arrival == protocol::Arrival::kNew && !tag->direct && completion.length != 0) {
    hold_page(message, completion, tag->index, queue_pair);
    return true;
  }
  const uint32_t page = cookie_page(completion.cookie);
  static_cast<void>(repost(queue_pair, {&page, 1}));  // a failure sticks
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

// In order of posting. A message that has begun to arrive staged needs no grant.
void Receiver::send_grants() {
  while (next_grant_ != next_ && broken_.empty()) {
    const ReceiveMessage& message = ring_[next_grant_ % kMessageRing];
    const uint32_t q = next_grant_ % parts_.link.queue_pairs();
    if (message.arrivals.is_empty()) {
      if (parts_.link.pair(q).free_slots() == 0) return;
      send_grant(message, q);
    }
    ++next_grant_;
  }
}

void Receiver::send_grant(const ReceiveMessage& message, uint32_t queue_pair) {
  protocol::Grant grant{};
  grant.address = reinterpret_cast<uintptr_t>(message.data);
  for (uint32_t r = 0; r < parts_.link.rails(); ++r)
    grant.remote_keys[r] = message.memory->regions[r].remote_key();
  grant.length_bytes = message.room_bytes;
  grant.sequence_plus_one = uint64_t{message.sequence} + 1;
  return write_control(
      queue_pair, &grant,
      offsetof(protocol::ControlBlock, grants) + message.sequence % kMessageRing * sizeof(grant));
}

// Always on the first queue pair: updates cannot overtake each other.
void Receiver::send_credits() {
  if (!broken_.empty() || parts_.link.pair(0).free_slots() == 0) return;
  const protocol::CreditLine line = credits_.take_update(consumed_);
  write_control(0, &line, offsetof(protocol::ControlBlock, credits));
}

void Receiver::write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes) {
  const bool signaled = ++control_writes_[queue_pair] % kSignalEvery == 0;
  const verbs::WorkRequest request{.opcode = verbs::Opcode::kWrite,
                                   .signaled = signaled,
                                   .send_inline = true,
                                   .cookie = make_cookie(queue_pair, 0),
                                   .local = line,
                                   .length = 64,
                                   .remote_key = peer_.control_keys[queue_pair],
                                   .remote = peer_.control_address + offset_bytes};
  if (!parts_.link.pair(queue_pair).post({&request, 1})) broken_ = "a grant or credit could not be posted";
}

base::Outcome Receiver::stick(base::Error error) {
  if (sticky_) sticky_ = error;
  return sticky_;
}

}  // namespace verbena::transport
