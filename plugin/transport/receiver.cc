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
  // No chunk lands any more; pages that did land but were never looked at come out of the completion queues
  // here.
  parts_.link.stop();
  for (int empty_polls = 0; empty_polls < 2; ++empty_polls) {
    parts_.link.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
      const bool received = completion.kind != verbs::CompletionKind::kSend && completion.error == 0;
      if (!received || completion.cookie >= parts_.pool->pages()) return true;
      parts_.pool->info(static_cast<uint32_t>(completion.cookie)).queue_pair =
          static_cast<uint8_t>(queue_pair);
      return static_cast<bool>(repost(static_cast<uint32_t>(completion.cookie)));
    });
  }
  for (auto& message : ring_) static_cast<void>(release_pages(message));
  for (uint32_t q = 0; q < parts_.link.queue_pairs(); ++q) {
    parts_.pool->release(*parts_.rails[parts_.link.rail_of(q)], parts_.promised[q]);
  }
  if (parts_.unpack != nullptr) parts_.pool->return_unpack_memory(std::move(parts_.unpack));
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
  message.outstanding = 0;
  message.phase = ReceiveMessage::Phase::kArriving;
  *request = &message;
  return progress();
}

base::Outcome Receiver::progress() {
  if (auto outcome = absorb_completions(); !outcome) return outcome;
  if (next_grant_ != next_) {
    if (auto outcome = send_grants(); !outcome) return outcome;
  }
  return credits_.is_update_due(consumed_) ? send_credits() : base::Outcome();
}

base::Outcome Receiver::absorb_completions() {
  base::Outcome outcome;
  const bool ok = parts_.link.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error != 0) {
      outcome =
          stick(base::fail(base::Status::kRemote, "receive from %s: message %u: %s", watch_->peer().c_str(),
                           consumed_, parts_.link.describe_failure(completion, queue_pair).c_str()));
      return false;
    }
    if (completion.kind == verbs::CompletionKind::kSend) return true;
    if (absorb_chunk(completion, queue_pair)) return true;
    outcome = sticky_ ? stick(base::fail(base::Status::kRemote,
                                         "receive from %s: chunk 0x%08x of %u bytes makes no sense (qp %u)",
                                         watch_->peer().c_str(), completion.imm, completion.length,
                                         completion.qp_number))
                      : sticky_;
    return false;
  });
  if (!ok && outcome) {
    outcome = stick(base::fail(base::Status::kSystem, "receive from %s: completion queue failed",
                               watch_->peer().c_str()));
  }
  if (!ok) return outcome;
  std::string failure;
  if (parts_.loopback && !parts_.loopback->poll(&failure)) {
    return stick(base::fail(base::Status::kSystem, "receive from %s: loopback: %s", watch_->peer().c_str(),
                            failure.c_str()));
  }
  return {};
}

// False: the peer broke the protocol, or the page could not be posted again (then sticky_ says so).
bool Receiver::absorb_chunk(const verbs::Completion& completion, uint32_t queue_pair) {
  const auto tag = protocol::decode_tag(completion.imm);
  const auto page = static_cast<uint32_t>(completion.cookie);
  parts_.pool->info(page).queue_pair = static_cast<uint8_t>(queue_pair);
  if (!tag || tag->direct != (completion.kind == verbs::CompletionKind::kReceiveWrite)) return false;
  const uint32_t sequence = protocol::expand_sequence(consumed_ + kMessageRing / 2, tag->sequence);
  const int32_t ahead = protocol::count_between(consumed_, sequence);
  if (ahead < 0 || ahead >= static_cast<int32_t>(kMessageRing)) return false;
  if (!tag->direct && !tag->last && completion.length != parts_.pool->page_bytes()) return false;  // a hole

  ReceiveMessage& message = ring_[sequence % kMessageRing];
  // A direct chunk answers a grant; a closed message gets none.
  if (message.phase > ReceiveMessage::Phase::kArriving || (tag->direct && !message.is_posted)) return false;
  switch (message.arrivals.record(*tag, completion.length)) {
    case protocol::Arrival::kInvalid:
      return false;
    case protocol::Arrival::kDuplicate:
      return static_cast<bool>(repost(page));
    case protocol::Arrival::kNew:
      break;
  }
  return tag->direct || completion.length == 0 ? static_cast<bool>(repost(page))
                                               : hold_page(message, completion, tag->index, queue_pair);
}

bool Receiver::hold_page(ReceiveMessage& message, const verbs::Completion& completion, uint16_t chunk,
                         uint32_t queue_pair) {
  const auto page = static_cast<uint32_t>(completion.cookie);
  parts_.pool->info(page) = {kNoPage, completion.length, chunk, static_cast<uint8_t>(queue_pair)};
  if (message.last_page == kNoPage) {
    message.first_page = page;
  } else {
    parts_.pool->info(message.last_page).next = page;
  }
  message.last_page = page;
  return true;
}

// In order of posting. A message that has begun to arrive staged needs no grant.
base::Outcome Receiver::send_grants() {
  while (next_grant_ != next_) {
    const ReceiveMessage& message = ring_[next_grant_ % kMessageRing];
    const uint32_t q = next_grant_ % parts_.link.queue_pairs();
    if (message.arrivals.is_empty()) {
      if (parts_.link.pair(q).free_slots() == 0) return {};
      if (auto outcome = send_grant(message, q); !outcome) return outcome;
    }
    ++next_grant_;
  }
  return {};
}

base::Outcome Receiver::send_grant(const ReceiveMessage& message, uint32_t queue_pair) {
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
base::Outcome Receiver::send_credits() {
  if (parts_.link.pair(0).free_slots() == 0) return {};
  const protocol::CreditLine line = credits_.take_update(consumed_);
  return write_control(0, &line, offsetof(protocol::ControlBlock, credits));
}

base::Outcome Receiver::write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes) {
  const bool signaled = ++control_writes_[queue_pair] % kSignalEvery == 0;
  const verbs::WorkRequest request{.opcode = verbs::Opcode::kWrite,
                                   .signaled = signaled,
                                   .send_inline = true,
                                   .cookie = make_cookie(queue_pair, 0),
                                   .local = line,
                                   .length = 64,
                                   .remote_key = peer_.control_keys[queue_pair % peer_.rails],
                                   .remote = peer_.control_address + offset_bytes};
  auto outcome = parts_.link.pair(queue_pair).post({&request, 1});
  return outcome ? outcome : stick(outcome.error());
}

base::Outcome Receiver::stick(base::Error error) {
  if (sticky_) sticky_ = error;
  return sticky_;
}

}  // namespace verbena::transport
