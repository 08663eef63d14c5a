// From "all chunks are there" to "the caller may have it", and back to free pages.
#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "transport/advice.h"
#include "transport/receiver.h"

namespace verbena::transport {

namespace {

// One descriptor is copied by one warp: 4 KiB keeps all warps of a block busy. At most 1024 of them for any
// message, so that its pages (at most kMaxChunks, each rounding up once) still fit the slot.
uint32_t choose_piece_bytes(uint64_t length_bytes) {
  const uint64_t pages = (length_bytes / (kUnpackMaxDescriptors / 2) + kUnpackPageBytes) / kUnpackPageBytes;
  return static_cast<uint32_t>(pages * kUnpackPageBytes);
}

}  // namespace

using Phase = ReceiveMessage::Phase;

inline base::Outcome Receiver::make_ready(ReceiveMessage& message) {
  message.phase = Phase::kReady;
  if (message.first_page != kNoPage) return hand_over(message);
  ++statistics_.received_direct_messages;
  statistics_.received_direct_bytes += message.arrivals.bytes();
  return {};
}

// A staged message to its kernel.
base::Outcome Receiver::hand_over(ReceiveMessage& message) {
  ++statistics_.received_staged_messages;
  statistics_.received_staged_bytes += message.arrivals.bytes();
  if (message.receive_class == ReceiveClass::kUnpacked) {
    statistics_.unpack_descriptors += queue_->pending(message.slot);
    queue_->publish(message.slot);
    return {};
  }
  ++statistics_.copied_messages;
  return release_pages(message);
}

inline base::Outcome Receiver::finish_arrival(ReceiveMessage& message) {
  if (message.arrivals.bytes() > message.room_bytes) {
    return stick(base::fail(
        base::Status::kInvalidUsage,
        "receive from %s: message %u is longer than its receive (%llu bytes, room %llu bytes)%s",
        channel_->peer().c_str(), message.sequence, static_cast<unsigned long long>(message.arrivals.bytes()),
        static_cast<unsigned long long>(message.room_bytes), kLengthAdvice));
  }
  if (message.first_page == kNoPage) return make_ready(message);
  message.phase = Phase::kMoving;
  if (message.receive_class != ReceiveClass::kUnpacked) {
    message.next_move = message.first_page;
    return {};
  }
  if (auto outcome = describe_pages(message); !outcome) return outcome;
  if (parts_.flushes && parts_.pool->is_gpu_memory()) message.rails_to_flush = parts_.link.rails();
  return {};
}

[[gnu::always_inline]] inline base::Outcome Receiver::advance(ReceiveMessage& message) {
  if (is_here(message)) {
    if (auto outcome = finish_arrival(message); !outcome) return outcome;
  }
  if (message.phase != Phase::kMoving) return {};
  if (message.next_move != kNoPage) {
    if (auto outcome = move_pages(message); !outcome) return outcome;
  }
  if (message.rails_to_flush != 0) {
    if (auto outcome = flush_pages(message); !outcome) return outcome;
  }
  const bool is_finished =
      message.next_move == kNoPage && message.rails_to_flush == 0 && message.outstanding == 0;
  return is_finished ? make_ready(message) : base::Outcome();
}

inline base::Outcome Receiver::close_message(ReceiveMessage& message) {
  if (message.slot_taken) queue_->clear(message.slot);
  message.slot_taken = message.is_posted = false;
  message.arrivals.reset();
  message.phase = Phase::kFree;
  const auto outcome = message.first_page == kNoPage ? base::Outcome() : release_pages(message);
  // Tested out of order, messages close out of order; the sender is told of the closed ones without a gap.
  while (consumed_ != next_) {
    const ReceiveMessage& oldest = ring_[consumed_ % protocol::kMessageRing];
    if (oldest.is_posted && oldest.sequence == consumed_) break;
    ++consumed_;
  }
  return outcome;
}

base::Outcome Receiver::test(ReceiveMessage& message, bool* done, uint64_t* bytes) {
  *done = false;
  if (!sticky_) return sticky_;
  // Only a look at all rails that begins after the failure has seen everything that came before it.
  const bool was_broken = !broken_.empty();
  if (!is_here(message)) {  // another's test may have found it
    if (auto outcome = progress(); !outcome) return outcome;
  }
  if (is_here(message) || message.phase == Phase::kMoving) {
    if (auto outcome = advance(message); !outcome) return outcome;
  }
  if (message.phase != Phase::kReady) {
    if (message.phase == Phase::kArriving && was_broken) return fail_broken(message);
    return wait_.is_check_due(is_pressing()) ? check_wait(message) : base::Outcome();
  }
  wait_.note_progress();
  *done = true;
  *bytes = message.arrivals.bytes();
  message.phase = Phase::kReported;
  if (observed_ != nullptr) [[unlikely]]
    return report_observed(message);
  return report(message);
}

inline base::Outcome Receiver::report(ReceiveMessage& message) {
  if (parts_.waits_for_consumed) return {};
  const auto outcome = close_message(message);
  finish_request();
  return outcome;
}

base::Outcome Receiver::report_observed(ReceiveMessage& message) {
  observed_->note_done(message.sequence, message.arrivals.bytes());
  return report(message);
}

base::Outcome Receiver::fail_broken(const ReceiveMessage& message) {
  return stick(base::fail(base::Status::kRemote, "receive from %s: message %u: %s", channel_->peer().c_str(),
                          message.sequence, broken_.c_str()));
}

base::Outcome Receiver::describe_pages(ReceiveMessage& message) {
  const uint32_t piece_bytes = choose_piece_bytes(message.arrivals.bytes());
  for (uint32_t page = message.first_page; page != kNoPage; page = parts_.pool->info(page).next) {
    const PageInfo& info = parts_.pool->info(page);
    const uint64_t destination = uint64_t{info.chunk} * parts_.pool->page_bytes();
    if (!queue_->append(message.slot, parts_.pool->offset_of(page), destination, info.length_bytes,
                        piece_bytes)) {
      return stick(
          base::fail(base::Status::kRemote,
                     "receive from %s: message %u is staged and longer than what may be (%llu bytes)%s",
                     channel_->peer().c_str(), message.sequence,
                     static_cast<unsigned long long>(message.arrivals.bytes()), kPeerAdvice));
    }
  }
  return {};
}

// Nobody unpacks this message. The sender thought otherwise, so this is right but slow, and rare.
base::Outcome Receiver::move_pages(ReceiveMessage& message) {
  BouncePool& pool = *parts_.pool;
  const bool by_cpu = !message.memory->is_gpu_memory && pool.host_page(0) != nullptr;
  for (; message.next_move != kNoPage; message.next_move = pool.info(message.next_move).next) {
    const PageInfo& info = pool.info(message.next_move);
    uint8_t* target = message.data + uint64_t{info.chunk} * pool.page_bytes();
    if (by_cpu) {
      std::memcpy(target, pool.host_page(message.next_move), info.length_bytes);
      continue;
    }
    if (!parts_.loopback) {
      return stick(base::fail(base::Status::kInternal,
                              "receive from %s: no loopback to copy to GPU memory with",
                              channel_->peer().c_str()));
    }
    if (!parts_.loopback->has_room_to_copy(0)) return {};
    parts_.loopback->copy(0, pool.address_of(message.next_move),
                          parts_.rails[0]->local_key(message.next_move), target,
                          message.memory->regions[0].remote_key(), info.length_bytes, &message.outstanding);
  }
  return {};
}

// The pages are GPU memory that a NIC wrote: NCCL flushes its own buffers at most, never ours.
base::Outcome Receiver::flush_pages(ReceiveMessage& message) {
  for (; message.rails_to_flush != 0; --message.rails_to_flush) {
    const uint32_t rail = message.rails_to_flush - 1;
    if (!parts_.loopback->has_room(rail)) return {};
    parts_.loopback->flush(rail, parts_.pool->address_of(message.last_page),
                           parts_.rails[rail]->remote_key(message.last_page), &message.outstanding);
  }
  return {};
}

base::Outcome Receiver::consume(ReceiveMessage& message) {
  if (!parts_.waits_for_consumed) return {};
  if (message.phase != Phase::kReported) {
    return base::fail(base::Status::kInvalidUsage, "receive from %s: message %u consumed before it was done",
                      channel_->peer().c_str(), message.sequence);
  }
  if (auto outcome = close_message(message); !outcome) return outcome;
  if (observed_ != nullptr) [[unlikely]]
    observed_->note_consumed(message.sequence);
  if (credits_.is_update_due(consumed_)) send_credits();
  finish_request();
  return {};
}

base::Outcome Receiver::release_pages(ReceiveMessage& message) {
  base::Outcome outcome;
  for (uint32_t page = message.first_page; page != kNoPage;) {
    const PageInfo info = parts_.pool->info(page);
    if (auto given = give_back(info.queue_pair, page); !given) outcome = given;
    page = info.next;
  }
  message.first_page = message.last_page = message.next_move = kNoPage;
  return outcome;
}

base::Outcome Receiver::repost_spare(uint32_t queue_pair) {
  Spare& spare = spares_[queue_pair];
  return repost(queue_pair, {spare.pages.data(), std::exchange(spare.count, 0)});
}

base::Outcome Receiver::repost(uint32_t queue_pair, std::span<const uint32_t> pages) {
  held_[queue_pair] -= static_cast<uint32_t>(pages.size());
  auto outcome = parts_.pool->repost(*parts_.rails[parts_.link.rail_of(queue_pair)], pages);
  if (!outcome) return stick(outcome.error());
  credits_.give_back(queue_pair, static_cast<uint32_t>(pages.size()));
  return {};
}

base::Outcome Receiver::flush(const void* data, const Registration* memory, Request** request) {
  *request = nullptr;
  if (!parts_.flushes || !parts_.loopback || !memory->is_gpu_memory) return {};
  // NCCL takes a null request for "nothing to flush", so this cannot ask to be called again. The service is
  // done in the time of making a queue pair.
  const auto deadline = base::Deadline::after_ms(base::parameters().failover_timeout_ms);
  while (open_ == 0 && !enter()) {
    if (deadline.has_passed()) {
      return base::fail(base::Status::kInternal,
                        "receive from %s: flush: the service thread does not come back",
                        channel_->peer().c_str());
    }
    std::this_thread::yield();
  }
  if (!sticky_) return refuse();
  FlushRequest& flush = flushes_[next_flush_ % flushes_.size()];
  for (uint32_t rail = 0; rail < parts_.link.rails(); ++rail) {
    // Never in practice: one flush is outstanding for each receive. Without room the caller asks NCCL to
    // wait.
    if (flush.in_use || !parts_.loopback->has_room(rail)) {
      if (open_ == 0) leave();
      return base::fail(base::Status::kInternal, "receive from %s: too many flushes outstanding",
                        channel_->peer().c_str());
    }
  }
  ++open_;
  flush.number = next_flush_++;
  flush.in_use = true;
  flush.outstanding = 0;
  if (observed_ != nullptr) observed_->note_flush(flush.number);
  for (uint32_t rail = 0; rail < parts_.link.rails(); ++rail)
    parts_.loopback->flush(rail, data, memory->regions[rail].remote_key(), &flush.outstanding);
  *request = &flush;
  return {};
}

base::Outcome Receiver::test_flush(FlushRequest& request, bool* done) {
  *done = false;
  if (!sticky_) return sticky_;
  if (auto outcome = progress(); !outcome) return outcome;
  *done = request.outstanding == 0;
  if (!*done) return wait_.is_check_due(is_pressing()) ? check_requests() : base::Outcome();
  wait_.note_progress();
  if (observed_ != nullptr) observed_->note_flush_done(request.number);
  request.in_use = false;
  finish_request();
  return {};
}

}  // namespace verbena::transport
