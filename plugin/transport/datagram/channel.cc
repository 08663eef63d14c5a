#include "transport/datagram/channel.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/hot_path.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/datagram/engine.h"
#include "transport/service/observation.h"
#include "transport/service/state_dump.h"

namespace verbena::transport::datagram {

using base::Outcome;
using base::Status;
using protocol::datagram::kMaxPacketIndex;
using protocol::datagram::kNoObject;
using protocol::datagram::kRing;
using protocol::datagram::ReceiveState;
using State = ChannelRequest::State;

namespace {

// Returns whether an open request reads or writes the memory.
template <typename Requests>
bool uses_in(const Requests& requests, const Registration* memory) {
  return std::any_of(requests.begin(), requests.end(), [memory](const auto& request) {
    return request.state.load(std::memory_order_relaxed) == State::kOpen && request.memory == memory;
  });
}

std::vector<std::string> name_rails(const Engine& engine) {
  std::vector<std::string> names;
  for (const auto& rail : engine.rails()) names.push_back(name_rail(rail->device()));
  return names;
}

// Chooses the length of the pieces into which a message is split. One warp copies a piece and needs some time
// for each piece in addition to the time for its bytes, so a message has only as many pieces as are needed to
// occupy all warps of a block.
uint32_t choose_piece_bytes(uint64_t message_bytes) {
  constexpr uint64_t kEnoughPieces = 32, kMostPieceBytes = 4 * kUnpackPageBytes;
  const uint64_t pages = message_bytes / kEnoughPieces / kUnpackPageBytes;
  return static_cast<uint32_t>(std::clamp(pages * kUnpackPageBytes, kUnpackPageBytes, kMostPieceBytes));
}

}  // namespace

ChannelEnd::ChannelEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
                       observe::Direction direction)
    : engine_(std::move(engine)),
      peer_(peer),
      channel_(channel),
      wire_(wire),
      direction_(direction),
      observed_(observe_end(direction, engine_->peer_of(peer).text, name_rails(*engine_))) {}

ChannelEnd::~ChannelEnd() {
  end_observation(observed_);
}

void ChannelEnd::fail(Outcome failure) {
  if (has_failed()) return;
  failure_ = failure;
  has_failed_.store(true, std::memory_order_release);
  if (has_ended_) return;  // its memory was deregistered; this is not an error
  const char* const side = direction_ == observe::Direction::kSend ? " to " : " from ";
  request_report(ReportCause::kFailure, "datagrams: channel " + std::to_string(wire_) + side +
                                            engine_->peer_of(peer_).text + " failed");
}

Outcome ChannelEnd::tell_failure() {
  if (observed_ != nullptr && !std::exchange(is_failure_told_, true)) observed_->note_failed();
  return failure_;
}

Outcome ChannelEnd::check_peer(const char* direction, const char* open) {
  const int64_t grace_ms = base::parameters().peer_grace_ms;
  if (!has_peer_closed() || engine_->now_ns() - closed_ns_ < grace_ms * base::kNsPerMs) return {};
  fail(base::fail(Status::kRemote,
                  "datagrams: channel %u %s %s: the peer closed the channel %lld ms ago "
                  "(VERBENA_PEER_GRACE_MS), but a %s is still open",
                  wire_, direction, engine_->peer_of(peer_).text.c_str(), static_cast<long long>(grace_ms),
                  open));
  return tell_failure();
}

template <typename End, typename Requested>
void ChannelEndOf<End, Requested>::own_requests(RequestKind kind) {
  for (Requested& request : requests_) {
    request.kind = kind;
    request.owner = static_cast<End*>(this);
  }
}

template <typename End, typename Requested>
void ChannelEndOf<End, Requested>::leave() {
  const EngineGuard guard(*engine_, EngineGuard::Waits{});
  end_messages();
}

template <typename End, typename Requested>
void ChannelEndOf<End, Requested>::end_messages() {
  if (!std::exchange(has_ended_, true)) engine_->detach(static_cast<End*>(this));
}

template <typename End, typename Requested>
void ChannelEndOf<End, Requested>::release_memory(const Registration* memory) {
  const EngineGuard guard(*engine_, EngineGuard::Waits{});
  if (!static_cast<End*>(this)->uses(memory)) return;
  end_messages();
  fail(base::Error{Status::kInvalidUsage});
}

template <typename End, typename Requested>
template <typename Looked>
VERBENA_HOT_PATH Outcome ChannelEndOf<End, Requested>::look(const Looked& request, const char* direction,
                                                            const char* open, bool* is_done) {
  *is_done = false;
  if (request.state.load(std::memory_order_acquire) != State::kDone) {
    if (const EngineGuard guard(*engine_); guard) {
      engine_->pass();
      if (request.state.load(std::memory_order_relaxed) != State::kDone) {
        if (has_failed()) return tell_failure();
        return static_cast<End*>(this)->awaits_peer(request) ? check_peer(direction, open) : Outcome();
      }
    } else if (request.state.load(std::memory_order_acquire) != State::kDone) {
      return has_failed() ? tell_failure() : Outcome();
    }
  }
  *is_done = true;
  return {};
}

template <typename End, typename Requested>
void ChannelEndOf<End, Requested>::begin_request(Requested& request, uint32_t number,
                                                 const Registration* memory) {
  request.number = number;
  request.memory = memory;
  request.rails = 0;
  request.resent = 0;
}

// Call this after test() has found the request complete.
template <typename End, typename Requested>
void ChannelEndOf<End, Requested>::note_done(const Requested& request) {
  if (observed_ == nullptr) return;
  observed_->note_done(request.number, request.length_bytes, {request.rails, request.resent});
}

template class ChannelEndOf<SendEnd, SendRequest>;
template class ChannelEndOf<ReceiveEnd, ReceiveRequest>;

bool ReceiveEnd::uses(const Registration* memory) const {
  return uses_in(requests_, memory) || (flushes_ != nullptr && uses_in(*flushes_, memory));
}

bool ReceiveEnd::awaits_peer(const ReceiveRequest& request) const {
  return engine_->core().receive_message(request.message).state != ReceiveState::kMoving;
}

bool SendEnd::uses(const Registration* memory) const {
  return uses_in(requests_, memory);
}

bool SendEnd::is_read() const {
  return std::any_of(requests_.begin(), requests_.end(), [](const SendRequest& request) {
    return request.state.load(std::memory_order_relaxed) == State::kOpen && request.posted != 0;
  });
}

Statistics SendEnd::close() {
  leave();
  return statistics_;
}

VERBENA_HOT_PATH Posted SendEnd::post(const void* data, uint64_t length_bytes, const Registration* memory,
                                      bool /*may_stage*/, int32_t /*tag*/) {
  const EngineGuard guard(*engine_);
  if (!guard) return {};
  if (has_failed()) return {nullptr, tell_failure()};  // also after the end was closed
  if (has_peer_closed())
    return {nullptr, base::fail(Status::kRemote, "datagrams: channel %u to %s: the peer closed the channel",
                                wire_, engine_->peer_of(peer_).text.c_str())};
  const uint32_t number = engine_->core().send_channel(channel_).next;
  SendRequest& request = requests_[number % kRing];
  if (request.state.load(std::memory_order_relaxed) != State::kFree) return {};
  const uint32_t data_bytes = engine_->core().peer(peer_).data_bytes;
  if (length_bytes > uint64_t{data_bytes} * (kMaxPacketIndex - 1))
    return {nullptr,
            base::fail(Status::kInvalidArgument,
                       "isend: a message of %llu bytes is too long to be sent in datagrams of %u bytes",
                       static_cast<unsigned long long>(length_bytes), data_bytes)};
  const uint32_t message = engine_->core().send(channel_, length_bytes);
  if (message == kNoObject) return {};
  request.length_bytes = length_bytes;
  request.data = static_cast<const std::byte*>(data);
  begin_request(request, number, memory);
  request.posted = 0;
  request.is_acked = false;
  request.state.store(State::kOpen, std::memory_order_relaxed);
  engine_->attach(message, &request);
  statistics_.sent[1].count(length_bytes);
  if (observed_ != nullptr) [[unlikely]] {
    observed_->note_post(number, length_bytes, 0);
    observed_->begin_whole(number, length_bytes, engine_->rails()[0]->control.number());
  }
  engine_->pass();
  return {&request, {}};
}

VERBENA_HOT_PATH Outcome SendEnd::test(Request& tested, int* done, int* lengths_bytes) {
  *done = 0;
  auto& request = static_cast<SendRequest&>(tested);
  bool is_done = false;
  const Outcome outcome = look(request, "to", "send", &is_done);
  if (!is_done) return outcome;
  if (lengths_bytes != nullptr) *lengths_bytes = static_cast<int>(request.length_bytes);
  note_done(request);
  request.state.store(State::kFree, std::memory_order_relaxed);
  *done = 1;  // last, because a call that throws reports an error
  return {};
}

base::Result<std::unique_ptr<LendingQueue>> LendingQueue::create(std::shared_ptr<PageSpace> space,
                                                                 const Limits& limits) {
  UnpackMemories& memories = space->unpack_memories();
  auto memory = memories.take(limits.pages * limits.pieces, space->bounce_base());
  if (!memory) return memory.error();
  Limits reached = limits;
  if (!space->is_reached_from_here()) reached.pages = 0;
  return std::unique_ptr<LendingQueue>(
      new LendingQueue(std::move(space), memories, std::move(*memory), reached));
}

ReceiveEnd::ReceiveEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
                       std::unique_ptr<LendingQueue> lending)
    : ChannelEndOf(std::move(engine), peer, channel, wire, observe::Direction::kReceive),
      ReceivingEnd(lending != nullptr, 1),
      lending_(std::move(lending)) {
  own_requests(RequestKind::kReceive);
}

Statistics ReceiveEnd::close() {
  leave();
  return statistics_;
}

VERBENA_HOT_PATH Posted ReceiveEnd::post(void* data, uint64_t room_bytes, const Registration* memory,
                                         ReceiveClass receive_class, int32_t /*tag*/) {
  const EngineGuard guard(*engine_);
  if (!guard) return {};
  if (has_failed()) return {nullptr, tell_failure()};  // also after the end was closed
  const uint32_t number = engine_->core().receive_channel(channel_).next;
  ReceiveRequest& request = requests_[number % kRing];
  if (request.state.load(std::memory_order_relaxed) != State::kFree) return {};
  const bool takes_slot = lending_ != nullptr && receive_class != ReceiveClass::kNoSlot;
  if (takes_slot && !lending_->slots.has_free_slot()) return {};
  const bool may_lend = takes_slot && receive_class == ReceiveClass::kUnpacked && engine_->may_lend();
  const uint32_t message = engine_->core().post(channel_, room_bytes, may_lend ? lending_->most_pages() : 0);
  if (message == kNoObject) return {};
  if (engine_->core().is_too_long(message)) {
    engine_->refuse_too_long(*this, room_bytes);
    end_messages();  // unexpected messages are discarded
    return {nullptr, tell_failure()};
  }
  request.data = static_cast<std::byte*>(data);
  request.has_slot = takes_slot;
  if (takes_slot) request.slot = lending_->slots.take_slot();
  request.message = message;
  request.descriptors = 0;
  begin_request(request, number, memory);
  request.state.store(State::kOpen, std::memory_order_relaxed);
  engine_->attach(message, &request);
  if (observed_ != nullptr) [[unlikely]]
    observed_->note_post(number, room_bytes, engine_->rails()[0]->control.number());
  engine_->core().settle(message);
  engine_->pass();
  return {&request, {}};
}

// Always one buffer, because max_buffers() is 1.
Outcome ReceiveEnd::post_group(std::span<const ReceiveBuffer> buffers, Request** out) {
  const ReceiveBuffer& only = buffers.front();
  return post(only.data, only.length_bytes, only.memory, ReceiveClass::kNoSlot, out, only.tag);
}

VERBENA_HOT_PATH Outcome ReceiveEnd::test(Request& tested, int* done, int* lengths_bytes) {
  *done = 0;
  if (tested.kind == RequestKind::kFlush) {
    if (lengths_bytes != nullptr) *lengths_bytes = 0;
    return test_flush(static_cast<ChannelFlush&>(tested), done);
  }
  auto& request = static_cast<ReceiveRequest&>(tested);
  bool is_done = false;
  const Outcome outcome = look(request, "from", "receive", &is_done);
  if (!is_done) return outcome;
  note_done(request);
  if (lengths_bytes != nullptr) *lengths_bytes = static_cast<int>(request.length_bytes);
  statistics_.received_staged_bytes += request.length_bytes;
  ++statistics_.received_staged_messages;
  statistics_.unpack_descriptors += request.descriptors;
  if (request.descriptors == 0) ++statistics_.copied_messages;
  request.state.store(lending_ != nullptr ? State::kReported : State::kFree, std::memory_order_relaxed);
  *done = 1;  // last, because a call that throws reports an error
  return {};
}

VERBENA_HOT_PATH Outcome ReceiveEnd::consume(Request& consumed) {
  auto& request = static_cast<ReceiveRequest&>(consumed);
  if (lending_ == nullptr) return {};  // the request was free as soon as it was done
  if (request.state.load(std::memory_order_relaxed) != State::kReported)
    return base::fail(Status::kInvalidUsage,
                      "irecvConsumed: datagrams: channel %u: the receive is not complete", wire_);
  if (request.has_slot) lending_->slots.clear(request.slot);
  if (request.descriptors != 0) {
    const EngineGuard guard(*engine_, EngineGuard::Waits{});
    if (!has_ended_) engine_->core().release(request.message);
  }
  request.state.store(State::kFree, std::memory_order_relaxed);
  return {};
}

void ReceiveEnd::describe_page(ReceiveRequest& request, uint32_t offset, uint64_t target,
                               uint32_t length_bytes) {
  // The engine lends only as many pages as the slot has space for.
  const uint32_t before = lending_->slots.pending(request.slot);
  const uint32_t piece_bytes =
      std::max(choose_piece_bytes(request.length_bytes), lending_->least_piece_bytes());
  lending_->slots.append(request.slot, offset, target, length_bytes, piece_bytes);
  request.descriptors += lending_->slots.pending(request.slot) - before;
}

Outcome ReceiveEnd::flush(const void* data, const Registration* memory, Request** out) {
  *out = nullptr;
  // Waits for the token; a null request would mean that no flush is necessary.
  const EngineGuard guard(*engine_, EngineGuard::Waits{});
  if (has_failed()) return failure_;
  if (!memory->is_gpu_memory || !engine_->has_to_flush()) return {};
  if (flushes_ == nullptr) {
    flushes_ = std::make_unique<std::array<ChannelFlush, kRing>>();
    for (ChannelFlush& flush : *flushes_) {
      flush.kind = RequestKind::kFlush;
      flush.owner = this;
    }
  }
  const auto free = std::find_if(flushes_->begin(), flushes_->end(), [](const ChannelFlush& flush) {
    return flush.state.load(std::memory_order_relaxed) == State::kFree;
  });
  if (free == flushes_->end())
    return base::fail(Status::kInternal,
                      "datagrams: channel %u from %s: too many flushes are outstanding (%zu)", wire_,
                      engine_->peer_of(peer_).text.c_str(), flushes_->size());
  free->data = data;
  free->memory = memory;
  free->state.store(State::kOpen, std::memory_order_relaxed);
  engine_->flush(&*free);
  engine_->pass();
  *out = &*free;
  return {};
}

Outcome ReceiveEnd::test_flush(ChannelFlush& request, int* done) {
  bool is_done = false;
  const Outcome outcome = look(request, "from", "flush", &is_done);
  if (!is_done) return outcome;
  request.state.store(State::kFree, std::memory_order_relaxed);
  *done = 1;
  return {};
}

}  // namespace verbena::transport::datagram
