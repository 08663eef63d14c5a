// Operations: passes a call to its lane.
#include "transport/one_sided/one_sided_endpoint.h"

#include <cstdarg>
#include <cstdio>

namespace verbena::transport {

using protocol::kWordBytes;
using protocol::LaneOperationKind;

namespace {

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

// Returns null, with the reason in refusal_, if no operation can be posted on this lane.
Lane* OneSidedEndpoint::admit(uint32_t peer, uint32_t lane) {
  if (peer >= options_.count_ranks || lane >= options_.lanes) [[unlikely]] {
    refuse("the rank or the lane does not exist (rank %u of %u, lane %u of %u)", peer, options_.count_ranks,
           lane, options_.lanes);
    return nullptr;
  }
  if (works(peer)) [[likely]]
    return peers_[peer].lanes[lane].get();
  const bool has_failed = peers_[peer].state.load(std::memory_order_relaxed) == State::kFailed;
  refuse("%s%s", has_failed ? "the peer has failed: " : "the peer is not connected",
         has_failed ? peers_[peer].error.c_str() : "");
  return nullptr;
}

Posting OneSidedEndpoint::take(Lane& lane, const Lane::Core::Operation& operation, const void* small) {
  if (!lane.has_room()) return Posting::kFull;
  lane.take(operation, small);
  list(lane);
  return Posting::kTaken;
}

Posting OneSidedEndpoint::move(LaneOperationKind kind, const Transfer& transfer, uint64_t cookie) {
  Lane* lane = admit(transfer.peer, transfer.lane);
  if (lane == nullptr) return Posting::kRefused;
  Lane::Core::Operation operation;
  operation.kind = kind;
  operation.local = regions_.find_local(transfer.local_region);
  operation.remote = regions_.find_remote(transfer.peer, transfer.remote_region);
  if (operation.local == nullptr || operation.remote == nullptr) [[unlikely]] {
    return refuse("the region does not exist (%s, id %u)", operation.local == nullptr ? "local" : "remote",
                  operation.local == nullptr ? transfer.local_region : transfer.remote_region);
  }
  if (!is_inside(operation.local->bytes, transfer.local_offset, transfer.bytes) ||
      !is_inside(operation.remote->bytes, transfer.remote_offset, transfer.bytes)) [[unlikely]] {
    return refuse(
        "the transfer of %llu bytes exceeds its region (local offset %llu in %llu bytes, remote offset %llu "
        "in %llu bytes)",
        wide(transfer.bytes), wide(transfer.local_offset), wide(operation.local->bytes),
        wide(transfer.remote_offset), wide(operation.remote->bytes));
  }
  operation.local_offset = transfer.local_offset;
  operation.remote_offset = transfer.remote_offset;
  operation.length_bytes = transfer.bytes;
  operation.cookie = cookie;
  const void* small = nullptr;
  if (kind == LaneOperationKind::kPut && transfer.bytes <= kWordBytes && operation.local->is_host) {
    // Copied now, because the source may change after the call.
    small = operation.local->address + transfer.local_offset;
    operation.local = nullptr;
  }
  return take(*lane, operation, small);
}

Posting OneSidedEndpoint::put(const Transfer& transfer, uint64_t cookie) {
  return move(LaneOperationKind::kPut, transfer, cookie);
}

Posting OneSidedEndpoint::get(const Transfer& transfer, uint64_t cookie) {
  return move(LaneOperationKind::kGet, transfer, cookie);
}

Posting OneSidedEndpoint::access_word(LaneOperationKind kind, const RemoteWord& word, uint64_t operand,
                                      uint64_t cookie) {
  Lane* lane = admit(word.peer, word.lane);
  if (lane == nullptr) return Posting::kRefused;
  Lane::Core::Operation operation;
  operation.kind = kind;
  operation.remote = regions_.find_remote(word.peer, word.region);
  if (operation.remote == nullptr) [[unlikely]]
    return refuse("the region does not exist (remote, id %u)", word.region);
  const uint64_t address = operation.remote->base + word.offset;
  if (!is_inside(operation.remote->bytes, word.offset, kWordBytes) || address % kWordBytes != 0)
      [[unlikely]] {
    return refuse(
        "the word is outside the region or not aligned to 8 bytes (offset %llu in %llu bytes, region at "
        "0x%llx)",
        wide(word.offset), wide(operation.remote->bytes), wide(operation.remote->base));
  }
  operation.remote_offset = word.offset;
  operation.length_bytes = kWordBytes;
  operation.operand = operand;
  operation.cookie = cookie;
  return take(*lane, operation, nullptr);
}

Posting OneSidedEndpoint::write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) {
  return access_word(LaneOperationKind::kWriteWord, word, value, cookie);
}

Posting OneSidedEndpoint::add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) {
  return access_word(agent_ == nullptr ? LaneOperationKind::kAddWord : LaneOperationKind::kAskAdd, word,
                     addend, cookie);
}

Posting OneSidedEndpoint::read_word(const RemoteWord& word, uint64_t cookie) {
  return access_word(LaneOperationKind::kReadWord, word, 0, cookie);
}

void OneSidedEndpoint::fence(uint32_t peer, uint32_t lane) {
  if (Lane* of = admit(peer, lane); of != nullptr) of->fence();
}

void OneSidedEndpoint::ring() {
  for (size_t i = 0; i < listed_.size(); ++i) {
    if (works(listed_[i]->peer())) listed_[i]->ring();
  }
}

uint64_t OneSidedEndpoint::count_taken(uint32_t peer, uint32_t lane) const {
  const bool has_lanes = peer < options_.count_ranks && lane < options_.lanes &&
                         peers_[peer].state.load(std::memory_order_acquire) >= State::kConnected;
  return has_lanes ? peers_[peer].lanes[lane]->count_taken() : 0;
}

}  // namespace verbena::transport
