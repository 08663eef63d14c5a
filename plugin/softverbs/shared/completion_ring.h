// The shared half of a completion queue: every process may add completions, and only the owner takes them.
//
// The ring stays usable if a producer is killed at any instruction. A slot is claimed before the tail moves,
// and is ready only when its completion is whole. If the tail was not moved, the next producer moves it. If
// the slot stays held, its word names the holder, and the owner gives the slot up once that process is dead
// (skip_completion, SteppedOver::forget_dead). So the ring loses only the completion of the dead process.
#pragma once

#include <algorithm>

#include "softverbs/shared/ring_word.h"
#include "softverbs/shared/segment.h"

namespace verbena::softverbs {

enum class Polled {
  kEmpty,
  kTaken,
  kHeld,      // the producer has not finished, or was killed
  kHeldApart  // like kHeld, but later completions may be taken first: step_over()
};

// kApart is for the completion of a datagram, which need not be in order with completions of other senders. A
// producer may be stopped, even for minutes, while it pushes such a completion. A stopped producer delays
// neither the consumer nor other producers: the consumer steps over the slot, and producers skip the slot's
// tickets until the stopped producer continues.
enum class Order { kInQueue, kApart };

inline CompletionSlot& get_completion_slot(Segment& segment, SharedCq& cq, uint64_t ticket) {
  const uint64_t index = ticket & (cq.capacity.get() - 1);
  return segment.inside<CompletionSlot>(cq.ring.get() + index * sizeof(CompletionSlot));
}

// Returns the number of slots, limited to the possible values, because a peer may have overwritten it.
inline uint64_t count_slots(const SharedCq& cq) {
  return std::min(cq.capacity.get(), kMaxCqEntries);
}

// Returns false if the ring is full (the completion queue has overrun).
inline bool push_completion(Segment& segment, SharedCq& cq, const Completion& completion, uint32_t claimer,
                            Order order = Order::kInQueue) {
  const SlotState claimed = order == Order::kApart ? SlotState::kHeldApart : SlotState::kHeld;
  for (uint64_t passed = 0, expected = 0;;) {
    uint64_t tail = cq.tail.load(std::memory_order_acquire);
    const uint64_t ticket = tail;  // a compare-and-swap that fails changes `tail`
    CompletionSlot& slot = get_completion_slot(segment, cq, ticket);
    uint64_t word = slot.word.load(std::memory_order_acquire);
    // An empty slot has an earlier ticket if producers skipped the ticket before the slot became empty.
    if (get_slot_state(word) == SlotState::kEmpty && !is_later(word, ticket)) {
      const uint64_t held = make_word(ticket, claimed, claimer);
      if (!slot.word.compare_exchange_strong(word, held, std::memory_order_acq_rel)) continue;
      cq.tail.compare_exchange_strong(tail, ticket + 1, std::memory_order_acq_rel);
      slot.completion = completion;
      slot.word.store(make_word(ticket, SlotState::kReady), std::memory_order_release);
      return true;
    }
    if (has_ticket(word, ticket) || has_ticket(word, ticket + cq.capacity.get())) {
      // The slot's producer has not moved the tail yet, and never will if it was killed, so move the tail
      // here.
      cq.tail.compare_exchange_strong(tail, ticket + 1, std::memory_order_acq_rel);
    } else {
      // The slot has an entry of an earlier round, which was stepped over. The ring is full if all slots have
      // such an entry and no other producer took a slot in the meantime.
      passed = ticket == expected ? passed + 1 : 1;
      expected = ticket + 1;
      if (passed > count_slots(cq)) return false;
      cq.passed.store(1, std::memory_order_release);
      if (!cq.tail.compare_exchange_strong(tail, ticket + 1, std::memory_order_acq_rel)) passed = 0;
    }
  }
}

// Returns whether the tail is after a ticket. The tail may be behind the head, because the consumer may step
// over slots before their producers move the tail.
inline bool is_ahead(uint64_t tail, uint64_t ticket) {
  return static_cast<int64_t>(tail - ticket) > 0;
}

// Moves the head past its ticket if producers have skipped the ticket, so that the ticket has no entry.
// Returns false if they have not skipped it. On true, the caller must check the head again.
inline bool skip_passed(SharedCq& cq, CompletionSlot& slot, uint64_t word, uint64_t ticket) {
  if (cq.passed.load(std::memory_order_acquire) == 0) [[likely]]
    return false;
  if (!is_ahead(cq.tail.load(std::memory_order_acquire), ticket)) return false;
  // A producer that has not seen the skip may claim the ticket at this moment.
  if (word == make_word(ticket, SlotState::kEmpty) &&
      !slot.word.compare_exchange_strong(word, make_word(ticket + cq.capacity.get(), SlotState::kEmpty),
                                         std::memory_order_acq_rel))
    return true;  // check again
  cq.head.store(ticket + 1, std::memory_order_relaxed);
  return true;
}

// Takes the completion at the head. Only one thread may call this function at a time. On kHeld and
// kHeldApart, `holder` is the claimer of the producer.
inline Polled pop_completion(Segment& segment, SharedCq& cq, Completion& completion, uint32_t& holder) {
  for (uint64_t skipped = 0;; ++skipped) {
    const uint64_t ticket = cq.head.load(std::memory_order_relaxed);
    CompletionSlot& slot = get_completion_slot(segment, cq, ticket);
    const uint64_t word = slot.word.load(std::memory_order_acquire);
    if (word == make_word(ticket, SlotState::kReady)) {
      completion = slot.completion;
      slot.word.store(make_word(ticket + cq.capacity.get(), SlotState::kEmpty), std::memory_order_release);
      cq.head.store(ticket + 1, std::memory_order_relaxed);
      return Polled::kTaken;
    }
    const SlotState state = get_slot_state(word);
    if (has_ticket(word, ticket) && state != SlotState::kEmpty) {
      holder = get_holder(word);
      return state == SlotState::kHeldApart ? Polled::kHeldApart : Polled::kHeld;
    }
    if (skipped > 2 * count_slots(cq) || !skip_passed(cq, slot, word, ticket)) return Polled::kEmpty;
  }
}

// The slots that the consumer has stepped over. Only the consumer uses this list.
class SteppedOver {
 public:
  bool is_empty() const { return count_ == 0; }
  bool is_full() const { return count_ == kMost; }

  // Steps over the slot at the head, which is kHeldApart. Call it only if there is space in the list.
  void step_over(SharedCq& cq) {
    const uint64_t ticket = cq.head.load(std::memory_order_relaxed);
    tickets_[count_++] = ticket;
    cq.head.store(ticket + 1, std::memory_order_relaxed);
  }
  // Returns whether a completion can be taken, from this list or from the ring.
  bool has_completion(Segment& segment, SharedCq& cq) const {
    for (uint32_t i = 0; i < count_; ++i)
      if (read_word(segment, cq, tickets_[i]) == make_word(tickets_[i], SlotState::kReady)) return true;
    const uint64_t tail = cq.tail.load(std::memory_order_acquire);
    for (uint64_t ticket = cq.head.load(std::memory_order_relaxed); is_ahead(tail, ticket); ++ticket) {
      const uint64_t word = read_word(segment, cq, ticket);
      if (word == make_word(ticket, SlotState::kReady)) return true;
      if (has_ticket(word, ticket) && get_slot_state(word) == SlotState::kHeld) return false;
    }
    return false;
  }
  // Takes a completion whose producer has continued.
  bool take(Segment& segment, SharedCq& cq, Completion& completion) {
    for (uint32_t i = 0; i < count_; ++i) {
      if (read_word(segment, cq, tickets_[i]) != make_word(tickets_[i], SlotState::kReady)) continue;
      completion = get_completion_slot(segment, cq, tickets_[i]).completion;
      give_back(segment, cq, i);
      return true;
    }
    return false;
  }
  // Gives up the slots whose producers are dead, as is_dead(claimer) reports. Then reads the slot again,
  // because its producer may have finished the completion before it died.
  template <typename IsDead>
  void forget_dead(Segment& segment, SharedCq& cq, const IsDead& is_dead) {
    for (uint32_t i = count_; i-- != 0;) {
      const uint64_t word = read_word(segment, cq, tickets_[i]);
      if (get_slot_state(word) == SlotState::kHeldApart && is_dead(get_holder(word)) &&
          read_word(segment, cq, tickets_[i]) == word)
        give_back(segment, cq, i);
    }
  }

 private:
  static constexpr uint32_t kMost = 32;

  static uint64_t read_word(Segment& segment, SharedCq& cq, uint64_t ticket) {
    return get_completion_slot(segment, cq, ticket).word.load(std::memory_order_acquire);
  }
  // Empties the slot for its next ticket that producers have not skipped.
  void give_back(Segment& segment, SharedCq& cq, uint32_t i) {
    const uint64_t ticket = tickets_[i], capacity = cq.capacity.get();
    const uint64_t tail = cq.tail.load(std::memory_order_acquire);
    const uint64_t behind = is_ahead(tail, ticket) ? tail - ticket : 1;
    const uint64_t next = ticket + (behind + capacity - 1) / capacity * capacity;
    get_completion_slot(segment, cq, ticket)
        .word.store(make_word(next, SlotState::kEmpty), std::memory_order_release);
    tickets_[i] = tickets_[--count_];
  }

  uint64_t tickets_[kMost] = {};
  uint32_t count_ = 0;
};

// Gives up the slot at the head, whose producer is dead, unless the producer has finished the completion.
inline void skip_completion(Segment& segment, SharedCq& cq) {
  const uint64_t ticket = cq.head.load(std::memory_order_relaxed);
  CompletionSlot& slot = get_completion_slot(segment, cq, ticket);
  if (get_slot_state(slot.word.load(std::memory_order_acquire)) == SlotState::kReady) return;
  slot.word.store(make_word(ticket + cq.capacity.get(), SlotState::kEmpty), std::memory_order_release);
  cq.head.store(ticket + 1, std::memory_order_relaxed);
}

inline void reset_completion_ring(Segment& segment, SharedCq& cq) {
  for (uint64_t ticket = 0; ticket < cq.capacity.get(); ++ticket) {
    get_completion_slot(segment, cq, ticket).word.store(make_word(ticket, SlotState::kEmpty));
  }
  cq.tail.store(0);
  cq.head.store(0);
  cq.passed.store(0);
}

}  // namespace verbena::softverbs
