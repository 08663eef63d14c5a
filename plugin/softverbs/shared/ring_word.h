// The word that guards one slot of a shared ring. The word contains the round of the ring (the ticket), the
// slot's state, and the slot's holder.
//
// The word stays valid if a process is killed at any instruction. Every step is one compare-and-swap or one
// store, so the word always has a valid state, and a held slot always names its holder. If the holder is
// dead, other processes give the slot up. There is no lock that a dead process could keep.
//
//    empty --claim (CAS)--> held by a process --store--> ready --> ... --store--> empty in the next round
//
// kHeldApart: held for an entry whose order among the entries does not matter, so that no process waits for
// the holder.
#pragma once

#include <cstdint>

namespace verbena::softverbs {

enum class SlotState : uint32_t { kEmpty = 0, kHeld = 1, kReady = 2, kHeldApart = 3 };

inline constexpr uint32_t kHolderBits = 22, kStateBits = 2;
inline constexpr uint64_t kTicketMask = (uint64_t{1} << (64 - kHolderBits - kStateBits)) - 1;

inline uint64_t make_word(uint64_t ticket, SlotState state, uint32_t holder = 0) {
  return (ticket & kTicketMask) << (kHolderBits + kStateBits) | static_cast<uint64_t>(state) << kHolderBits |
         holder;
}
inline uint64_t get_ticket(uint64_t word) {
  return word >> (kHolderBits + kStateBits);
}
inline SlotState get_slot_state(uint64_t word) {
  return static_cast<SlotState>(word >> kHolderBits & 3);
}
inline uint32_t get_holder(uint64_t word) {
  return word & ((1u << kHolderBits) - 1);
}
inline bool has_ticket(uint64_t word, uint64_t ticket) {
  return get_ticket(word) == (ticket & kTicketMask);
}
// Returns whether the word's ticket comes after `ticket`.
inline bool is_later(uint64_t word, uint64_t ticket) {
  return static_cast<int64_t>((get_ticket(word) - ticket) << (kHolderBits + kStateBits)) > 0;
}

}  // namespace verbena::softverbs
