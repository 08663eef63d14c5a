// A packet: 16 bytes of a message in a place of 16 bytes, which the reader finds full without a flag.
#ifndef VERBENA_DEVICE_PACKET_CUH
#define VERBENA_DEVICE_PACKET_CUH

#include "verbena/device/copy.cuh"

namespace verbena::device {

namespace detail {

// Stores and loads of packets: strong, since both sides access the place at the same time; relaxed, since
// the flag is in the same access as the data.
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

// 16 bytes of data in a store of 16. In each half of a place the first word is zero while nothing has come
// there: words of data go exclusive-or a constant, so that none that occurs looks so, and a place is emptied
// when it has been read. The words that would look empty after all, the constant itself and its neighbour, go
// as kNoted, and what they are stands in a note, a word with the call's number, of which each place has one.
// So every bit pattern arrives as it was, those two more slowly. Each half stands for itself, as a store of
// 16 bytes may arrive as two of 8.
struct Packet {
  using Data = Vector16;
  static constexpr uint32_t kBytes = 16, kNoteBytes = 8;
  static constexpr uint32_t kSentinel = 0xd92e'8e14, kNoted = 1;

  // Of a message: where a packet's data lies, and how many packets it takes, one at least.
  VERBENA_DEVICE static uint32_t offset(uint32_t index) { return index * kBytes; }
  VERBENA_DEVICE static uint32_t count(uint32_t length_bytes) {
    return length_bytes == 0 ? 1 : (length_bytes - 1) / kBytes + 1;
  }
  // What is stored of data, and data of what was stored.
  VERBENA_DEVICE static Data mask(const Data& data) {
    return {data.x ^ kSentinel, data.y, data.z ^ kSentinel, data.w};
  }
  // Neither empty nor noted.
  VERBENA_DEVICE static bool is_plain(const Data& stored) {
    // FAULT(second_half_is_not_looked_at)
    return static_cast<int>(stored.x > kNoted) & static_cast<int>(stored.z > kNoted);  // no branch
  }
  VERBENA_DEVICE static void send_plain(char* there, const Data& stored) { detail::send_bits(there, stored); }
  VERBENA_DEVICE static void send(char* there, char* note, const Data& stored, uint64_t epoch) {
    if (is_plain(stored)) return send_plain(there, stored);
    send_noted(there, note, stored, epoch);
  }
  // A note has the words that do not go, 0 or 1, and the call's number above.
  VERBENA_DEVICE static void send_noted(char* there, char* note, Data stored, uint64_t epoch) {
    detail::send_bits(note, epoch << 2 | uint64_t{stored.z & 1} << 1 | (stored.x & 1));
    if (stored.x <= kNoted) stored.x = kNoted;
    if (stored.z <= kNoted) stored.z = kNoted;
    detail::send_bits(there, stored);
  }
  VERBENA_DEVICE static Data poll(const char* here) { return detail::poll_bits<Data>(here); }
  // Of what was polled: then `stored` is what was to be stored.
  VERBENA_DEVICE static bool has_come(Data& stored, const char* its_note, uint64_t epoch) {
    if (is_plain(stored)) return true;
    if (stored.x == 0 || stored.z == 0) return false;
    const auto note = detail::poll_bits<uint64_t>(its_note);
    if (note >> 2 != epoch) return false;  // FAULT(old_note_is_believed)
    if (stored.x == kNoted) stored.x = static_cast<uint32_t>(note & 1);
    if (stored.z == kNoted) stored.z = static_cast<uint32_t>(note >> 1 & 1);
    return true;
  }
  // The data of what has come; its place is empty behind it. A strong store, as the sender's is: nothing but
  // the value orders the two.
  VERBENA_DEVICE static Data take(const Data& stored, char* here) {
    empty(here);
    return mask(stored);
  }
  VERBENA_DEVICE static void empty(char* here) { detail::send_bits(here, Data{}); }
};

}  // namespace verbena::device

#endif
