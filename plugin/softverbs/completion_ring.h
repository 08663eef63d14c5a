#pragma once

#include "softverbs/ring_word.h"
#include "softverbs/segment.h"

namespace verbena::softverbs {

// The shared half of a completion queue: every process may produce, only the owner consumes.

enum class Polled { kEmpty, kTaken, kHeld };  // kHeld: the producer has not finished, or was killed

inline CompletionSlot& get_completion_slot(Segment& segment, SharedCq& cq, uint64_t ticket) {
  const uint64_t index = ticket & (cq.capacity.get() - 1);
  return segment.inside<CompletionSlot>(cq.ring.get() + index * sizeof(CompletionSlot));
}

// False when the ring is full (the queue has been overrun).
inline bool push_completion(Segment& segment, SharedCq& cq, const Completion& completion, uint32_t claimer) {
  for (;;) {
    uint64_t ticket = cq.tail.load(std::memory_order_acquire);
    CompletionSlot& slot = get_completion_slot(segment, cq, ticket);
    uint64_t word = slot.word.load(std::memory_order_acquire);
    if (word == make_word(ticket, SlotState::kEmpty)) {
      const uint64_t held = make_word(ticket, SlotState::kHeld, claimer);
      if (!slot.word.compare_exchange_strong(word, held, std::memory_order_acq_rel)) continue;
      cq.tail.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel);
      slot.completion = completion;
      slot.word.store(make_word(get_ticket(word), SlotState::kReady), std::memory_order_release);
      return true;
    }
    if (has_ticket(word, ticket)) {
      // The slot's producer has not moved the tail yet, and never will if it was killed: move it here.
      cq.tail.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel);
    } else if (cq.tail.load(std::memory_order_acquire) == ticket) {
      return false;
    }
  }
}

// Only one thread may consume at a time. On kHeld, `holder` is the claimer of the producer.
inline Polled pop_completion(Segment& segment, SharedCq& cq, Completion& completion, uint32_t& holder) {
  const uint64_t ticket = cq.head.load(std::memory_order_relaxed);
  CompletionSlot& slot = get_completion_slot(segment, cq, ticket);
  const uint64_t word = slot.word.load(std::memory_order_acquire);
  if (word != make_word(ticket, SlotState::kReady)) {
    if (!has_ticket(word, ticket) || get_slot_state(word) != SlotState::kHeld) return Polled::kEmpty;
    holder = get_holder(word);
    return Polled::kHeld;
  }
  completion = slot.completion;
  slot.word.store(make_word(ticket + cq.capacity.get(), SlotState::kEmpty), std::memory_order_release);
  cq.head.store(ticket + 1, std::memory_order_relaxed);
  return Polled::kTaken;
}

// Gives up the slot at the head, whose producer is dead.
inline void skip_completion(Segment& segment, SharedCq& cq) {
  const uint64_t ticket = cq.head.load(std::memory_order_relaxed);
  get_completion_slot(segment, cq, ticket)
      .word.store(make_word(ticket + cq.capacity.get(), SlotState::kEmpty), std::memory_order_release);
  cq.head.store(ticket + 1, std::memory_order_relaxed);
}

inline void reset_completion_ring(Segment& segment, SharedCq& cq) {
  for (uint64_t ticket = 0; ticket < cq.capacity.get(); ++ticket) {
    get_completion_slot(segment, cq, ticket).word.store(make_word(ticket, SlotState::kEmpty));
  }
  cq.tail.store(0);
  cq.head.store(0);
}

}  // namespace verbena::softverbs
