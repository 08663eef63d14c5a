// Adds to words on devices without RDMA atomics. The rank that has the word, its agent, executes the adds for
// its peers. Each lane has an AddRing in the memory of both ends. The requesting end writes entries into the
// ring at its peer. The peer's agent executes them in order, and writes answers into the ring at the
// requesting end:
//
//   requesting end                          agent
//   unsent[n]   --- RDMA WRITE --------->   requests[n]   the expected entry: added once
//   answers[n]  <-------- RDMA WRITE ---    applied[n]    the previous value
//
// Entry and answer n are in slot n modulo the length of the ring. An entry is written after the answer that
// used its slot before has arrived, so the ring never overflows. Writes that are repeated after a failure
// change nothing, because each end accepts only the number that it expects next. A check value over all
// fields detects entries of which only a part has arrived, in any order. Pure.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace verbena::protocol {

inline constexpr uint32_t kAddSlots = 64;  // length of each ring

struct AddEntry {
  uint64_t offset;   // of the word, in the region of the agent's rank
  uint64_t operand;  // the value to add
  uint64_t names;    // the region; in the upper half, the entry's number on its lane modulo 2^16
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

// Each step is a bijection of `sum`, so a change of one field always changes the result.
constexpr uint64_t mix_check(uint64_t sum, uint64_t field) {
  sum = (sum ^ field) * 0x9e3779b97f4a7c15;
  return sum ^ sum >> 29;
}
// Never 0, which is the value of memory that was never written.
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

// Reads memory that a device may be writing.
inline uint64_t read_written(const uint64_t& field) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(field)).load(std::memory_order_acquire);
}
// Returns whether the entry with this number has arrived.
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
