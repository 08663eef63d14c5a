// The receiving end of a connection. Pure (connection_core.h explains this, and the port). The steps of a
// message, in the order of this file:
//
//   post            the receive gets a slot in the ring and, if NCCL's kernel advances the unpack queue, a
//                   slot of that queue
//   send_grants     the sender is granted the address (clear to send), unless the data already arrives staged
//   on_arrived      a chunk has arrived, on any queue pair, in any order, even before its receive is posted;
//                   most chunks are whole messages
//   finish_arrival  all chunks have arrived. Which part copies the data?
//                     direct: the NIC has written it; a slot that a kernel will read stays empty (cnt 0)
//                     staged, with a slot: the slot gets descriptors of the pages, and the GPU copies
//                     staged, without a slot: the plugin copies, by CPU or by loopback
//   test            the request is reported as done
//   consume         the kernel is done: slot, pages and the ring entry are free again
//   send_credits    the sender is notified of the receiver's progress when necessary
//
// Nothing allocates, and the clock is read only if a wait lasts.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/hot_path.h"
#include "protocol/arrivals.h"
#include "protocol/connection_core.h"
#include "protocol/credits.h"
#include "protocol/immediate.h"
#include "protocol/recovery.h"
#include "protocol/sequence.h"
#include "protocol/unpack_queue.h"
#include "protocol/wire.h"

namespace verbena::protocol {

// Maximum number of outstanding grants and credit lines of a queue pair.
inline constexpr uint32_t kControlDepth = 16;
inline constexpr uint32_t kNoPage = UINT32_MAX;

// How the GPU handles a receive; nccl/receive_class.h determines it.
enum class ReceiveClass : uint8_t {
  kUnpacked,  // the kernel advances its head and unpacks
  kSlotOnly,  // the kernel advances its head; the data must be at its destination (registered user buffers)
  kNoSlot,    // the kernel does neither (LL, LL128, PAT), or there is no kernel (host memory)
};

// The content of a held page. It belongs to the connection that holds the page; the port stores it.
struct PageInfo {
  uint32_t next = kNoPage;  // next page of the same message
  uint32_t length_bytes = 0;
  uint16_t chunk = 0;
  uint8_t queue_pair = 0;
};

struct ReceiveOptions {
  uint32_t queue_pairs = 1;
  std::array<uint32_t, kMaxQueuePairs> window{};  // receive entries reserved for each queue pair
  uint32_t primary = 0;                           // the queue pair of grants while all are live
  uint32_t page_bytes = 0;
  bool is_direct_only = false;      // only empty messages are staged; credits are sent in grants
  bool waits_for_consumed = false;  // the caller will call consume()
  std::array<uint8_t, kMaxQueuePairs> rail_of{};  // of each queue pair
  bool pushes_pages = false;  // pages are in GPU memory, and writes of a NIC to them must be flushed
  // Chunks on a queue pair are placed in any order, in both directions. Completions keep the order of
  // posting.
  bool out_of_order = false;
  uint32_t first_sequence = 0;
  RecoveryTimes times{};
  int64_t stall_ns = 0;  // 0: no wait is a stall
};

// A receive completion without error.
struct ArrivedChunk {
  uint32_t imm;
  uint32_t length_bytes;
  uint32_t page;  // the page that it took, filled unless the chunk is a write
  bool is_write;
};

// Types: Request is the base class of the objects that the caller holds; Memory is the type of registered
// memory. Aligned, because with a size of 256 bytes the address of a message needs no multiplication.
template <typename Types>
struct alignas(64) ReceiveMessageOf : Types::Request {
  // A message with another phase than kFree is posted.
  enum class Phase : uint8_t { kFree, kArriving, kMoving, kReady, kReported };
  // What the message waits for, as far as this end knows.
  enum class Wait : uint8_t { kGrant, kArrival, kCopy, kPush, kTest, kConsumption };

  Phase phase = Phase::kFree;
  bool is_posted = false;
  bool slot_taken = false;
  uint8_t count = 1;  // number of messages of the request, if this is the first one
  int32_t tag = 0;    // of the sends that may fill it, in connections without staging
  ReceiveClass receive_class = ReceiveClass::kNoSlot;
  uint32_t sequence = 0;
  uint32_t slot = 0;
  uint32_t first_page = kNoPage, last_page = kNoPage;  // held pages in order of arrival
  uint32_t next_move = kNoPage;                        // next page to copy by loopback
  uint32_t outstanding = 0;     // outstanding loopback operations; the port decrements it
  uint32_t rails_to_flush = 0;  // a bit for each rail whose writes to pages in GPU memory must be flushed
  uint8_t* data = nullptr;
  const typename Types::Memory* memory = nullptr;
  uint64_t room_bytes = 0;
  Arrivals arrivals;
};

// kDeferred means that the flush has not begun. Then only the data thread reads it, whichever thread has the
// progress token.
template <typename Types>
struct FlushRequestOf : Types::Request {
  bool in_use = false;
  uint32_t number = 0;
  uint32_t outstanding = 0;  // outstanding loopback operations; the port decrements it
  uint32_t rails = 0;        // a bit for each rail that it flushes
  bool is_deferred = false;
  int64_t deferred_at_ns = 0;
  const void* data = nullptr;
  const typename Types::Memory* memory = nullptr;
};

inline constexpr uint32_t kCopyRail = 0;  // the rail whose loopback copies from pages to GPU memory

// The destination of one receive of a group.
template <typename Types>
struct ReceiveBufferOf {
  void* data;
  uint64_t length_bytes;
  const typename Types::Memory* memory;
  int32_t tag;
};

enum class CopyResult : uint8_t { kTaken, kLater, kFailed };

// In addition to connection_core.h's list, the port offers write_control(queue_pair, line, offset_bytes,
// is_signaled) (64 bytes, inline; on_control_written() is called for signaled ones), remote_keys(memory) (for
// grants), repost(queue_pair, pages) -> bool, page_info(page), page_offset(page), copy_page(page, target,
// memory, bytes, &outstanding) -> CopyResult, has_room_to_flush(rail), flush_page(rail, page, &outstanding),
// flush_data(rail, data, memory, &outstanding), is_drained(queue_pair), reap_pages(). It also offers the
// events note_post, note_post_end, note_chunk, note_grant, note_done, note_consumed, note_flush,
// note_flush_done (these only if observed) and note_broken.
template <typename Port, typename Types>
class ReceiveCore : public ConnectionCore<Port, ReceiverRecovery> {
  using Core = ConnectionCore<Port, ReceiverRecovery>;
  friend Core;

 public:
  using Message = ReceiveMessageOf<Types>;
  using Flush = FlushRequestOf<Types>;
  using Buffer = ReceiveBufferOf<Types>;
  using Phase = typename Message::Phase;
  using Wait = typename Message::Wait;

  // `queue` is the queue from which a kernel unpacks; empty if no kernel does.
  ReceiveCore(const ReceiveOptions& options, std::optional<UnpackQueue> queue)
      : Core(options.queue_pairs, options.times, options.stall_ns),
        options_(options),
        queue_(queue),
        next_(options.first_sequence),
        next_grant_(options.first_sequence),
        consumed_(options.first_sequence),
        recovering_until_(options.first_sequence),
        primary_(options.primary),
        credits_(options.first_sequence) {
    for (uint32_t q = 0; q < options.queue_pairs; ++q) {
      credits_.set_window(q, options.window[q]);
      rail_bits_[q] = 1U << options.rail_of[q];
      spares_[q].limit = std::clamp(options.window[q] / 8, 1U, Spare::kMax);
    }
    note_writable();
  }
  // Call this before the first message, if the port wants the events of every message.
  void observe() { is_observed_ = true; }

  // --- The steps of a message.

  // Returns null if there is no space now, or the connection has failed. `tag` selects the sends that may
  // fill the receive (wire.h); it is not used in connections with staging.
  Message* post(void* data, uint64_t length_bytes, const typename Types::Memory* memory,
                ReceiveClass receive_class, int32_t tag) {
    if (open_ == 0 && !port().enter()) return nullptr;
    if (port().has_failed()) return refuse();
    // Not ring_[...], for which the compiler would compute the address again at many members.
    Message& message = *(ring_.data() + next_ % kMessageRing);
    const bool takes_slot = queue_ && receive_class != ReceiveClass::kNoSlot;
    if (message.is_posted || (takes_slot && !queue_->has_free_slot())) [[unlikely]] {
      progress_apart();
      return nullptr;
    }
    ++open_;
    if (queue_) {  // otherwise these members never change
      message.receive_class = receive_class;
      message.slot_taken = takes_slot;
      if (takes_slot) message.slot = queue_->take_slot();
    }
    message.count = 1;
    take_number(message, {data, length_bytes, memory, tag});
    if (queue_) {
      progress_apart();  // a staged message may have arrived already, and then needs no grant
    } else {
      send_new_grant(message);
    }
    if (is_observed_) [[unlikely]]
      port().note_post_end();
    return &message;
  }

  // Posts one request for 1 to kMaxGroup buffers, in connections without staging. It is done when all buffers
  // are. Each buffer is a separate message with its own number and grant, and takes the next send with its
  // tag. The first message represents the request.
  [[gnu::noinline]] Message* post_group(std::span<const Buffer> buffers) {
    if (open_ == 0 && !port().enter()) return nullptr;
    if (port().has_failed()) return refuse();
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      if (!ring_[(next_ + i) % kMessageRing].is_posted) continue;
      progress_apart();
      return nullptr;
    }
    ++open_;
    Message& first = ring_[next_ % kMessageRing];
    first.count = static_cast<uint8_t>(buffers.size());
    for (const Buffer& buffer : buffers) {
      Message& message = ring_[next_ % kMessageRing];
      take_number(message, buffer);
    }
    send_grants();
    if (is_observed_) [[unlikely]]
      port().note_post_end();
    return &first;
  }

  // A chunk has arrived on a queue pair that is in use. Inlined for the port's constant chunk.is_write.
  [[gnu::always_inline]] void on_arrived(uint32_t queue_pair, const ArrivedChunk& chunk) {
    written_rails_ |= rail_bit(queue_pair);  // FAULT(rail_that_wrote_is_not_flushed)
    if (is_observed_) [[unlikely]]
      tell_of_chunk(queue_pair, chunk.imm, chunk.length_bytes, chunk.is_write);
    const bool is_within_window = ++held_[queue_pair] <= options_.window[queue_pair];
    if (!is_within_window || !place_whole(queue_pair, chunk)) [[unlikely]]
      place_or_refuse(queue_pair, chunk.imm, chunk.length_bytes, chunk.page, chunk.is_write);
  }

  // A signaled write of a grant or credit line is complete.
  void on_control_written(uint32_t queue_pair, uint64_t offset_bytes) {
    if (options_.out_of_order) [[unlikely]]
      settle_line(queue_pair, offset_bytes);
  }

  // Returns true if the message is done, with *bytes for each buffer. The slot of a kUnpacked message is then
  // published. Requests may be tested in any order.
  bool test(Message& message, uint64_t* bytes) {
    if (message.count != 1) [[unlikely]]
      return test_group(message, bytes);
    if (port().has_failed()) return false;
    // Read before the poll. Only a poll of all rails that begins after the failure has seen all earlier
    // completions.
    const bool was_broken = is_broken_;
    if (!is_here(message)) {  // the test of another message may have found it
      if (!progress()) return false;
    }
    if (!advance(message)) return false;
    if (message.phase != Phase::kReady) {
      if (message.phase == Phase::kArriving && was_broken) {
        port().fail(Failure::kBroken, message.sequence);
      } else if (wait_.is_check_due(this->is_pressing())) {
        check_wait(message);
      }
      return false;
    }
    wait_.note_progress();
    *bytes = message.arrivals.bytes();
    message.phase = Phase::kReported;  // FAULT(slot_is_cleared_when_reported)
    if (is_observed_) [[unlikely]]
      port().note_done(message.sequence, *bytes);
    if (!options_.waits_for_consumed) {
      close_message(message);
      this->finish_request();
    }
    return true;
  }

  // Consumes a message in state kReported. Does nothing unless the options said that consume() would be
  // called.
  bool consume(Message& message) {
    if (!options_.waits_for_consumed) return true;
    for_each_part(message, [this](Message& part) { close_message(part); });
    if (port().has_failed()) return false;
    if (is_observed_) [[unlikely]]
      for_each_part(message, [this](Message& part) { port().note_consumed(part.sequence); });
    if (credits_.is_update_due(consumed_)) send_credits();
    this->finish_request();
    return true;
  }

  // Makes the data that arrived in `data` visible to the GPU. Does not wait: if the flush cannot begin now, a
  // later test_flush() begins it. Returns null if the ring of flushes is full.
  Flush* flush(const void* data, const typename Types::Memory* memory) {
    Flush& flush = flushes_[next_flush_ % kMessageRing];
    if (flush.in_use || flush.is_deferred) return nullptr;
    ++next_flush_;
    flush.data = data;
    flush.memory = memory;
    flush.is_deferred = true;
    flush.deferred_at_ns = 0;
    start_flush(flush);
    return &flush;
  }
  // Returns true if the flush is done. While the flush is deferred, another thread may hold the connection.
  bool test_flush(Flush& flush) {
    if (flush.is_deferred && !start_flush(flush)) return false;
    if (port().has_failed() || !progress()) return false;
    if (flush.outstanding != 0) {
      if (wait_.is_check_due(this->is_pressing())) check_requests();
      return false;
    }
    wait_.note_progress();
    if (is_observed_) port().note_flush_done(flush.number);
    flush.in_use = false;
    --open_flushes_;
    this->finish_request();
    return true;
  }

  // --- For diagnosis and tests.
  uint32_t next() const { return next_; }
  uint32_t next_grant() const { return next_grant_; }
  uint32_t consumed() const { return consumed_; }
  const std::array<Message, kMessageRing>& ring() const { return ring_; }
  const std::array<Flush, kMessageRing>& flushes() const { return flushes_; }
  const ReceiverCredits& credits() const { return credits_; }
  const WaitStamps& flush_stamps() const { return flush_stamps_; }
  uint32_t held(uint32_t queue_pair) const {
    return held_[queue_pair];
  }  // entries that were taken and not posted again
  uint32_t spare(uint32_t queue_pair) const { return spares_[queue_pair].count; }  // the free part of them
  uint32_t window(uint32_t queue_pair) const { return options_.window[queue_pair]; }
  uint32_t primary() const { return primary_; }
  bool is_broken() const { return is_broken_; }
  bool unpacks() const { return queue_.has_value(); }
  Wait find_wait(const Message& message) const {
    switch (message.phase) {
      case Phase::kArriving:
        if (message.arrivals.is_complete()) return Wait::kTest;
        return is_before(message.sequence, next_grant_) ? Wait::kArrival : Wait::kGrant;
      case Phase::kMoving:
        return message.receive_class == ReceiveClass::kUnpacked ? Wait::kPush : Wait::kCopy;
      case Phase::kReported:
        return Wait::kConsumption;
      default:
        return Wait::kTest;
    }
  }
  // Calls see(message) for each posted message, in the order of posting.
  template <typename See>
  void for_each_open(See&& see) const {
    for (uint32_t ahead = kMessageRing; ahead != 0; --ahead) {
      const Message& message = ring_[(next_ - ahead) % kMessageRing];
      if (message.is_posted && message.sequence == next_ - ahead) see(message);
    }
  }

 protected:
  using Core::open_;
  using Core::port;
  using Core::recovery_;
  using Core::statistics_;
  using Core::wait_;
  using Core::wait_stamps_;

  bool progress() {
    if (!port().poll_completions()) return false;
    if (is_anything_wrong()) [[unlikely]] {
      if (!this->recover()) return false;
    }
    if (next_grant_ != next_) send_grants();
    if (credits_.is_update_due(consumed_)) send_credits();
    return true;
  }
  // For posts. Not inlined, so that a post without staging, which rarely calls it, needs few registers.
  [[gnu::noinline, gnu::flatten]] VERBENA_HOT_PATH bool progress_apart() { return progress(); }
  // All pages that the connection holds are posted again, or returned to the port. Must be the last call.
  void release_everything() {
    for (Message& message : ring_) release_pages(message);
    for (uint32_t q = 0; q < recovery_.queue_pairs(); ++q) repost_spare(q);
  }
  // Returns the pages of this queue pair that were taken and not posted again. Allocates.
  [[gnu::cold, gnu::noinline]] std::vector<uint32_t> list_held(uint32_t queue_pair) {
    const Spare& spare = spares_[queue_pair];
    std::vector<uint32_t> pages(spare.pages.begin(), spare.pages.begin() + spare.count);
    for (const Message& message : ring_) {
      for (uint32_t page = message.first_page; page != kNoPage; page = port().page_info(page).next) {
        if (port().page_info(page).queue_pair == queue_pair) pages.push_back(page);
      }
    }
    return pages;
  }
  std::array<Message, kMessageRing> ring_;
  std::array<Flush, kMessageRing> flushes_;

 private:
  // Entries that are free but not posted yet. They are posted in batches, because posting takes the
  // provider's lock and rings a doorbell. At most an eighth of the window; see
  // ReceiverCredits::is_update_due.
  struct alignas(64) Spare {
    static constexpr uint32_t kMax = 8;
    std::array<uint32_t, kMax> pages{};
    uint32_t count = 0, limit = 1;
  };
  static constexpr uint32_t kSignalEvery = kControlDepth / 4;  // control writes
  static constexpr uint64_t kCreditLineOffset = offsetof(ControlBlock, credits);

  [[gnu::cold, gnu::noinline]] Message* refuse() {
    if (open_ == 0) port().leave();
    return nullptr;
  }

  void take_number(Message& message, const Buffer& buffer) {
    message.phase = Phase::kArriving;
    message.is_posted = true;
    message.sequence = next_++;
    message.tag = buffer.tag;
    message.data = static_cast<uint8_t*>(buffer.data);
    message.memory = buffer.memory;
    message.room_bytes = buffer.length_bytes;
    message.outstanding = message.rails_to_flush = 0;
    if (is_observed_) [[unlikely]]
      port().note_post(message.sequence, buffer.length_bytes, primary_);
  }

  // --- Groups. All parts stay open until the last one is complete, because their sizes are reported
  // together.

  template <typename See>
  void for_each_part(Message& first, See&& see) {
    for (uint32_t i = 0; i < first.count; ++i) see(ring_[(first.sequence + i) % kMessageRing]);
  }
  [[gnu::noinline]] bool test_group(Message& first, uint64_t* bytes) {
    if (port().has_failed()) return false;
    const bool was_broken = is_broken_;
    bool are_all_here = true;
    for_each_part(first, [&](Message& part) { are_all_here &= is_here(part); });
    if (!are_all_here && !progress()) return false;
    const Message* waiting = nullptr;
    bool goes_on = true;
    for_each_part(first, [&](Message& part) {
      goes_on = goes_on && advance(part);
      // FAULT(group_is_done_with_its_first_buffer)
      if (waiting == nullptr && part.phase != Phase::kReady) waiting = &part;
    });
    if (!goes_on) return false;
    if (waiting != nullptr) {
      if (waiting->phase == Phase::kArriving && was_broken) {
        port().fail(Failure::kBroken, waiting->sequence);
      } else if (wait_.is_check_due(this->is_pressing())) {
        check_wait(*waiting);
      }
      return false;
    }
    wait_.note_progress();
    for_each_part(first, [&](Message& part) {
      *bytes++ = part.arrivals.bytes();
      part.phase = Phase::kReported;
      if (is_observed_) port().note_done(part.sequence, part.arrivals.bytes());
    });
    if (!options_.waits_for_consumed) {
      for_each_part(first, [this](Message& part) { close_message(part); });
      this->finish_request();
    }
    return true;
  }

  // --- Grants and credit lines, which the receiver writes into the sender's memory.

  // Sends grants in the order of posting. A message that has begun to arrive staged needs none. In
  // connections without staging each message gets one, because it also carries credits. After a failure, open
  // messages get their grants again.
  // Not inlined, because it is called in every test but rarely has a grant to send.
  [[gnu::noinline, gnu::flatten]] void send_grants() {
    while (next_grant_ != next_) {
      if (!may_grant_freely_) [[unlikely]]
        return send_grants_apart();
      const Message& message = ring_[next_grant_ % kMessageRing];
      if (needs_grant(message)) {
        if (port().free_slots(primary_) == 0) return;
        send_grant(message);
      }
      ++next_grant_;
    }
  }
  // For a message that was posted just now. The usual case: all earlier grants were sent.
  [[gnu::always_inline]] void send_new_grant(const Message& message) {
    // FAULT(new_grant_overtakes_waiting_ones)
    const bool is_next = next_grant_ == message.sequence && may_grant_at_once_;
    if (!is_next || port().free_slots(primary_) == 0) [[unlikely]]
      return send_grants();
    take_credits_along();
    write_grant(message, false);
    ++next_grant_;
  }
  // For queue pairs whose writes may overtake each other. The previous grant in the same entry may be
  // outstanding if most messages between the two were staged, or if it was written again after a failure. The
  // new grant waits for the completion of the previous one, which is therefore signaled.
  [[gnu::noinline]] void send_grants_apart() {
    for (; next_grant_ != next_ && may_write_control_; ++next_grant_) {
      const Message& message = ring_[next_grant_ % kMessageRing];
      if (!needs_grant(message)) continue;
      // FAULT(grant_overtakes_an_older_one)
      if (port().free_slots(primary_) == 0 || is_grant_under_way(next_grant_)) return;
      // Set before posting, because the queue pair may fail at once, which ends the wait.
      grants_under_way_ |= entry_bit(next_grant_);
      // FAULT(grant_written_again_is_not_signaled)
      const bool must_signal = !options_.is_direct_only || is_recovering_;
      if (!send_grant(message, must_signal)) grants_under_way_ &= ~entry_bit(next_grant_);
    }
  }
  bool needs_grant(const Message& message) const {
    const bool is_open = message.sequence == next_grant_ && message.phase == Phase::kArriving;
    return is_open && (options_.is_direct_only || message.arrivals.is_empty() || is_recovering_);
  }
  static uint32_t entry_bit(uint32_t sequence) { return 1U << sequence % kMessageRing; }
  bool is_grant_under_way(uint32_t sequence) const { return (grants_under_way_ & entry_bit(sequence)) != 0; }
  bool send_grant(const Message& message, bool is_signaled = false) {
    if (options_.is_direct_only) take_credits_along();
    return write_grant(message, is_signaled);
  }
  void take_credits_along() { grant_.note = credits_.take_note(consumed_, primary_); }
  // Returns whether the write is signaled.
  bool write_grant(const Message& message, bool is_signaled) {
    grant_.address = reinterpret_cast<uintptr_t>(message.data);
    std::memcpy(grant_.remote_keys, port().remote_keys(message.memory), sizeof(grant_.remote_keys));
    grant_.length_bytes = message.room_bytes;
    grant_.stamp = Grant::make_stamp(message.sequence, message.tag);
    const uint64_t offset_bytes =
        offsetof(ControlBlock, grants) + message.sequence % kMessageRing * sizeof(Grant);
    is_signaled = write_control(primary_, &grant_, offset_bytes, is_signaled);
    if (is_observed_) [[unlikely]]
      port().note_grant(message.sequence);
    return is_signaled;
  }
  // All credit lines use one queue pair as long as it is live, so that they cannot overtake each other. If
  // writes of a queue pair may overtake each other, the next line waits until the previous one was
  // acknowledged.
  [[gnu::noinline]] void send_credits() {
    // FAULT(credit_line_overtakes_another)
    if (!may_write_control_ || is_line_under_way_ || port().free_slots(credit_pair_) == 0) return;
    is_line_under_way_ = options_.out_of_order;
    const CreditLine line = credits_.take_update(consumed_);
    write_control(credit_pair_, &line, kCreditLineOffset, options_.out_of_order);
  }
  // Returns whether the write is signaled.
  bool write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes, bool is_signaled) {
    is_signaled |= ++control_writes_[queue_pair] % kSignalEvery == 0;
    port().write_control(queue_pair, line, offset_bytes, is_signaled);
    return is_signaled;
  }
  // A completion on a queue pair that grants or credits no longer use says nothing about lines that were sent
  // later.
  [[gnu::noinline]] void settle_line(uint32_t queue_pair, uint64_t offset_bytes) {
    if (offset_bytes == kCreditLineOffset) {
      is_line_under_way_ = is_line_under_way_ && queue_pair != credit_pair_;
    } else if (queue_pair == primary_) {
      grants_under_way_ &= ~(1U << (offset_bytes - offsetof(ControlBlock, grants)) / sizeof(Grant));
    }
  }
  // Updates whether grants and credits may be sent. They never use a queue pair that is being tested, because
  // they might arrive after lines that are written later.
  void note_writable() {
    may_write_control_ = !is_broken_ && recovery_.is_any_live();
    may_grant_freely_ = may_write_control_ && !options_.out_of_order;
    may_grant_at_once_ = may_grant_freely_ && options_.is_direct_only;
  }

  // --- Arrivals.

  // The usual case: the chunk is a whole message whose receive is posted. Returns false if place_chunk() must
  // handle the chunk.
  [[gnu::always_inline]] bool place_whole(uint32_t queue_pair, const ArrivedChunk& chunk) {
    if (!is_whole(chunk.imm, chunk.length_bytes, chunk.is_write)) return false;
    Message& message = ring_[chunk.imm % kMessageRing];
    const bool is_awaited = static_cast<uint8_t>(message.sequence ^ chunk.imm) == 0 &&
                            message.phase == Phase::kArriving && message.arrivals.is_empty();
    if (!is_awaited) return false;
    message.arrivals.record_whole(chunk.length_bytes, chunk.is_write);
    keep_or_give_back(message, queue_pair, chunk, 0);
    return true;
  }
  // Takes the members of a chunk, so that on_arrived() keeps them in registers.
  [[gnu::noinline]] void place_or_refuse(uint32_t queue_pair, uint32_t imm, uint32_t length_bytes,
                                         uint32_t page, bool is_write) {
    const ArrivedChunk chunk{imm, length_bytes, page, is_write};
    const bool is_within_window = held_[queue_pair] <= options_.window[queue_pair];
    if (!is_within_window || !place_chunk(queue_pair, chunk))
      refuse_chunk(queue_pair, chunk, is_within_window);
  }
  // Returns false if the peer violated the protocol; the page then still belongs to the caller.
  bool place_chunk(uint32_t queue_pair, const ArrivedChunk& chunk) {
    const auto tag = decode_tag(chunk.imm);
    if (!tag || !is_as_announced(chunk.imm, chunk.length_bytes)) return false;
    if (tag->direct && !chunk.is_write) return false;  // a staged chunk may be sent again as a write
    const uint32_t sequence = tag->expand(consumed_ + kMessageRing / 2);
    const int32_t ahead = count_between(consumed_, sequence);
    if (ahead < 0 || ahead >= static_cast<int32_t>(kMessageRing)) return false;
    // Would leave a gap.
    if (!tag->direct && !tag->last && chunk.length_bytes != options_.page_bytes) return false;

    Message& message = ring_[sequence % kMessageRing];
    // The message is complete, or was closed while an older one is still open.
    const bool is_closed = !message.is_posted && is_before(sequence, next_);
    if (is_closed || message.phase > Phase::kArriving) return false;
    if (chunk.is_write && !message.is_posted) return false;  // a write without a grant
    // FAULT(bytes_before_the_immediate_do_not_count)
    const auto arrival = message.arrivals.record(*tag, tag->written_bytes + chunk.length_bytes);
    if (arrival == Arrival::kInvalid) return false;
    if (arrival == Arrival::kNew) {
      keep_or_give_back(message, queue_pair, chunk, tag->index);
    } else {
      give_back(queue_pair, chunk.page);
    }
    return true;
  }
  // The page of the chunk is held while it has bytes of the message; otherwise it is returned at once.
  void keep_or_give_back(Message& message, uint32_t queue_pair, const ArrivedChunk& chunk, uint16_t index) {
    if (!chunk.is_write && chunk.length_bytes != 0) {
      hold_page(message, queue_pair, chunk, index);
    } else {
      give_back(queue_pair, chunk.page);
    }
  }
  void hold_page(Message& message, uint32_t queue_pair, const ArrivedChunk& chunk, uint16_t index) {
    port().page_info(chunk.page) = {kNoPage, chunk.length_bytes, index, static_cast<uint8_t>(queue_pair)};
    if (message.last_page == kNoPage) {
      message.first_page = chunk.page;
    } else {
      port().page_info(message.last_page).next = chunk.page;
    }
    message.last_page = chunk.page;
  }
  [[gnu::cold, gnu::noinline]] void refuse_chunk(uint32_t queue_pair, const ArrivedChunk& chunk,
                                                 bool is_within_window) {
    repost(queue_pair, {&chunk.page, 1});
    const bool is_complete = is_as_announced(chunk.imm, chunk.length_bytes);
    const Failure broken_rule = is_complete ? Failure::kChunk : Failure::kOtherLength;
    port().fail(is_within_window ? broken_rule : Failure::kUncredited, 0, queue_pair);
  }
  // The message number modulo the ring is sufficient to identify the message.
  [[gnu::cold, gnu::noinline]] void tell_of_chunk(uint32_t queue_pair, uint32_t imm, uint32_t length_bytes,
                                                  bool is_write) {
    const auto tag = decode_tag(imm);
    if (!tag) return;
    const uint32_t sequence = tag->expand(consumed_ + kMessageRing / 2);
    port().note_chunk(sequence, !is_write, queue_pair, tag->written_bytes + length_bytes);
  }

  // --- From the arrival of all chunks to the report to the caller.

  static bool is_here(const Message& message) {
    return message.phase == Phase::kArriving && message.arrivals.is_complete();
  }
  [[gnu::always_inline]] bool advance(Message& message) {
    if (is_here(message)) {
      if (!finish_arrival(message)) return false;
    }
    if (message.phase != Phase::kMoving) return true;
    if (message.next_move != kNoPage && !move_pages(message)) return false;
    if (message.rails_to_flush != 0) flush_pages(message);
    // FAULT(copy_is_not_awaited)
    if (message.next_move == kNoPage && message.rails_to_flush == 0 && message.outstanding == 0)
      hand_over(message);
    return true;
  }
  bool finish_arrival(Message& message) {
    if (message.arrivals.bytes() > message.room_bytes) [[unlikely]]
      return port().fail(Failure::kShortRoom, message.sequence);
    if (message.first_page == kNoPage) {
      message.phase = Phase::kReady;
      ++statistics_.received_direct_messages;
      statistics_.received_direct_bytes += message.arrivals.bytes();
      return true;
    }
    message.phase = Phase::kMoving;
    if (message.receive_class != ReceiveClass::kUnpacked) {
      message.next_move = message.first_page;
      return true;
    }
    return describe_pages(message);
  }
  [[gnu::noinline]] bool describe_pages(Message& message) {
    const uint32_t piece_bytes = choose_piece_bytes(message.arrivals.bytes());
    for (uint32_t page = message.first_page; page != kNoPage; page = port().page_info(page).next) {
      const PageInfo& info = port().page_info(page);
      const uint64_t destination = uint64_t{info.chunk} * options_.page_bytes;
      if (!queue_->append(message.slot, port().page_offset(page), destination, info.length_bytes,
                          piece_bytes))
        return port().fail(Failure::kLongStaged, message.sequence);
      // FAULT(pages_are_not_pushed)
      if (options_.pushes_pages) message.rails_to_flush |= rail_bit(info.queue_pair);
    }
    return true;
  }
  // One warp copies one descriptor. Pieces of 4 KiB keep all warps of a block busy. A message has at most
  // 1024 pieces, so that its pages (at most kMaxChunks, each rounded up once) still fit into the slot.
  static uint32_t choose_piece_bytes(uint64_t length_bytes) {
    const uint64_t pages = (length_bytes / (kUnpackMaxDescriptors / 2) + kUnpackPageBytes) / kUnpackPageBytes;
    return static_cast<uint32_t>(pages * kUnpackPageBytes);
  }
  // The message is not unpacked by a kernel. The sender had assumed that it is, so this is correct, but slow
  // and rare.
  [[gnu::noinline]] bool move_pages(Message& message) {
    while (message.next_move != kNoPage) {
      const PageInfo& info = port().page_info(message.next_move);
      uint8_t* target = message.data + uint64_t{info.chunk} * options_.page_bytes;
      const CopyResult result = port().copy_page(message.next_move, target, message.memory, info.length_bytes,
                                                 &message.outstanding);
      if (result != CopyResult::kTaken) return result == CopyResult::kLater;
      message.next_move = info.next;
    }
    return true;
  }
  // The pages are GPU memory that a NIC has written. NCCL flushes its own buffers, but never these pages.
  [[gnu::noinline]] void flush_pages(Message& message) {
    for (; message.rails_to_flush != 0; message.rails_to_flush &= message.rails_to_flush - 1) {
      const auto rail = static_cast<uint32_t>(std::countr_zero(message.rails_to_flush));
      if (!port().has_room_to_flush(rail)) return;
      port().flush_page(rail, message.last_page, &message.outstanding);
    }
  }
  // The message belongs to its kernel now, or its data is at its destination.
  void hand_over(Message& message) {
    message.phase = Phase::kReady;
    ++statistics_.received_staged_messages;
    statistics_.received_staged_bytes += message.arrivals.bytes();
    if (message.receive_class == ReceiveClass::kUnpacked) {
      statistics_.unpack_descriptors += queue_->pending(message.slot);
      queue_->publish(message.slot);
      return;  // FAULT(pages_are_free_before_the_kernel_reads)
    }
    ++statistics_.copied_messages;
    written_rails_ |= 1U << kCopyRail;  // FAULT(copy_is_not_flushed)
    release_pages(message);
  }

  // Returns false if the flush could not begin, or the connection has failed.
  bool start_flush(Flush& flush) {
    if (open_ == 0 && !port().enter()) {
      if (flush.deferred_at_ns == 0) flush.deferred_at_ns = port().now_ns();
      return false;
    }
    const uint32_t rails = find_rails_to_flush();
    const bool has_room = has_room_to_flush(rails);
    if (port().has_failed() || !has_room) {
      flush.is_deferred = !port().has_failed();
      if (open_ == 0) port().leave();
      return false;
    }
    ++open_;
    flush.is_deferred = false;
    flush.number = next_flush_number_++;
    flush.in_use = true;
    flush.outstanding = 0;
    flush.rails = rails;
    ++open_flushes_;
    written_rails_ = 0;
    if (is_observed_) port().note_flush(flush.number);
    for (uint32_t left = rails; left != 0; left &= left - 1)
      port().flush_data(static_cast<uint32_t>(std::countr_zero(left)), flush.data, flush.memory,
                        &flush.outstanding);
    return true;
  }
  // Returns the rails on which data has arrived since the last flush began. Data that arrived before is
  // visible only once that flush is done.
  uint32_t find_rails_to_flush() const {
    uint32_t rails = written_rails_;
    if (open_flushes_ == 0) return rails;  // FAULT(flush_overtakes_an_earlier_one)
    for (const Flush& flush : flushes_)
      if (flush.in_use) rails |= flush.rails;
    return rails;
  }
  bool has_room_to_flush(uint32_t rails) {
    for (; rails != 0; rails &= rails - 1)
      if (!port().has_room_to_flush(static_cast<uint32_t>(std::countr_zero(rails)))) return false;
    return true;
  }
  uint32_t rail_bit(uint32_t queue_pair) const { return rail_bits_[queue_pair]; }

  // --- Freeing pages.

  void close_message(Message& message) {
    if (message.slot_taken) queue_->clear(message.slot);
    message.slot_taken = message.is_posted = false;
    message.arrivals.reset();
    message.phase = Phase::kFree;
    if (message.first_page != kNoPage) release_pages(message);
    // Messages may be tested, and therefore closed, out of order. The sender is notified of closed messages
    // in order, without gaps.
    if (message.sequence != consumed_) return;
    while (++consumed_ != next_) {
      const Message& oldest = ring_[consumed_ % kMessageRing];
      // FAULT(consumed_while_an_older_message_is_open)
      if (oldest.is_posted && oldest.sequence == consumed_) break;
    }
  }
  [[gnu::noinline]] void release_pages(Message& message) {
    for (uint32_t page = message.first_page; page != kNoPage;) {
      const PageInfo info = port().page_info(page);
      give_back(info.queue_pair, page);
      page = info.next;
    }
    message.first_page = message.last_page = message.next_move = kNoPage;
  }
  void give_back(uint32_t queue_pair, uint32_t page) {
    Spare& spare = spares_[queue_pair];
    const uint32_t count = spare.count;
    spare.pages[count] = page;
    spare.count = count + 1;
    if (count + 1 >= spare.limit) repost_spare(queue_pair);
  }
  void repost_spare(uint32_t queue_pair) {
    Spare& spare = spares_[queue_pair];
    repost(queue_pair, {spare.pages.data(), std::exchange(spare.count, 0)});
  }
  void repost(uint32_t queue_pair, std::span<const uint32_t> pages) {
    held_[queue_pair] -= static_cast<uint32_t>(pages.size());
    // FAULT(credit_is_not_returned)
    if (port().repost(queue_pair, pages)) credits_.give_back(queue_pair, static_cast<uint32_t>(pages.size()));
  }

  // --- Failure and recovery of a queue pair. recovery.h decides when.

  bool is_anything_wrong() { return port().is_wanted() || !recovery_.are_all_live() || is_recovering_; }

  struct RecoveryHost {
    Port& port;

    ReceiveCore& core() { return port; }
    void stop(uint32_t q) {
      port.stop_pair(q);
      core().wait_stamps_.restart();
      core().held_grant_.restart();
      core().held_credits_.restart();
    }
    void send(const RecoveryRecord& record) { port.send_record(record, nullptr); }
    // Asked before the look: whatever came until then is found by it.
    // FAULT(stopped_queue_pair_is_not_emptied)
    bool is_drained(uint32_t q) { return port.is_drained(q) && port.poll_completions(); }
    void send_arrived(const RecoveryRecord& record) {
      ArrivedRecord arrived;
      core().describe_arrived(arrived);
      port.send_record(record, &arrived);
      port.retire_pair(record.queue_pair);
    }
    void regrant() {
      core().update_rails();
      core().next_grant_ = core().consumed_;  // FAULT(grants_are_not_written_again)
      core().recovering_until_ = core().consumed_ + kMessageRing;
      core().is_recovering_ = true;
      core().send_grants();
      core().credits_.demand_update();
    }
    bool answer(uint32_t q, const RecoveryRecord& offer, RecoveryRecord& record) {
      if (!port.is_usable(q) || !port.renew_pair(q, record)) return false;
      if (!port.connect_pair(q, offer)) {
        port.stop_pair(q);
        port.retire_pair(q);
        return false;
      }
      record.returned = core().credits_.returned(q);
      record.held = core().held_[q];
      return true;
    }
    void revive(uint32_t q) {
      ++core().statistics_.revived_queue_pairs;
      regrant();
      port.note_revived(q);
    }
  };
  RecoveryHost recovery_host() { return {port()}; }

  void update_rails() {
    // Changes only if the old primary has failed: a line in flight on a live queue pair could otherwise
    // overwrite a newer line.
    if (!recovery_.is_live(primary_)) {
      primary_ = recovery_.find_live(options_.primary);
      grants_under_way_ = 0;
    }
    if (!recovery_.is_live(credit_pair_)) {
      credit_pair_ = recovery_.find_live(0);
      is_line_under_way_ = false;
    }
    note_writable();
  }
  bool absorb_record(const RecoveryRecord& record, const ArrivedRecord*, int64_t now_ns) {
    RecoveryHost host{port()};
    if (!recovery_.absorb(host, record, now_ns)) return false;
    if (record.kind == RecoveryKind::kDown) port().note_loss(record.queue_pair);
    return true;
  }
  // No further data can arrive. Data that has arrived is valid: often a peer has finished and closed while
  // this end still sends it credits.
  void break_off() {
    is_broken_ = true;
    note_writable();
  }
  void end_for_good(uint32_t queue_pair, uint32_t) {
    if (!is_broken_) port().note_broken(queue_pair);
    break_off();
  }
  void lose_peer() {
    if (!is_broken_) port().note_broken_by_peer();
    break_off();
  }
  bool resume() {
    is_recovering_ = is_recovering_ && is_before(consumed_, recovering_until_);
    if (is_recovering_) hurry_entries();
    return !port().has_failed();
  }
  // Chunks that are sent again may have only one entry of a queue pair, which is reused each time, so the
  // entries are posted at once.
  void hurry_entries() {
    for (uint32_t q = 0; q < recovery_.queue_pairs(); ++q)
      if (spares_[q].count != 0) repost_spare(q);
    if (credits_.is_anything_untold(consumed_)) credits_.demand_update();
  }
  void describe_arrived(ArrivedRecord& record) const {
    record.consumed = consumed_;
    for (uint32_t ahead = 0; ahead < kMessageRing; ++ahead) {
      const uint32_t sequence = consumed_ + ahead;
      const Message& message = ring_[sequence % kMessageRing];
      const bool has_closed = is_before(sequence, next_) && !message.is_posted;
      if (has_closed || message.arrivals.is_complete()) {
        record.complete |= 1U << ahead;
      } else {
        record.chunks[ahead] = message.arrivals.bitmap();
      }
    }
  }

  // --- Waits.

  [[gnu::cold, gnu::noinline]] void check_wait(const Message& message) {
    port().reap_pages();  // the wait may need a page
    check_requests();
    if (port().has_failed() || message.phase == Phase::kMoving) return;  // the peer is no longer needed
    if (this->check_rails(message.sequence)) this->check_peer(message.sequence);
  }
  // Records what each request waits for. If this end's own device never completes an operation, the
  // connection cannot recover.
  void check_requests() {
    const int64_t now_ns = port().now_ns();
    if (wait_.begin_check(now_ns)) port().warn_of_stall();
    const int64_t patience_ns = port().patience_ns();
    for (const Message& message : ring_) {
      if (!message.is_posted) continue;
      const Wait wait = find_wait(message);
      const int64_t since_ns = wait_stamps_.note(message.sequence, static_cast<uint8_t>(wait), now_ns);
      if (now_ns - since_ns < patience_ns) continue;
      if (wait == Wait::kCopy || wait == Wait::kPush) {
        port().fail(Failure::kSilentCopy, message.sequence);
        return;
      }
    }
    check_lines(now_ns, patience_ns);
    for (const Flush& flush : flushes_) {
      if (flush.in_use && now_ns - flush_stamps_.note(flush.number, 0, now_ns) >= patience_ns) {
        port().fail(Failure::kSilentFlush, flush.number);
        return;
      }
    }
  }

  // Checks grants and credits that are due and wait for a completion, because the peer may be waiting for
  // them.
  void check_lines(int64_t now_ns, int64_t patience_ns) {
    const bool is_grant_held = next_grant_ != next_ && recovery_.is_live(primary_) &&
                               (port().free_slots(primary_) == 0 || is_grant_under_way(next_grant_));
    if (held_grant_.is_overdue(is_grant_held, next_grant_, now_ns, patience_ns))
      port().give_up_silent_pair(primary_);
    const bool are_credits_held = credits_.is_update_due(consumed_) && recovery_.is_live(credit_pair_) &&
                                  (is_line_under_way_ || port().free_slots(credit_pair_) == 0);
    const uint32_t line = control_writes_[credit_pair_];
    if (held_credits_.is_overdue(are_credits_held, line, now_ns, patience_ns))
      port().give_up_silent_pair(credit_pair_);
  }

  ReceiveOptions options_;
  std::optional<UnpackQueue> queue_;
  uint32_t next_;              // number of the next receive
  uint32_t next_grant_;        // earlier grants were sent, or are not needed
  uint32_t consumed_;          // earlier messages are closed
  uint32_t recovering_until_;  // earlier messages may have been outstanding when a queue pair failed
  uint32_t primary_;           // the current queue pair of grants
  uint32_t credit_pair_ = 0;   // the queue pair of credit lines
  uint32_t next_flush_ = 0;    // slot of the next flush
  uint32_t next_flush_number_ = 0;
  uint32_t open_flushes_ = 0;
  uint32_t written_rails_ = 0;  // a bit for each rail with arrivals since the last flush began
  bool is_observed_ = false;
  bool is_recovering_ = false;  // some messages before recovering_until_ are not consumed yet
  bool is_broken_ = false;      // no further data can arrive; arrived data is still delivered
  bool may_write_control_ = true;
  bool may_grant_freely_ = true;    // no grant has to wait for an older one
  bool may_grant_at_once_ = false;  // the same, and every receive is granted
  bool is_line_under_way_ = false;  // a credit line is outstanding, which the next one must not overtake
  uint32_t grants_under_way_ = 0;   // a bit for each entry whose next grant must not overtake the last one
  HeldStamp held_grant_, held_credits_;
  ReceiverCredits credits_;
  Grant grant_{};  // being sent. Not on the stack, whose alignment to a line would cost every call.
  std::array<uint32_t, kMaxQueuePairs> rail_bits_{};       // the rail of each queue pair
  std::array<uint32_t, kMaxQueuePairs> control_writes_{};  // for each queue pair
  std::array<uint32_t, kMaxQueuePairs> held_{};  // for each queue pair: entries taken and not posted again
  std::array<Spare, kMaxQueuePairs> spares_;
  WaitStamps flush_stamps_;
};

}  // namespace verbena::protocol
