// Reads and writes the bytes of a message in the caller's tensor, packet by packet. The tensor needs no
// alignment and may have any length. The tensor is either contiguous, or consists of contiguous rows with a
// stride. Aligned parts of the tensor are accessed in whole vectors.
#ifndef VERBENA_DEVICE_MESSAGE_BYTES_CUH
#define VERBENA_DEVICE_MESSAGE_BYTES_CUH

#include "verbena/device/packet.cuh"

namespace verbena::device {

// A message that is stored in rows of row_bytes bytes each. The stride between the starts of rows is
// stride_bytes. The message starts at byte `first` of the rows' data; `first` does not count the gaps between
// rows. If row_bytes equals stride_bytes, the bytes are contiguous.
struct Rows {
  char* begin;
  uint64_t row_bytes, stride_bytes;
  uint64_t first = 0;

  VERBENA_DEVICE static Rows contiguous(const void* begin) {
    return {static_cast<char*>(const_cast<void*>(begin)), 1, 1};
  }
  VERBENA_DEVICE bool is_contiguous() const { return row_bytes == stride_bytes; }
  VERBENA_DEVICE Rows from(uint64_t offset) const { return {begin, row_bytes, stride_bytes, first + offset}; }
  VERBENA_DEVICE char* find(uint64_t offset) const {
    offset += first;
    if (is_contiguous()) return begin + offset;
    // A 32-bit division is several times faster than a 64-bit division.
    const uint64_t row = (offset | row_bytes) >> 32 == 0  // FAULT(rows_wrap_at_4_gib)
                             ? static_cast<uint32_t>(offset) / static_cast<uint32_t>(row_bytes)
                             : offset / row_bytes;
    return begin + row * stride_bytes + (offset - row * row_bytes);
  }
};

namespace detail {

VERBENA_DEVICE const char* find_byte(const char* place, uint64_t offset) {
  return place + offset;
}
VERBENA_DEVICE char* find_byte(char* place, uint64_t offset) {
  return place + offset;
}
VERBENA_DEVICE char* find_byte(const Rows& place, uint64_t offset) {
  return place.find(offset);
}
// Returns the address of the `bytes` bytes at `offset` if these bytes are contiguous, and null otherwise.
template <typename Place>
VERBENA_DEVICE auto find_part(const Place& place, uint64_t offset, uint64_t bytes) {
  auto* const first = find_byte(place, offset);
  return find_byte(place, offset + bytes - 1) == first + (bytes - 1) ? first : nullptr;
}
VERBENA_DEVICE const char* find_part(const char* place, uint64_t offset, uint64_t) {
  return place + offset;
}
VERBENA_DEVICE char* find_part(char* place, uint64_t offset, uint64_t) {
  return place + offset;
}

// Load and store a Part byte by byte, if the part is not contiguous, is not aligned to its size, or extends
// past the end of the message. These functions are not inlined, which keeps the fast path short. Bytes after
// the end of the message are loaded as 0.
template <typename Part, typename Place>
VERBENA_DEVICE_FAR Part load_by_bytes(const Place source, uint32_t offset, uint32_t length_bytes) {
  Part part = 0;
  VERBENA_UNROLL_BY(1)
  for (uint32_t i = 0; i < sizeof(Part) && offset + i < length_bytes; ++i) {
    const auto byte = load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const uint8_t*>(find_byte(source, offset + i)));
    part |= static_cast<Part>(byte) << (8 * i);
  }
  return part;
}
template <typename Part, typename Place>
VERBENA_DEVICE_FAR void store_by_bytes(const Place destination, uint32_t offset, uint32_t length_bytes,
                                       Part part) {
  VERBENA_UNROLL_BY(1)
  for (uint32_t i = 0; i < sizeof(Part) && offset + i < length_bytes; ++i)
    store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<uint8_t*>(find_byte(destination, offset + i)),
        static_cast<uint8_t>(part >> (8 * i)));
}
// Returns whether the part at `address` can be accessed by a single load or store, because it is aligned and
// lies entirely inside the message.
// @param address  result of find_part(); null if the part is not contiguous
template <typename Part, typename Address>
VERBENA_DEVICE bool is_whole(Address address, uint32_t offset, uint32_t length_bytes) {
  constexpr auto kBytes = static_cast<uint32_t>(sizeof(Part));
  return length_bytes >= kBytes && offset <= length_bytes - kBytes && address != nullptr &&
         static_cast<uint32_t>(reinterpret_cast<uint64_t>(address)) % kBytes == 0;
}
template <typename Part, typename Place>
VERBENA_DEVICE Part load_part(const Place& source, uint32_t offset, uint32_t length_bytes) {
  const char* const from = find_part(source, offset, sizeof(Part));
  if (!is_whole<Part>(from, offset, length_bytes)) return load_by_bytes<Part>(source, offset, length_bytes);
  return load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
      reinterpret_cast<const Part*>(from));
}
template <typename Part, typename Place>
VERBENA_DEVICE void store_part(const Place& destination, uint32_t offset, uint32_t length_bytes, Part part) {
  char* const to = find_part(destination, offset, sizeof(Part));
  if (!is_whole<Part>(to, offset, length_bytes))
    return store_by_bytes(destination, offset, length_bytes, part);
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(reinterpret_cast<Part*>(to), part);
}

// Load and store 16 bytes of a message. The message needs no alignment. `offset` is a multiple of 16. Bytes
// after the end of the message are loaded as 0.
template <typename Place>
VERBENA_DEVICE Vector16 load_vector(const Place& from, uint32_t offset, uint32_t length_bytes) {
  const char* const whole = find_part(from, offset, kVectorBytes);
  if (is_whole<Vector16>(whole, offset, length_bytes)) return load_data(whole);
  return __builtin_bit_cast(Vector16, Halves{load_part<uint64_t>(from, offset, length_bytes),
                                             load_part<uint64_t>(from, offset + 8, length_bytes)});
}
template <typename Place>
VERBENA_DEVICE void store_vector(const Place& to, uint32_t offset, uint32_t length_bytes, Vector16 vector) {
  char* const whole = find_part(to, offset, kVectorBytes);
  if (is_whole<Vector16>(whole, offset, length_bytes)) return store_data(whole, vector);
  const auto halves = __builtin_bit_cast(Halves, vector);
  store_part(to, offset, length_bytes, halves.low);
  store_part(to, offset + 8, length_bytes, halves.high);
}
template <typename Place>
VERBENA_DEVICE_FAR Vector16 load_vector_apart(const Place from, uint32_t offset, uint32_t length_bytes) {
  return load_vector(from, offset, length_bytes);
}
template <typename Place>
VERBENA_DEVICE_FAR void store_vector_apart(const Place to, uint32_t offset, uint32_t length_bytes,
                                           Vector16 vector) {
  store_vector(to, offset, length_bytes, vector);
}

// Returns the address of the message if its bytes are contiguous and aligned to 16 bytes, and null otherwise.
VERBENA_DEVICE char* find_vectors(const char* place) {
  return offset_in_vector(place) == 0 ? const_cast<char*>(place) : nullptr;
}
VERBENA_DEVICE char* find_vectors(const Rows& place) {
  return place.is_contiguous() ? find_vectors(place.find(0)) : nullptr;
}

}  // namespace detail

// A message in memory that is accessed packet by packet. The message needs no alignment. Bytes after the end
// of the message are loaded as 0. If the message is contiguous and aligned to 16 bytes, each packet takes one
// load or store. Otherwise each packet takes a function call.
template <typename Place>
class MessageBytes {
 public:
  VERBENA_DEVICE MessageBytes(const Place& place, uint64_t length_bytes)
      : place_(place),
        vectors_(keep(detail::find_vectors(place))),
        length_bytes_(static_cast<uint32_t>(length_bytes)),
        count_vectors_(keep(vectors_ == nullptr ? 0 : length_bytes_ / kVectorBytes)) {}
  VERBENA_DEVICE Packet::Data load(uint32_t index) const {
    const uint32_t offset = Packet::offset(index);
    if (__builtin_expect(index < count_vectors_, 1)) return detail::load_data(vectors_ + offset);
    return detail::load_vector_apart(place_, offset, length_bytes_);
  }
  VERBENA_DEVICE void store(uint32_t index, const Packet::Data& data) const {
    const uint32_t offset = Packet::offset(index);
    if (__builtin_expect(index < count_vectors_, 1)) return detail::store_data(vectors_ + offset, data);
    detail::store_vector_apart(place_, offset, length_bytes_, data);
  }

 private:
  Place place_;
  char* vectors_;
  uint32_t length_bytes_, count_vectors_;
};

}  // namespace verbena::device

#endif
