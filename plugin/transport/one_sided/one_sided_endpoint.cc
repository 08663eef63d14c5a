// Operations: from a call to the queue pair.
#include "transport/one_sided/one_sided_endpoint.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "base/log.h"

namespace verbena::transport {

using verbs::OneSidedRequest;
using verbs::Opcode;

namespace {

constexpr uint32_t kWordBytes = sizeof(uint64_t);

unsigned long long wide(uint64_t value) {
  return value;
}

}  // namespace

Posting OneSidedEndpoint::refuse(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  refusal_ = text;
  return Posting::kRefused;
}

// Null, with the reason in refusal_, unless operations may be posted there.
Lane* OneSidedEndpoint::admit(uint32_t peer, uint32_t lane) {
  if (peer >= options_.count_ranks || lane >= options_.lanes) [[unlikely]] {
    refuse("there is no such lane (rank %u of %u, lane %u of %u)", peer, options_.count_ranks, lane,
           options_.lanes);
    return nullptr;
  }
  if (works(peer)) [[likely]]
    return &peers_[peer].lanes[lane];
  const bool has_failed = peers_[peer].state.load(std::memory_order_relaxed) == State::kFailed;
  refuse("%s%s", has_failed ? "the peer has failed: " : "the peer is not connected",
         has_failed ? peers_[peer].error.c_str() : "");
  return nullptr;
}

void OneSidedEndpoint::note_pending(uint32_t peer, uint32_t lane, const Lane& of) {
  if (!of.has_pending()) pending_.push_back(index_of(peer, lane));
}

Posting OneSidedEndpoint::settle(uint32_t peer, uint32_t lane, base::Outcome outcome) {
  if (!outcome) [[unlikely]] {
    fail_peer(peer, "rail " + describe_rail() + ", qp " +
                        std::to_string(peers_[peer].lanes[lane].pair().number()) +
                        ": the device refused what was posted (errno " +
                        std::to_string(outcome.error().errno_value) + "); see dmesg");
  }
  return Posting::kTaken;
}

Posting OneSidedEndpoint::move(Opcode opcode, const Transfer& transfer, uint64_t cookie) {
  Lane* lane = admit(transfer.peer, transfer.lane);
  if (lane == nullptr) return Posting::kRefused;
  const LocalRegion* local = regions_.find_local(transfer.local_region);
  const RemoteRegion* remote = regions_.find_remote(transfer.peer, transfer.remote_region);
  if (local == nullptr || remote == nullptr) [[unlikely]] {
    return refuse("there is no such region (%s, id %u)", local == nullptr ? "here" : "at the peer",
                  local == nullptr ? transfer.local_region : transfer.remote_region);
  }
  if (!is_inside(local->bytes, transfer.local_offset, transfer.bytes) ||
      !is_inside(remote->bytes, transfer.remote_offset, transfer.bytes)) [[unlikely]] {
    return refuse("beyond its region (%llu bytes; here from %llu of %llu, at the peer from %llu of %llu)",
                  wide(transfer.bytes), wide(transfer.local_offset), wide(local->bytes),
                  wide(transfer.remote_offset), wide(remote->bytes));
  }
  const uint64_t parts = transfer.bytes <= max_message_bytes_
                             ? 1
                             : (transfer.bytes + max_message_bytes_ - 1) / max_message_bytes_;
  if (parts > options_.send_depth) [[unlikely]] {
    return refuse("too long for one operation (%llu bytes, at most %llu)", wide(transfer.bytes),
                  wide(max_message_bytes_ * options_.send_depth));
  }
  if (lane->room() < parts) return Posting::kFull;
  note_pending(transfer.peer, transfer.lane, *lane);
  OneSidedRequest request{{.opcode = opcode,
                           .local = local->address + transfer.local_offset,
                           .local_key = local->registration.local_key(),
                           .remote_key = remote->key,
                           .remote = remote->base + transfer.remote_offset}};
  request.send_inline = opcode == Opcode::kWrite && local->is_host && transfer.bytes <= verbs::kInlineBytes;
  uint64_t rest = transfer.bytes;
  base::Outcome outcome;
  for (; rest > max_message_bytes_ && outcome; rest -= request.length) {
    request.length = static_cast<uint32_t>(max_message_bytes_);
    outcome = lane->append(request);
    request.local = static_cast<const std::byte*>(request.local) + request.length;
    request.remote += request.length;
  }
  request.length = static_cast<uint32_t>(rest);
  std::optional<PushedPlace> unpushed;
  if (opcode == Opcode::kRead && get_push_ != nullptr && (!local->is_host || options_.pushes_all_gets))
    unpushed = {local->address + transfer.local_offset, local->registration.remote_key()};
  if (outcome) outcome = lane->append_last(request, cookie, false, unpushed);
  return settle(transfer.peer, transfer.lane, outcome);
}

Posting OneSidedEndpoint::put(const Transfer& transfer, uint64_t cookie) {
  return move(Opcode::kWrite, transfer, cookie);
}

Posting OneSidedEndpoint::get(const Transfer& transfer, uint64_t cookie) {
  return move(Opcode::kRead, transfer, cookie);
}

Posting OneSidedEndpoint::access_word(OneSidedRequest request, const RemoteWord& word, uint64_t cookie) {
  Lane* lane = admit(word.peer, word.lane);
  if (lane == nullptr) return Posting::kRefused;
  const RemoteRegion* remote = regions_.find_remote(word.peer, word.region);
  if (remote == nullptr) [[unlikely]]
    return refuse("there is no such region (at the peer, id %u)", word.region);
  request.remote = remote->base + word.offset;
  if (!is_inside(remote->bytes, word.offset, kWordBytes) || request.remote % kWordBytes != 0) [[unlikely]] {
    return refuse("no such word (at %llu of %llu bytes, which begin at 0x%llx)", wide(word.offset),
                  wide(remote->bytes), wide(remote->base));
  }
  if (lane->room() == 0) return Posting::kFull;
  note_pending(word.peer, word.lane, *lane);
  uint64_t* place = lane->next_word();
  if (request.opcode == Opcode::kWrite) *place = request.addend;
  request.local = place;
  request.local_key = lane->words_key();
  request.length = kWordBytes;
  request.remote_key = remote->key;
  const bool brings_word = request.opcode != Opcode::kWrite;
  return settle(word.peer, word.lane, lane->append_last(request, cookie, brings_word));
}

Posting OneSidedEndpoint::write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) {
  return access_word({{.opcode = Opcode::kWrite, .send_inline = true}, value}, word, cookie);
}

Posting OneSidedEndpoint::add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) {
  if (!device_->supports_atomics()) [[unlikely]]
    return refuse("%s adds to no words", describe_rail().c_str());
  return access_word({{.opcode = Opcode::kFetchAdd}, addend}, word, cookie);
}

Posting OneSidedEndpoint::read_word(const RemoteWord& word, uint64_t cookie) {
  return access_word({{.opcode = Opcode::kRead}}, word, cookie);
}

void OneSidedEndpoint::fence(uint32_t peer, uint32_t lane) {
  if (Lane* of = admit(peer, lane); of != nullptr) of->fence();
}

void OneSidedEndpoint::ring() {
  for (const uint32_t index : pending_) {
    const uint32_t peer = index / options_.lanes;
    if (works(peer)) settle(peer, index % options_.lanes, lane_at(index).ring());
  }
  pending_.clear();
}

uint64_t OneSidedEndpoint::count_taken(uint32_t peer, uint32_t lane) const {
  const bool has_lanes = peer < options_.count_ranks && lane < options_.lanes &&
                         peers_[peer].state.load(std::memory_order_acquire) >= State::kConnected;
  return has_lanes ? peers_[peer].lanes[lane].count_taken() : 0;
}

}  // namespace verbena::transport
