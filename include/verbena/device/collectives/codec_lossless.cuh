// The lossless codec of collectives between hosts. The codec shortens messages without changing any bit of
// the results. It is made for bfloat16 elements, whose exponents hardly differ within a tile, and for sums of
// such elements, which are floats with only a few significant bits.
//
// A warp encodes a tile of 1,024 elements at a time. The warp's registers contain the elements as floats (a
// bfloat16 is the upper half of a float). Each element has an exponent code of 4 bits:
//   0 to 13   the distance of the exponent from the tile's largest finite exponent
//   14        exponent 0: zeros and denormal elements
//   15        the exponent has no code: the element is an escape
// The codes are followed by the signs and mantissas. Signs and mantissas are stored in planes of 4 bits per
// element; a tile has as many planes as its mantissas need. The planes are followed by a list of the escapes.
// In a bfloat16 tile, the list contains the exponent of each escape; in a float tile, the list contains the
// whole element. If the list would make a tile longer than its unencoded elements, the tile is raw. A raw
// tile contains the lower 4 bits of the exponents in place of the codes, and has an additional plane with the
// upper 4 bits. A tile of zeros has no data. So a bfloat16 tile takes 12 bits per element plus escapes, but
// at most 16 bits per element.
//
// A message consists of its length in vectors of 16 bytes, a header of 8 bytes for each tile, and the data of
// the tiles in any order. The headers say where the data of each tile begins. So a receiver does not need the
// length of the message, and never reads leftover bytes of an earlier, longer message. A message is longer
// than its unencoded elements by at most 24 bytes plus 8 bytes per tile.
//
//   LosslessTiles<2> message(memory, elements);
//   message.begin(group); group.sync();
//   message.store(tile, words);                                     // each tile once, by a whole warp
//   group.sync(); length = message.length_bytes();
//   LosslessTiles<2, const char>(memory, elements).load(tile, words);
//
// load() checks every value, because another rank has written the message. load() never reads bytes after the
// first max_bytes() bytes.
#ifndef VERBENA_DEVICE_COLLECTIVES_CODEC_LOSSLESS_CUH
#define VERBENA_DEVICE_COLLECTIVES_CODEC_LOSSLESS_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/collectives/codec.cuh"
#include "verbena/device/message_bytes.cuh"

namespace verbena::device {

// The elements of a tile that one lane has, as the bits of floats. codec.cuh explains units and rows.
struct TileWords {
  uint32_t of[kTileRows][kUnitElements];
};

// @tparam kElementBytes  2 for bfloat16 elements, whose words end with 16 zero bits; 4 for floats
// @tparam Byte           const char if tiles are only loaded
template <uint32_t kElementBytes, typename Byte = char>
class LosslessTiles {
  static_assert(kElementBytes == 2 || kElementBytes == 4, "verbena: elements of 2 or 4 bytes");

 public:
  static constexpr uint32_t kElementsBytes = kTileElements * kElementBytes;  // bytes of a tile's elements

  // @param memory    aligned to 16 bytes, with max_bytes(elements) bytes
  // @param elements  below 2^31
  VERBENA_DEVICE LosslessTiles(Byte* memory, uint32_t elements) : memory_(memory), elements_(elements) {}

  VERBENA_HOST_DEVICE static constexpr uint32_t count_tiles(uint32_t elements) {
    return (elements + kTileElements - 1) / kTileElements;
  }
  VERBENA_DEVICE uint32_t tiles() const { return count_tiles(elements_); }
  VERBENA_HOST_DEVICE static constexpr uint64_t max_bytes(uint32_t elements) {
    return head_bytes(elements) +
           (uint64_t{elements} + kUnitElements - 1) / kUnitElements * kUnitElements * kElementBytes;
  }
  // Returns the largest number of elements whose message always fits into `bytes` bytes. The number is a
  // multiple of a tile, or a multiple of a unit if no tile fits.
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_elements(uint64_t bytes) {
    constexpr uint64_t kMost = uint64_t{1} << 30;
    const uint64_t room = bytes < kMost ? bytes : kMost;
    const uint64_t tiles = room < kVectorBytes ? 0 : (room - kVectorBytes) / (kElementsBytes + kHeaderBytes);
    if (tiles != 0) return static_cast<uint32_t>(tiles) * kTileElements;
    const uint64_t units = room < kVectorBytes ? 0 : (room - kVectorBytes) / (kUnitElements * kElementBytes);
    return static_cast<uint32_t>(units) * kUnitElements;
  }

  // Returns the largest number of elements of a chunk, like fit_elements(). Chunks are short, so that a GPU
  // encodes and decodes chunks while a NIC carries another chunk.
  VERBENA_HOST_DEVICE static constexpr uint32_t fit_chunk(uint64_t bytes) {
    constexpr uint32_t kMost = (1U << 20) / kElementBytes;  // 2026-11-30-h200x2-hosts-lossless
    const uint32_t elements = fit_elements(bytes);
    return elements < kMost ? elements : kMost;
  }

  // Begins a message. All threads of the group must call it, and must then sync before the first store().
  template <typename Group>
  VERBENA_DEVICE void begin(const Group& group) const {
    if (group.elect())
      device::store<Order::kWeak, Scope::kThreads>(
          reinterpret_cast<uint32_t*>(memory_), static_cast<uint32_t>(head_bytes(elements_) / kVectorBytes));
  }
  // Returns the length of the message in bytes, a multiple of 16. Call it after a barrier that follows the
  // last store().
  VERBENA_DEVICE uint64_t length_bytes() const {
    return uint64_t{load_relaxed<Scope::kGpu>(reinterpret_cast<uint32_t*>(memory_))} * kVectorBytes;
  }

  // Encodes a tile. All lanes of a warp call it together. Words after the last element must be 0.
  VERBENA_DEVICE void store(uint32_t tile, const TileWords& words) const {
    const Place place = find_place(tile);
    const uint32_t top = find_top(words);
    const Shape shape = choose_shape(words, top, place);
    uint32_t codes[kTileRows], escapes = 0;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      codes[row] = 0;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        const uint32_t word = words.of[row][i];
        const uint32_t code = shape.is_raw() ? word >> 23 & 15 : find_code(word, top, shape.planes);
        escapes += !shape.is_raw() && code == kEscape ? 1 : 0;
        codes[row] |= code << 4 * i;
      }
    }
    const uint32_t at = reserve(shape.bytes);
    if (lane() == 0)
      put(memory_ + offset_of_header(tile),
          at | uint64_t{top | shape.planes << 8 | shape.escapes << 16} << 32);
    if (shape.planes == 0) return;
    char* const to = memory_ + uint64_t{at} * kVectorBytes;
    store_plane(to, place, 0, codes);
    VERBENA_UNROLL
    for (uint32_t plane = 1; plane <= kMantissaPlanes; ++plane) {
      if (plane >= shape.planes) continue;
      uint32_t packed[kTileRows];
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        packed[row] = 0;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitElements; ++i)
          packed[row] |= pick_bits(words.of[row][i], plane) << 4 * i;
      }
      store_plane(to, place, plane, packed);
    }
    if (shape.is_raw()) {
      uint32_t packed[kTileRows];
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        packed[row] = 0;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitElements; ++i) packed[row] |= (words.of[row][i] >> 27 & 15) << 4 * i;
      }
      store_plane(to, place, kRawPlanes - 1, packed);
    }
    if (shape.escapes == 0) return;
    char* const list = to + shape.planes * place.plane_bytes;
    uint32_t next = count_before(escapes);
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        if ((codes[row] >> 4 * i & 15) != kEscape) continue;
        const uint32_t word = words.of[row][i];
        put(list + sizeof(Escape) * next++, static_cast<Escape>(kElementBytes == 2 ? word >> 23 : word));
      }
    }
  }

  // Decodes a tile. All lanes of a warp call it together, after they have acquired the message. Words after
  // the last element may have any value.
  VERBENA_DEVICE void load(uint32_t tile, TileWords& words) const {
    const Place place = find_place(tile);
    const auto header = get<uint64_t>(memory_ + offset_of_header(tile));
    const auto about = static_cast<uint32_t>(header >> 32);
    const uint32_t top = about & 0xff, escapes = about >> 16;
    uint32_t planes = about >> 8 & 0xff;
    const uint64_t at = (header & 0xffffffff) * kVectorBytes;
    const uint64_t bytes = planes * place.plane_bytes + escapes * sizeof(Escape);
    // FAULT(lossless_tiles_are_trusted)
    if (planes > kRawPlanes || at + bytes > max_bytes(elements_)) planes = 0;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) words.of[row][i] = 0;
    }
    if (planes == 0) return;
    const char* const from = memory_ + at;
    const bool is_raw = planes == kRawPlanes;
    uint32_t codes[kTileRows], high[kTileRows] = {}, found = 0;
    load_plane(from, place, 0, codes);
    if (is_raw) load_plane(from, place, kRawPlanes - 1, high);
    VERBENA_UNROLL
    for (uint32_t plane = 1; plane <= kMantissaPlanes; ++plane) {
      if (plane >= planes) continue;
      uint32_t packed[kTileRows];
      load_plane(from, place, plane, packed);
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitElements; ++i)
          words.of[row][i] |= put_bits(packed[row] >> 4 * i & 15, plane);
      }
    }
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        const uint32_t code = codes[row] >> 4 * i & 15;
        const uint32_t exponent = is_raw           ? code | (high[row] >> 4 * i & 15) << 4
                                  : code < kOfZero ? (top - code) & 0xff
                                                   : 0;
        words.of[row][i] |= exponent << 23;
        found += !is_raw && code == kEscape ? 1 : 0;
      }
    }
    if (is_raw || escapes == 0) return;
    const char* const list = from + planes * place.plane_bytes;
    uint32_t next = count_before(found);
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        // FAULT(lossless_lists_are_trusted)
        if ((codes[row] >> 4 * i & 15) != kEscape || next >= escapes) continue;
        const uint32_t escape = get<Escape>(list + sizeof(Escape) * next++);
        words.of[row][i] = kElementBytes == 2 ? words.of[row][i] | escape << 23 : escape;
      }
    }
  }

 private:
  using Escape = decltype(detail::make_bits < kElementBytes == 2 ? 1 : 4 > ());

  static constexpr uint32_t kHeaderBytes = 8;
  static constexpr uint32_t kOfZero = 14, kEscape = 15;
  // A plane is a group of 4 bits per element. Plane 0 contains the codes; the following planes contain signs
  // and mantissas. A raw tile has one more plane.
  static constexpr uint32_t kMinMantissaPlanes = 2, kMantissaPlanes = kElementBytes == 2 ? 2 : 6;
  static constexpr uint32_t kRawPlanes = kMantissaPlanes + 2;

  // The number of units in a tile, and the length of a plane in bytes. The last tile may be shorter than the
  // other tiles.
  struct Place {
    uint32_t units, plane_bytes;
  };
  struct Shape {
    uint32_t planes, escapes, bytes;

    VERBENA_DEVICE bool is_raw() const { return planes == kRawPlanes; }
  };

  VERBENA_HOST_DEVICE static constexpr uint64_t head_bytes(uint32_t elements) {
    return (uint64_t{kHeaderBytes} * (count_tiles(elements) + 1) + kVectorBytes - 1) / kVectorBytes *
           kVectorBytes;
  }
  VERBENA_HOST_DEVICE static constexpr uint64_t offset_of_header(uint32_t tile) {
    return kHeaderBytes * (uint64_t{tile} + 1);
  }
  VERBENA_DEVICE Place find_place(uint32_t tile) const {
    const uint32_t left = elements_ - tile * kTileElements;
    const uint32_t count = left < kTileElements ? left : kTileElements;
    const uint32_t units = (count + kUnitElements - 1) / kUnitElements;
    return {units, units * static_cast<uint32_t>(sizeof(uint32_t))};
  }
  template <typename T>
  VERBENA_DEVICE static void put(char* to, T value) {
    device::store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(reinterpret_cast<T*>(to),
                                                                                  value);
  }
  template <typename T>
  VERBENA_DEVICE static T get(const char* from) {
    return device::load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const T*>(from));
  }
  // Reserves `bytes` bytes of the message for a tile. Returns the index of the first reserved vector.
  VERBENA_DEVICE uint32_t reserve(uint32_t bytes) const {
    uint32_t at = 0;
    if (lane() == 0)
      at = fetch_add<Order::kRelaxed, Scope::kGpu, Space::kGlobal>(reinterpret_cast<uint32_t*>(memory_),
                                                                   bytes / kVectorBytes);
    return shuffle(kFullWarp, at, 0);
  }

  template <typename Combine>
  VERBENA_DEVICE static uint32_t combine_lanes(uint32_t value, const Combine& combine) {
    VERBENA_UNROLL
    for (uint32_t step = 1; step < kWarpLanes; step *= 2)
      value = combine(value, shuffle(kFullWarp, value, static_cast<int>(lane() ^ step)));
    return value;
  }
  VERBENA_DEVICE static uint32_t add_lanes(uint32_t value) {
    return combine_lanes(value, [](uint32_t a, uint32_t b) { return a + b; });
  }
  // Returns the sum of the values of all lower lanes.
  VERBENA_DEVICE static uint32_t count_before(uint32_t value) { return add_up_lanes(value, lane()) - value; }

  VERBENA_DEVICE static uint32_t find_exponent(uint32_t word) { return word >> 23 & 0xff; }
  // Returns the largest exponent of a finite element.
  VERBENA_DEVICE static uint32_t find_top(const TileWords& words) {
    uint32_t top = 0;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        const uint32_t exponent = find_exponent(words.of[row][i]);
        if (exponent > top && exponent != 0xff) top = exponent;
      }
    }
    return combine_lanes(top, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
  }
  // Returns the mask of the mantissa bits that a tile with this number of planes does not store.
  VERBENA_HOST_DEVICE static constexpr uint32_t mask_dropped(uint32_t planes) {
    return (1u << (28 - 4 * planes)) - 1;
  }
  VERBENA_DEVICE static uint32_t find_code_of_exponent(uint32_t word, uint32_t top) {
    const uint32_t exponent = find_exponent(word), distance = top - exponent;
    return exponent == 0 ? kOfZero : distance < kOfZero ? distance : kEscape;
  }
  VERBENA_DEVICE static uint32_t find_code(uint32_t word, uint32_t top, uint32_t planes) {
    if (kElementBytes == 4 && (word & mask_dropped(planes)) != 0) return kEscape;
    return find_code_of_exponent(word, top);
  }

  // Chooses the number of planes with which the tile is shortest.
  VERBENA_DEVICE static Shape choose_shape(const TileWords& words, uint32_t top, const Place& place) {
    constexpr uint32_t kChoices = kMantissaPlanes - kMinMantissaPlanes + 1;
    // For each choice, the number of escapes. A word contains two numbers.
    uint32_t counts[(kChoices + 1) / 2] = {}, bits = 0;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        const uint32_t word = words.of[row][i];
        const bool is_far = find_code_of_exponent(word, top) == kEscape;
        bits |= word;
        VERBENA_UNROLL
        for (uint32_t choice = 0; choice < kChoices; ++choice) {
          const bool is_long =
              kElementBytes == 4 && (word & mask_dropped(kMinMantissaPlanes + 1 + choice)) != 0;
          counts[choice / 2] += (is_far || is_long ? 1u : 0u) << choice % 2 * 16;
        }
      }
    }
    if (ballot(kFullWarp, bits != 0) == 0) return {0, 0, 0};
    VERBENA_UNROLL
    for (uint32_t& pair : counts) pair = add_lanes(pair);
    Shape best{kRawPlanes, 0, kRawPlanes * place.plane_bytes};
    VERBENA_UNROLL
    for (uint32_t choice = 0; choice < kChoices; ++choice) {
      const uint32_t planes = kMinMantissaPlanes + 1 + choice;
      const uint32_t escapes = counts[choice / 2] >> choice % 2 * 16 & 0xffff;
      const uint32_t bytes =
          (planes * place.plane_bytes + escapes * static_cast<uint32_t>(sizeof(Escape)) + kVectorBytes - 1) /
          kVectorBytes * kVectorBytes;
      if (bytes < best.bytes) best = {planes, escapes, bytes};
    }
    return best;
  }

  // pick_bits() extracts from a word the 4 bits of sign and mantissa that a plane contains; put_bits() moves
  // these bits back to their positions in a word.
  VERBENA_DEVICE static uint32_t pick_bits(uint32_t word, uint32_t plane) {
    return plane == 1 ? (word >> 28 & 8) | (word >> 20 & 7) : word >> (24 - 4 * plane) & 15;
  }
  VERBENA_DEVICE static uint32_t put_bits(uint32_t bits, uint32_t plane) {
    return plane == 1 ? (bits & 8) << 28 | (bits & 7) << 20 : bits << (24 - 4 * plane);
  }

  // store_plane() and load_plane() store and load a plane. A word contains 4 bits of each element of a unit.
  // In a whole tile, the words of a lane are adjacent. In a shorter tile, the words are in the order of the
  // elements.
  VERBENA_DEVICE static void store_plane(char* to, const Place& place, uint32_t plane,
                                         const uint32_t (&packed)[kTileRows]) {
    char* const begin = to + plane * place.plane_bytes;
    if (place.units == kTileElements / kUnitElements)
      return detail::store_words<kTileRows, Space::kGlobal>(begin + lane() * kVectorBytes, packed);
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const uint32_t unit = row * kWarpLanes + lane();
      if (unit < place.units)
        detail::store_words<1, Space::kGlobal>(begin + unit * sizeof(uint32_t), &packed[row]);
    }
  }
  VERBENA_DEVICE static void load_plane(const char* from, const Place& place, uint32_t plane,
                                        uint32_t (&packed)[kTileRows]) {
    const char* const begin = from + plane * place.plane_bytes;
    if (place.units == kTileElements / kUnitElements)
      return detail::load_words<kTileRows, Space::kGlobal>(packed, begin + lane() * kVectorBytes);
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const uint32_t unit = row * kWarpLanes + lane();
      packed[row] = 0;
      if (unit < place.units)
        detail::load_words<1, Space::kGlobal>(&packed[row], begin + unit * sizeof(uint32_t));
    }
  }

  Byte* const memory_;
  const uint32_t elements_;
};

namespace detail {

// widen_vectors() and narrow_words() convert between words and a lane's unit of elements in memory. The unit
// is one vector of bfloat16 elements, or two vectors of floats.
template <uint32_t kElementBytes>
inline constexpr uint32_t kUnitVectors = kUnitElements * kElementBytes / kVectorBytes;

template <uint32_t kElementBytes>
VERBENA_DEVICE void widen_vectors(const Vector16 (&vectors)[kUnitVectors<kElementBytes>], uint32_t* unit) {
  VERBENA_UNROLL
  for (uint32_t k = 0; k < kUnitVectors<kElementBytes>; ++k) {
    const auto words = __builtin_bit_cast(Words<4>, vectors[k]);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      if constexpr (kElementBytes == 2) {
        unit[2 * i] = words.of[i] << 16;
        unit[2 * i + 1] = words.of[i] & 0xffff0000u;
      } else {
        unit[4 * k + i] = words.of[i];
      }
    }
  }
}
template <uint32_t kElementBytes>
VERBENA_DEVICE void narrow_words(const uint32_t* unit, Vector16 (&vectors)[kUnitVectors<kElementBytes>]) {
  VERBENA_UNROLL
  for (uint32_t k = 0; k < kUnitVectors<kElementBytes>; ++k) {
    Words<4> words;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      words.of[i] = kElementBytes == 2 ? unit[2 * i] >> 16 | unit[2 * i + 1] : unit[4 * k + i];
    vectors[k] = __builtin_bit_cast(Vector16, words);
  }
}
// Calls `visit(row, offset)` for each of this lane's units of a tile. `offset` is the offset of the unit in a
// tensor of `length_bytes` bytes.
template <uint32_t kElementBytes, typename Visit>
VERBENA_DEVICE void for_units(uint32_t tile, uint32_t length_bytes, const Visit& visit) {
  VERBENA_UNROLL
  for (uint32_t row = 0; row < kTileRows; ++row) {
    const uint32_t offset =
        (tile * kTileElements + row * kRowElements + lane() * kUnitElements) * kElementBytes;
    if (offset < length_bytes) visit(row, offset);
  }
}

}  // namespace detail

// load_tile_words() and store_tile_words() load and store a tile of a tensor, which may have any length and
// alignment (message_bytes.cuh). All lanes of a warp must call these functions together. Elements after the
// end of the tensor are loaded as 0.
template <uint32_t kElementBytes, typename Place>
VERBENA_DEVICE void load_tile_words(const Place& from, uint32_t tile, uint32_t length_bytes,
                                    TileWords& words) {
  words = {};
  detail::for_units<kElementBytes>(tile, length_bytes, [&](uint32_t row, uint32_t offset) {
    Vector16 vectors[detail::kUnitVectors<kElementBytes>] = {};
    VERBENA_UNROLL
    for (uint32_t k = 0; k < detail::kUnitVectors<kElementBytes>; ++k)
      if (offset + k * kVectorBytes < length_bytes)
        vectors[k] = detail::load_vector(from, offset + k * kVectorBytes, length_bytes);
    detail::widen_vectors<kElementBytes>(vectors, words.of[row]);
  });
}
template <uint32_t kElementBytes, typename Place>
VERBENA_DEVICE void store_tile_words(const Place& to, uint32_t tile, uint32_t length_bytes,
                                     const TileWords& words) {
  detail::for_units<kElementBytes>(tile, length_bytes, [&](uint32_t row, uint32_t offset) {
    Vector16 vectors[detail::kUnitVectors<kElementBytes>];
    detail::narrow_words<kElementBytes>(words.of[row], vectors);
    VERBENA_UNROLL
    for (uint32_t k = 0; k < detail::kUnitVectors<kElementBytes>; ++k)
      if (offset + k * kVectorBytes < length_bytes)
        detail::store_vector(to, offset + k * kVectorBytes, length_bytes, vectors[k]);
  });
}

}  // namespace verbena::device

#endif
