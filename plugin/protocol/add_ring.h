// Adds to words on devices without RDMA atomics: the rank whose word it is, its agent, adds for its peers.
// Each lane has an AddRing in the memory of both ends. The asking end writes entries into the ring at its
// peer; the peer's agent carries them out in order and writes answers into the ring at the asking end:
//
//   asking end                                 agent
//   unsent[n]   --- RDMA WRITE --------->      requests[n]   expected next: added, once
//   answers[n]  <-------- RDMA WRITE ---       applied[n]    the former value
//
// Entry and answer n are in slot n modulo the ring's length. An entry is written once the answer that had its
// slot before has come, so the ring never overflows. Repeated writes, after a failure, change nothing: each
// end accepts the number that it expects next and no other. A check value over all fields covers bytes that
// arrive in any order, or not all at once. Pure.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace verbena::protocol {

inline constexpr uint32_t kAddSlots = 64;  // of each ring

struct AddEntry {
  uint64_t offset;   // of the word in the region of the agent's rank
  uint64_t operand;  // added
  uint64_t names;    // the region, and in the upper half the entry's number on its lane, modulo 2^16
  uint64_t check;

  uint32_t region() const { return static_cast<uint32_t>(names); }
};
struct AddAnswer {
  uint64_t value;  // of the word before the add
  uint64_t check;
};
static_assert(sizeof(AddEntry) == 32 && std::has_unique_object_representations_v<AddEntry>);
static_assert(sizeof(AddAnswer) == 16 && std::has_unique_object_representations_v<AddAnswer>);

struct alignas(64) AddRing {
  AddEntry requests[kAddSlots];
  AddAnswer answers[kAddSlots];
  AddEntry unsent[kAddSlots];
  AddAnswer applied[kAddSlots];
};

// Each step is a bijection of `sum`, so a change of one field always shows.
constexpr uint64_t mix_check(uint64_t sum, uint64_t field) {
  sum = (sum ^ field) * 0x9e3779b97f4a7c15;
  return sum ^ sum >> 29;
}
// Never 0, as in memory that nobody has written.
constexpr uint64_t compute_check(const AddEntry& entry) {
  uint64_t sum = mix_check(0x5644, entry.offset);
  sum = mix_check(sum, entry.operand);
  return mix_check(sum, entry.names) | 1;
}
constexpr AddEntry make_entry(uint16_t number, uint32_t region, uint64_t offset, uint64_t operand) {
  AddEntry entry{offset, operand, uint64_t{number} << 32 | region, 0};
  entry.check = compute_check(entry);
  return entry;
}
constexpr AddAnswer make_answer(uint16_t number, uint64_t value) {
  return {value, mix_check(mix_check(0x5641, value), number) | 1};
}

// Memory that a device writes meanwhile.
inline uint64_t read_written(const uint64_t& field) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(field)).load(std::memory_order_acquire);
}
// Whether the entry of this number is there.
inline bool take_entry(const AddEntry& written, uint16_t number, AddEntry* entry) {
  entry->check = read_written(written.check);
  const uint64_t names = read_written(written.names);
  if (entry->check == 0 || names >> 32 != number) return false;
  *entry = {read_written(written.offset), read_written(written.operand), names, entry->check};
  return entry->check == compute_check(*entry);
}
inline bool take_answer(const AddAnswer& written, uint16_t number, uint64_t* value) {
  const uint64_t check = read_written(written.check);
  *value = read_written(written.value);
  return check == make_answer(number, *value).check;
}

}  // namespace verbena::protocol
