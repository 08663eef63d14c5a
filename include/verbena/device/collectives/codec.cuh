// The code that the codecs of quantised all-reduces share: loads of elements, scales of groups, the layout of
// encoded elements in a message, and rounding. docs/quantisation.md has the error bounds.
//
// A warp encodes a tile of 1,024 elements at a time, as four rows of 256 elements. In each row, a lane has 8
// adjacent elements, called a unit (one 16-byte vector of a 2-byte type). Elements that share a scale form a
// group. The elements of a group are contiguous in a row; a group has 32, 64 or 128 elements, which are the
// units of 4, 8 or 16 lanes.
//
// A codec is a type with
//   kBits, kGroup                   bits per encoded element; elements per group
//   Coded                           a lane's part of an encoded tile: the words payload[kBits] and
//                                   scales[kScaleWords]; all lanes of a group have the same scales
//   encode(elements, rounding)      returns the Coded of a tile
//   decode_row(coded, row, unit)    writes this lane's unit of the row to `unit`, an array of 8 floats
// All lanes of a warp call the functions together. Decoding gives the same bits on every GPU and on the host.
// The four rows of a tile are encoded together, so that the latencies of the instructions overlap. Tiles with
// huge, tiny or non-finite elements are encoded row by row, by a slower function that is not inlined.
#ifndef VERBENA_DEVICE_COLLECTIVES_CODEC_CUH
#define VERBENA_DEVICE_COLLECTIVES_CODEC_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/copy.cuh"
#include "verbena/device/reduction.cuh"

namespace verbena::device {

inline constexpr uint32_t kUnitElements = 8, kTileRows = 4;
inline constexpr uint32_t kRowElements = kUnitElements * kWarpLanes;
inline constexpr uint32_t kTileElements = kRowElements * kTileRows;

// The elements of a tile that one lane has.
struct TileElements {
  float of[kTileRows][kUnitElements];
};

// Rounds to the nearest encoded value, ties to even.
struct RoundToNearest {
  static constexpr bool kIsStochastic = false;
  VERBENA_DEVICE RoundToNearest in_tile(uint64_t) const { return {}; }
};

// Rounds stochastically: up or down at random, with a higher probability for the nearer value. Over many
// seeds the error averages to zero, even for a single value. The same seed and tile always give the same
// result. If the errors of ranks, calls or phases must be independent, use a different seed for each rank,
// call or phase.
class RoundStochastically {
 public:
  static constexpr bool kIsStochastic = true;
  VERBENA_DEVICE explicit RoundStochastically(uint64_t seed) : state_(seed) {}

  VERBENA_DEVICE RoundStochastically in_tile(uint64_t tile) const {
    return RoundStochastically(mix(state_ + tile * kOdd) + lane() * kOdd * kTileRows);
  }
  // Returns a random byte for element i of this lane's unit in a row.
  VERBENA_DEVICE uint32_t draw(uint32_t row, uint32_t i) const {
    return static_cast<uint32_t>(mix(state_ + row * kOdd) >> i * 8) & 0xff;
  }

 private:
  static constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

  VERBENA_DEVICE static uint64_t mix(uint64_t bits) {
    bits = (bits ^ bits >> 32) * kOdd;
    bits = (bits ^ bits >> 29) * kOdd;
    return bits ^ bits >> 32;
  }

  uint64_t state_;
};

namespace detail {

inline constexpr float kSmallestNormal = 0x1p-126F;
inline constexpr uint32_t kLargestBfloat16 = 0x7f7f0000;  // as a float's bits

// Treats values with a magnitude above the largest bfloat16 as infinite, because the bounds of a group are
// stored as bfloat16.
VERBENA_DEVICE bool is_finite(float value) {
  return (to_bits(value) & 0x7fffffffu) <= kLargestBfloat16;
}
VERBENA_DEVICE float make_infinity(bool is_negative) {
  return from_bits(is_negative ? 0xff800000u : 0x7f800000u);
}
// Returns the smallest bfloat16 that is not below the value. NaN stays NaN.
VERBENA_DEVICE uint32_t round_up_to_bfloat16(float value) {
  const uint32_t bits = to_bits(value);
  if (static_cast<int32_t>(bits) < 0) return bits >> 16;
  return ((bits < 0x7fff0000u ? bits : 0x7fff0000u) + 0xffff) >> 16;
}

template <typename T>
struct Several {
  T of[kUnitElements];
};

// Replaces each half of each word by the maximum of this half over the kLanes adjacent lanes of a group.
template <uint32_t kLanes, uint32_t kCount>
VERBENA_DEVICE void find_largest_pairs(uint32_t (&pairs)[kCount]) {
  VERBENA_UNROLL
  for (uint32_t step = 1; step < kLanes; step *= 2) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i)
      pairs[i] = choose_larger_pair(pairs[i], shuffle(kFullWarp, pairs[i], static_cast<int>(lane() ^ step)));
  }
}

}  // namespace detail

// load_unit() and store_unit() load and store this lane's unit of a row. The row starts at element `first` of
// a tensor of `count` elements; the tensor has at least one element. For elements after the end of the
// tensor, load_unit() returns copies of the last element. These copies do not widen the range of values in a
// group.
// @param is_whole  true if the whole row is in the tensor and the address is aligned to 16 bytes
template <typename T>
using Unit = Packed<T, kUnitElements * sizeof(T)>;
template <typename T>
VERBENA_DEVICE Unit<T> load_unit(const T* source, uint64_t first, uint64_t count, bool is_whole) {
  const uint64_t at = first + lane() * kUnitElements;
  if (is_whole) return load_packed<sizeof(Unit<T>)>(source + at);
  detail::Several<T> several;
  for (uint32_t i = 0; i < kUnitElements; ++i)
    several.of[i] = load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        source + (at + i < count ? at + i : count - 1));
  return __builtin_bit_cast(Unit<T>, several);
}
template <typename T>
VERBENA_DEVICE void store_unit(T* destination, uint64_t first, uint64_t count, bool is_whole,
                               const Unit<T>& unit) {
  const uint64_t at = first + lane() * kUnitElements;
  if (is_whole) return store_packed(destination + at, unit);
  const auto several = __builtin_bit_cast(detail::Several<T>, unit);
  for (uint32_t i = 0; i < kUnitElements && at + i < count; ++i)
    store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(destination + at + i,
                                                                          several.of[i]);
}

// A unit of bfloat16 or half elements. The type is known only at run time.
using RawUnit = Unit<Bfloat16>;
inline constexpr uint32_t kTileBytes = kTileElements * sizeof(Bfloat16);

// load_tile() and store_tile() load and store this lane's units of tile `tile` of the tensor.
VERBENA_DEVICE void load_tile(const char* tensor, uint64_t length_bytes, uint32_t tile,
                              RawUnit (&raw)[kTileRows]) {
  const auto* const from = reinterpret_cast<const Bfloat16*>(tensor);
  const uint64_t count = length_bytes / sizeof(Bfloat16), first = uint64_t{tile} * kTileElements;
  const bool is_whole = detail::offset_in_vector(from) == 0 && first + kTileElements <= count;
  VERBENA_UNROLL
  for (uint32_t row = 0; row < kTileRows; ++row)
    raw[row] = load_unit(from, first + row * kRowElements, count, is_whole);
}
VERBENA_DEVICE void store_tile(char* tensor, uint64_t length_bytes, uint32_t tile,
                               const RawUnit (&raw)[kTileRows]) {
  auto* const to = reinterpret_cast<Bfloat16*>(tensor);
  const uint64_t count = length_bytes / sizeof(Bfloat16), first = uint64_t{tile} * kTileElements;
  const bool is_whole = detail::offset_in_vector(to) == 0 && first + kTileElements <= count;
  VERBENA_UNROLL
  for (uint32_t row = 0; row < kTileRows; ++row)
    store_unit(to, first + row * kRowElements, count, is_whole, raw[row]);
}

namespace detail {

template <typename T>
VERBENA_DEVICE RawUnit narrow_unit_as(const float* unit) {
  PackedSum<T> sums;
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kUnitElements; ++i) sums.sums[i] = unit[i];
  return __builtin_bit_cast(RawUnit, sums.round());
}
template <typename T>
VERBENA_DEVICE void widen_unit_as(const RawUnit& raw, float* unit) {
  PackedSum<T> sums;
  sums.begin(__builtin_bit_cast(Packed<T>, raw));
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kUnitElements; ++i) unit[i] = sums.sums[i];
}

}  // namespace detail

VERBENA_DEVICE RawUnit narrow_unit(DataType type, const float* unit) {
  return type == DataType::kFloat16 ? detail::narrow_unit_as<Half>(unit)
                                    : detail::narrow_unit_as<Bfloat16>(unit);
}
VERBENA_DEVICE void widen_tile(DataType type, const RawUnit (&raw)[kTileRows], TileElements& numbers) {
  const auto widen = [&](auto number) {
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row)
      detail::widen_unit_as<decltype(number)>(raw[row], numbers.of[row]);
  };
  if (type == DataType::kFloat16) {
    widen(Half{});
  } else {
    widen(Bfloat16{});
  }
}

namespace detail {

// Fills up a tile that has only `count` elements (at least one) with copies of the last element, as
// load_unit() does.
VERBENA_DEVICE void fill_tile(TileElements& numbers, uint32_t count) {
  const auto index_of = [](uint32_t row, uint32_t i) {
    return row * kRowElements + lane() * kUnitElements + i;
  };
  float last = 0;
  VERBENA_UNROLL
  for (uint32_t row = 0; row < kTileRows; ++row) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i)
      if (index_of(row, i) + 1 == count) last = numbers.of[row][i];
  }
  const uint32_t its_lane = (count - 1) % kRowElements / kUnitElements;
  last = from_bits(shuffle(kFullWarp, to_bits(last), static_cast<int>(its_lane)));
  VERBENA_UNROLL
  for (uint32_t row = 0; row < kTileRows; ++row) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i)
      if (index_of(row, i) >= count) numbers.of[row][i] = last;
  }
}

template <uint32_t kWords>
struct Words {
  uint32_t of[kWords];
};
template <uint32_t kWords, Space space>
VERBENA_DEVICE void store_words(char* to, const uint32_t* from) {
  Words<kWords> words;
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kWords; ++i) words.of[i] = from[i];
  using Access = Bits<Words<kWords>>;
  store<Order::kWeak, Scope::kThreads, Cache::kDefault, space>(reinterpret_cast<Access*>(to),
                                                               __builtin_bit_cast(Access, words));
}
template <uint32_t kWords, Space space>
VERBENA_DEVICE void load_words(uint32_t* to, const char* from) {
  using Access = Bits<Words<kWords>>;
  const auto words = __builtin_bit_cast(
      Words<kWords>,
      load<Order::kWeak, Scope::kThreads, Cache::kDefault, space>(reinterpret_cast<const Access*>(from)));
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kWords; ++i) to[i] = words.of[i];
}

}  // namespace detail

// The encoded tiles of a message. The payloads of all tiles come first, followed by the scales of all tiles.
// Within a tile, the words are in the order in which a warp accesses them. The length of a tile is a multiple
// of 16 bytes. If tiles are only loaded, Byte may be const char.
template <typename Codec, typename Byte = char, Space space = Space::kGlobal>
class CodedTiles {
 public:
  static constexpr uint32_t kPayloadBytes = kTileElements / 8 * Codec::kBits;
  static constexpr uint32_t kLanes = Codec::kGroup / kUnitElements;  // per group
  static constexpr uint32_t kGroupBytes = sizeof(uint32_t) * Codec::kScaleWords;
  static constexpr uint32_t kScaleBytes = kWarpLanes / kLanes * kGroupBytes;
  static constexpr uint32_t kBytes = kPayloadBytes + kScaleBytes;  // per tile
  static_assert(kLanes >= 4 && kWarpLanes % kLanes == 0,
                "verbena: a group must have 32, 64, 128 or 256 elements");
  static_assert(kBytes % kVectorBytes == 0, "verbena: the length of a tile must be a multiple of a vector");

  // @param memory  aligned to 16 bytes, with space for `tiles` tiles
  VERBENA_DEVICE CodedTiles(Byte* memory, uint64_t tiles)
      : payload_(memory), scales_(memory + tiles * kPayloadBytes) {}

  // store() and load() store and load an encoded tile. All lanes of a warp call these functions together.
  // Other threads see a stored tile after a fence and a barrier.
  VERBENA_DEVICE void store(uint64_t tile, const typename Codec::Coded& coded) const {
    Byte* const payload = payload_ + tile * kPayloadBytes;
    detail::store_words<4, space>(payload + lane() * 16, coded.payload);
    if constexpr (Codec::kBits > 4)
      detail::store_words<Codec::kBits - 4, space>(
          payload + 16 * kWarpLanes + lane() * (Codec::kBits - 4) * 4, coded.payload + 4);
    if (lane() % kLanes == 0) detail::store_words<Codec::kScaleWords, space>(find_scales(tile), coded.scales);
  }
  VERBENA_DEVICE typename Codec::Coded load(uint64_t tile) const {
    typename Codec::Coded coded;
    const char* const payload = payload_ + tile * kPayloadBytes;
    detail::load_words<4, space>(coded.payload, payload + lane() * 16);
    if constexpr (Codec::kBits > 4)
      detail::load_words<Codec::kBits - 4, space>(
          coded.payload + 4, payload + 16 * kWarpLanes + lane() * (Codec::kBits - 4) * 4);
    detail::load_words<Codec::kScaleWords, space>(coded.scales, find_scales(tile));
    return coded;
  }

 private:
  VERBENA_DEVICE Byte* find_scales(uint64_t tile) const {
    return scales_ + tile * kScaleBytes + lane() / kLanes * kGroupBytes;
  }

  Byte *payload_, *scales_;
};

}  // namespace verbena::device

#endif
