// From "all chunks are there" to "the caller may have it", and back to free pages.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/parameters.h"
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

base::Outcome Receiver::test(ReceiveMessage& message, bool* done, uint64_t* bytes) {
  *done = false;
  if (!sticky_) return sticky_;
  // Only a look at all rails that begins after the failure has seen everything that came before it.
  const bool was_broken = !broken_.empty();
  if (auto outcome = progress(); !outcome) return outcome;
  if (auto outcome = advance(message); !outcome) return outcome;
  if (message.phase == Phase::kArriving && was_broken) {
    return stick(base::fail(base::Status::kRemote, "receive from %s: message %u: %s", watch_->peer().c_str(),
                            message.sequence, broken_.c_str()));
  }
  if (message.phase != Phase::kReady) {
    return wait_.is_check_due() ? check_wait(message) : base::Outcome();
  }
  wait_.note_progress();
  *done = true;
  *bytes = message.arrivals.bytes();
  message.phase = Phase::kReported;
  return parts_.waits_for_consumed ? base::Outcome() : close_message(message);
}

base::Outcome Receiver::advance(ReceiveMessage& message) {
  if (message.phase == Phase::kArriving && message.arrivals.is_complete()) {
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

base::Outcome Receiver::finish_arrival(ReceiveMessage& message) {
  if (message.arrivals.bytes() > message.room_bytes) {
    return stick(base::fail(
        base::Status::kInvalidUsage,
        "receive from %s: message %u is longer than its receive (%llu bytes, room %llu bytes)",
        watch_->peer().c_str(), message.sequence, static_cast<unsigned long long>(message.arrivals.bytes()),
        static_cast<unsigned long long>(message.room_bytes)));
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

base::Outcome Receiver::describe_pages(ReceiveMessage& message) {
  const uint32_t piece_bytes = choose_piece_bytes(message.arrivals.bytes());
  for (uint32_t page = message.first_page; page != kNoPage; page = parts_.pool->info(page).next) {
    const PageInfo& info = parts_.pool->info(page);
    const uint64_t destination = uint64_t{info.chunk} * parts_.pool->page_bytes();
    if (!queue_->append(message.slot, parts_.pool->offset_of(page), destination, info.length_bytes,
                        piece_bytes)) {
      return stick(base::fail(base::Status::kInternal,
                              "receive from %s: message %u does not fit its unpack slot",
                              watch_->peer().c_str(), message.sequence));
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
                              watch_->peer().c_str()));
    }
    if (!parts_.loopback->has_room_to_copy(0)) return {};
    auto outcome = parts_.loopback->copy(0, pool.address_of(message.next_move), parts_.rails[0]->local_key(),
                                         target, message.memory->regions[0].remote_key(), info.length_bytes,
                                         &message.outstanding);
    if (!outcome) return stick(outcome.error());
  }
  return {};
}

// The pages are GPU memory that a NIC wrote: NCCL flushes its own buffers at most, never ours.
base::Outcome Receiver::flush_pages(ReceiveMessage& message) {
  for (; message.rails_to_flush != 0; --message.rails_to_flush) {
    const uint32_t rail = message.rails_to_flush - 1;
    if (!parts_.loopback->has_room(rail)) return {};
    auto outcome = parts_.loopback->flush(rail, parts_.pool->address_of(message.last_page),
                                          parts_.rails[rail]->remote_key(), &message.outstanding);
    if (!outcome) return stick(outcome.error());
  }
  return {};
}

base::Outcome Receiver::make_ready(ReceiveMessage& message) {
  const bool staged = message.first_page != kNoPage;
  const uint64_t bytes = message.arrivals.bytes();
  ++(staged ? statistics_.received_staged_messages : statistics_.received_direct_messages);
  (staged ? statistics_.received_staged_bytes : statistics_.received_direct_bytes) += bytes;
  message.phase = Phase::kReady;
  if (!staged) return {};
  if (message.receive_class == ReceiveClass::kUnpacked) {
    statistics_.unpack_descriptors += queue_->pending(message.slot);
    queue_->publish(message.slot);
    return {};
  }
  ++statistics_.copied_messages;
  return release_pages(message);
}

base::Outcome Receiver::consume(ReceiveMessage& message) {
  if (!parts_.waits_for_consumed) return {};
  if (message.phase != Phase::kReported) {
    return base::fail(base::Status::kInvalidUsage, "receive from %s: message %u consumed before it was done",
                      watch_->peer().c_str(), message.sequence);
  }
  if (auto outcome = close_message(message); !outcome) return outcome;
  if (credits_.is_update_due(consumed_)) send_credits();
  return {};
}

base::Outcome Receiver::close_message(ReceiveMessage& message) {
  if (message.slot_taken) queue_->clear(message.slot);
  message.slot_taken = message.is_posted = false;
  message.arrivals.reset();
  message.phase = Phase::kFree;
  auto outcome = release_pages(message);
  // Tested out of order, messages close out of order; the sender is told of the closed ones without a gap.
  while (consumed_ != next_) {
    const ReceiveMessage& oldest = ring_[consumed_ % protocol::kMessageRing];
    if (oldest.is_posted && oldest.sequence == consumed_) break;
    ++consumed_;
  }
  return outcome;
}

// In runs of one queue pair: a post costs the provider's lock.
base::Outcome Receiver::release_pages(ReceiveMessage& message) {
  constexpr uint32_t kMaxRun = 32;
  base::Outcome outcome;
  for (uint32_t page = message.first_page; page != kNoPage;) {
    const uint8_t queue_pair = parts_.pool->info(page).queue_pair;
    uint32_t run[kMaxRun], count = 0;
    while (page != kNoPage && count < kMaxRun && parts_.pool->info(page).queue_pair == queue_pair) {
      run[count++] = page;
      page = parts_.pool->info(page).next;
    }
    if (auto posted = repost(queue_pair, {run, count}); !posted) outcome = posted;
  }
  message.first_page = message.last_page = message.next_move = kNoPage;
  return outcome;
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
  if (!sticky_) return sticky_;
  if (!parts_.flushes || !parts_.loopback || !memory->is_gpu_memory) return {};
  FlushRequest& flush = flushes_[next_flush_ % flushes_.size()];
  for (uint32_t rail = 0; rail < parts_.link.rails(); ++rail) {
    // Never in practice: one flush is outstanding for each receive. Without room the caller asks NCCL to
    // wait.
    if (flush.in_use || !parts_.loopback->has_room(rail)) {
      return base::fail(base::Status::kInternal, "receive from %s: too many flushes outstanding",
                        watch_->peer().c_str());
    }
  }
  ++next_flush_;
  flush.in_use = true;
  flush.outstanding = 0;
  for (uint32_t rail = 0; rail < parts_.link.rails(); ++rail) {
    auto outcome = parts_.loopback->flush(rail, data, memory->regions[rail].remote_key(), &flush.outstanding);
    if (!outcome) return stick(outcome.error());
  }
  *request = &flush;
  return {};
}

base::Outcome Receiver::test_flush(FlushRequest& request, bool* done) {
  *done = false;
  if (!sticky_) return sticky_;
  if (auto outcome = progress(); !outcome) return outcome;
  *done = request.outstanding == 0;
  if (*done) request.in_use = false;
  return {};
}

base::Outcome Receiver::check_wait(const ReceiveMessage& message) {
  parts_.pool->reap();  // what we wait for may wait for a page
  if (wait_.is_stall_new()) {
    base::log_warn(
        "receive from %s: message %u: waits for %s, %llu bytes are here (VERBENA_STALL_WARNING_MS %lld ms)",
        watch_->peer().c_str(), message.sequence,
        message.phase == Phase::kMoving ? "its copy to GPU memory" : "data",
        static_cast<unsigned long long>(message.arrivals.bytes()),
        static_cast<long long>(base::parameters().stall_warning_ms));
  }
  if (message.phase == Phase::kMoving) return {};  // all of it is here, the peer is not needed any more
  if (const std::string lost = parts_.link.describe_lost_address(wait_.waited_ns()); !lost.empty()) {
    return stick(base::fail(base::Status::kRemote, "receive from %s: message %u: %s", watch_->peer().c_str(),
                            message.sequence, lost.c_str()));
  }
  if (!watch_->is_closed() || !watch_->is_grace_over()) return {};
  return stick(base::fail(
      base::Status::kRemote,
      "receive from %s: peer closed the connection before message %u arrived (%llu bytes are here)",
      watch_->peer().c_str(), message.sequence, static_cast<unsigned long long>(message.arrivals.bytes())));
}

}  // namespace verbena::transport
