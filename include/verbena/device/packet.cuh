// A packet: 16 bytes of a message, sent by one store without a flag. The receiver recognises the packet's
// arrival by the data itself. low_latency.cuh sends messages as packets.
#ifndef VERBENA_DEVICE_PACKET_CUH
#define VERBENA_DEVICE_PACKET_CUH

#include "verbena/device/copy.cuh"

namespace verbena::device {

namespace detail {

// Store and load packets. The accesses are strong, because sender and receiver access the slot at the same
// time. Relaxed order is enough, because a single access both transfers the data and shows that the data has
// arrived.
template <typename T>
VERBENA_DEVICE void send_bits(char* there, const T& bits) {
  store<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(reinterpret_cast<T*>(there), bits);
}
template <typename T>
VERBENA_DEVICE T poll_bits(const char* here) {
  return load<Order::kRelaxed, Scope::kSystem, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<const T*>(here));
}

}  // namespace detail

// A packet consists of two 8-byte halves, because a 16-byte store may arrive as two 8-byte stores. A half is
// empty while its first 32-bit word is 0. The sender XORs this word with kSentinel, so that words of real
// data rarely become 0. The receiver sets the packet to 0 after reading it.
//
// Two values of the word need extra handling. kSentinel would be sent as 0, which looks empty, and kSentinel
// ^ 1 would be sent as kNoted. Both values are sent as kNoted, and a note says which value is meant. Each
// packet of a slot has a note, which is a word that also contains the number of the call. So every bit
// pattern arrives unchanged, but these two values take longer.
struct Packet {
  using Data = Vector16;
  static constexpr uint32_t kBytes = 16, kNoteBytes = 8;
  static constexpr uint32_t kSentinel = 0xd92e'8e14, kNoted = 1;

  // Return the offset of a packet's data in the message, and the number of packets of a message, which is at
  // least one.
  VERBENA_DEVICE static uint32_t offset(uint32_t index) { return index * kBytes; }
  VERBENA_DEVICE static uint32_t count(uint32_t length_bytes) {
    return length_bytes == 0 ? 1 : (length_bytes - 1) / kBytes + 1;
  }
  // Converts data to the words that are stored, and stored words to data.
  VERBENA_DEVICE static Data mask(const Data& data) {
    return {data.x ^ kSentinel, data.y, data.z ^ kSentinel, data.w};
  }
  // Returns whether both halves have arrived and need no note.
  VERBENA_DEVICE static bool is_plain(const Data& stored) {
    // FAULT(second_half_is_not_looked_at)
    return static_cast<int>(stored.x > kNoted) & static_cast<int>(stored.z > kNoted);  // no branch
  }
  VERBENA_DEVICE static void send_plain(char* there, const Data& stored) { detail::send_bits(there, stored); }
  VERBENA_DEVICE static void send(char* there, char* note, const Data& stored, uint64_t epoch) {
    if (is_plain(stored)) return send_plain(there, stored);
    send_noted(there, note, stored, epoch);
  }
  // Sends data that needs a note. If the stored first word of half i would be 0 or 1, bit i of the note
  // contains this word. The higher bits of the note contain the number of the call.
  VERBENA_DEVICE static void send_noted(char* there, char* note, Data stored, uint64_t epoch) {
    detail::send_bits(note, epoch << 2 | uint64_t{stored.z & 1} << 1 | (stored.x & 1));
    if (stored.x <= kNoted) stored.x = kNoted;
    if (stored.z <= kNoted) stored.z = kNoted;
    detail::send_bits(there, stored);
  }
  VERBENA_DEVICE static Data poll(const char* here) { return detail::poll_bits<Data>(here); }
  // Returns whether the polled packet has arrived. If the packet has a note, replaces kNoted in `stored` by
  // the value in the note.
  VERBENA_DEVICE static bool has_come(Data& stored, const char* its_note, uint64_t epoch) {
    if (is_plain(stored)) return true;
    if (stored.x == 0 || stored.z == 0) return false;
    const auto note = detail::poll_bits<uint64_t>(its_note);
    if (note >> 2 != epoch) return false;  // FAULT(old_note_is_believed)
    if (stored.x == kNoted) stored.x = static_cast<uint32_t>(note & 1);
    if (stored.z == kNoted) stored.z = static_cast<uint32_t>(note >> 1 & 1);
    return true;
  }
  // Returns the data of a packet that has arrived, and sets the packet to 0. This store must be strong, like
  // the sender's store, because only the packet's value orders the two stores.
  VERBENA_DEVICE static Data take(const Data& stored, char* here) {
    empty(here);
    return mask(stored);
  }
  VERBENA_DEVICE static void empty(char* here) { detail::send_bits(here, Data{}); }
};

}  // namespace verbena::device

#endif
