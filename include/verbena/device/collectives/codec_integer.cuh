// Codecs that send elements as integers of 4, 6 or 8 bits. The integers divide the range from the minimum to
// the maximum of a group into equal steps. The error of an element is at most 0.51 steps. If all elements of
// a group have the same value, and bfloat16 can represent the value, there is no error.
//
// The scale of a group is a word. The lower half of the word is the group's minimum, rounded down to
// bfloat16; the upper half is the maximum, rounded up. A group with non-finite or huge elements is called
// special. In the scale of a special group, the two halves are swapped. The encoded integers are called
// codes. In a special group, the three highest codes stand for minus infinity, infinity and NaN, and the
// finite elements use the other codes.
#ifndef VERBENA_DEVICE_COLLECTIVES_CODEC_INTEGER_CUH
#define VERBENA_DEVICE_COLLECTIVES_CODEC_INTEGER_CUH

#include "verbena/device/collectives/codec.cuh"

namespace verbena::device {

template <uint32_t kBits_, uint32_t kGroup_>
class IntegerCodec {
 public:
  static_assert(kBits_ == 4 || kBits_ == 6 || kBits_ == 8, "verbena: kBits_ must be 4, 6 or 8");
  static constexpr uint32_t kBits = kBits_, kGroup = kGroup_, kScaleWords = kTileRows;

  struct Coded {
    uint32_t payload[kBits];
    uint32_t scales[kScaleWords];  // scales of the rows
  };

  template <typename Rounding>
  VERBENA_DEVICE static Coded encode(const TileElements& numbers, const Rounding& rounding) {
    Coded coded;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row)
      coded.scales[row] = find_bounds_of_unit<false>(numbers.of[row]);
    detail::find_largest_pairs<kLanes>(coded.scales);
    float lowest[kTileRows], half_range[kTileRows];
    bool is_plain = true;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      is_plain = is_plain & !is_special(coded.scales[row]);
      coded.scales[row] ^= 0x8000;
      lowest[row] = find_low(coded.scales[row]);
      half_range[row] = halve_range(lowest[row], find_high(coded.scales[row]));
      is_plain = is_plain & (half_range[row] == 0 || half_range[row] > kMinPlainRange);
    }
    if (ballot(kFullWarp, !is_plain) != 0) {
      // Passes copies to encode_rows(), because compilers keep a variable in memory if its address is passed.
      const TileElements copy = numbers;
      const Rounding own = rounding;
      Coded special;
      encode_rows(copy, own, special);
      return special;
    }
    VERBENA_UNROLL
    for (uint32_t word = 0; word < kBits; ++word) coded.payload[word] = take_off_rounders(word);
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const float inverse = half_range[row] == 0 ? 0 : detail::divide_nearly(kNan * 0.5F, half_range[row]);
      const float offset = -detail::multiply(lowest[row], inverse);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i)
        put_rounded(coded.payload, row * kUnitElements + i,
                    round_place(detail::multiply_add(numbers.of[row][i], inverse, offset), rounding, row, i));
    }
    return coded;
  }

  VERBENA_DEVICE static void decode_row(const Coded& coded, uint32_t row, float* unit) {
    const float low = find_low(coded.scales[row]), high = find_high(coded.scales[row]);
    if (low > high) {
      const Coded copy = coded;
      float special[kUnitElements];
      decode_special_row(copy, row, special);
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) unit[i] = special[i];
      return;
    }
    const float length = find_length(halve_range(low, high), 2.0F / kNan, low == high);
    const float offset = detail::multiply_add(-kCarrier, length, low);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i)
      unit[i] = detail::multiply_add(carry_code(coded.payload, row * kUnitElements + i), length, offset);
  }

 private:
  // Encodes tiles with huge, tiny or non-finite elements.
  template <typename Rounding>
  VERBENA_DEVICE_FAR static void encode_rows(const TileElements& numbers, const Rounding& rounding,
                                             Coded& coded) {
    coded = {};
    for (uint32_t row = 0; row < kTileRows; ++row) encode_row(numbers.of[row], row, rounding, coded);
  }
  template <typename Rounding>
  VERBENA_DEVICE static void encode_row(const float* unit, uint32_t row, const Rounding& rounding,
                                        Coded& coded) {
    const Steps steps(coded.scales[row] = find_scale(unit));
    const float inverse = steps.invert();
    const float offset = -detail::multiply(steps.lowest, inverse);
    uint32_t codes[kUnitElements];
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i)
      codes[i] = round_place(detail::multiply_add(unit[i], inverse, offset), rounding, row, i) - kRounderBits;
    if (steps.is_special) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        if (!detail::is_finite(unit[i]))
          codes[i] = unit[i] != unit[i] ? kNan : unit[i] > 0 ? kNan - 1 : kNan - 2;
      }
    }
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i) put_code(coded.payload, row * kUnitElements + i, codes[i]);
  }

  VERBENA_DEVICE_FAR static void decode_special_row(const Coded& coded, uint32_t row, float* unit) {
    const Steps steps(coded.scales[row]);
    for (uint32_t i = 0; i < kUnitElements; ++i)
      unit[i] = decode_special(carry_code(coded.payload, row * kUnitElements + i) - kCarrier, steps);
  }

  static constexpr uint32_t kNan = (1u << kBits) - 1;  // the highest code
  static constexpr uint32_t kLanes = kGroup / kUnitElements;
  // Adding kRounder to a value rounds the value to an integer, which is then in the low bits of the sum.
  static constexpr float kRounder = 0x1.8p23F;
  static constexpr uint32_t kRounderBits = 0x4b400000;
  // If half of a group's range is larger than kMinPlainRange, the step, half of the step and the inverse of
  // the step are normal numbers.
  static constexpr float kMinPlainRange = 0x1p-116F;
  // To decode a code, the codec inserts it at bit kPlace of the mantissa of the float kCarrier. The result is
  // the float kCarrier + code. The codec multiplies this float by the step and adds an offset, which is the
  // value that lies kCarrier steps below the minimum. The offset is accurate to a thousandth of a step. The
  // offset must be finite, so groups with exponents of kHugeExponent or more are special.
  static constexpr uint32_t kPlace = 12;
  static constexpr float kCarrier = 0x1p11F;
  static constexpr uint32_t kHugeExponent = 127 + 112;

  struct Steps {
    float lowest, half_range, length;
    bool is_special;

    VERBENA_DEVICE explicit Steps(uint32_t scale) {
      const float low = find_low(scale), high = find_high(scale);
      is_special = low > high;
      lowest = is_special ? high : low;
      half_range = halve_range(lowest, is_special ? low : high);
      length = find_length(half_range, is_special ? 2.0F / (kNan - 3) : 2.0F / kNan, low == high);
    }
    // Returns the inverse of the step. The inverse is computed from the exact range, because `length` is
    // rounded. With the inverse of `length`, all elements halfway between two steps would be rounded in the
    // same direction. Tensors of bfloat16 have such elements.
    VERBENA_DEVICE float invert() const {
      if (length <= detail::kSmallestNormal) return length == 0 ? 0 : 1 / detail::kSmallestNormal;
      return detail::divide(is_special ? (kNan - 3) * 0.5F : kNan * 0.5F, half_range);
    }
  };

  VERBENA_DEVICE static float find_low(uint32_t scale) { return detail::from_bits(scale << 16); }
  VERBENA_DEVICE static float find_high(uint32_t scale) { return detail::from_bits(scale & 0xffff0000u); }
  // Returns half of the range, because the whole range may be too large for a float.
  VERBENA_DEVICE static float halve_range(float low, float high) {
    return detail::add(detail::multiply(high, 0.5F), -detail::multiply(low, 0.5F));
  }
  // Returns the length of a step: 0 for a constant group, otherwise a length whose inverse is finite.
  VERBENA_DEVICE static float find_length(float half_range, float per_half, bool is_constant) {
    const float length = detail::multiply(half_range, per_half);
    return length >= detail::kSmallestNormal ? length : is_constant ? 0 : detail::kSmallestNormal;
  }
  // Rounds `place`, the distance of a value from the minimum in steps, to the code of the value. Returns the
  // code plus kRounderBits.
  template <typename Rounding>
  VERBENA_DEVICE static uint32_t round_place(float place, const Rounding& rounding, uint32_t row,
                                             uint32_t i) {
    if constexpr (Rounding::kIsStochastic)
      place = detail::add(place, (static_cast<float>(rounding.draw(row, i)) - 127.5F) / 256);
    return detail::to_bits(detail::add(place, kRounder));
  }

  VERBENA_DEVICE static float decode_special(float code, const Steps& steps) {
    if (code == kNan) return detail::from_bits(0x7fffffff);
    if (code > kNan - 3) return detail::make_infinity(code == kNan - 2);
    return detail::multiply_add(code, steps.length, steps.lowest);
  }

  // Returns a word with the maximum of a unit in the upper half and the negated minimum in the lower half,
  // both rounded up to bfloat16.
  template <bool kOfFinite>
  VERBENA_DEVICE static uint32_t find_bounds_of_unit(const float* unit) {
    float low = detail::make_infinity(false), high = detail::make_infinity(true);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i) {
      if (kOfFinite && !detail::is_finite(unit[i])) continue;
      low = detail::choose_smaller(low, unit[i]);
      high = detail::choose_larger(high, unit[i]);
    }
    return detail::round_up_to_bfloat16(high) << 16 | detail::round_up_to_bfloat16(-low);
  }
  template <bool kOfFinite>
  VERBENA_DEVICE static uint32_t find_bounds(const float* unit) {
    uint32_t pair[1] = {find_bounds_of_unit<kOfFinite>(unit)};
    detail::find_largest_pairs<kLanes>(pair);
    return pair[0];
  }
  VERBENA_DEVICE static bool is_special(uint32_t bounds) {
    return (bounds >> 23 & 0xff) >= kHugeExponent || (bounds >> 7 & 0xff) >= kHugeExponent;
  }

  VERBENA_DEVICE static uint32_t find_scale(const float* unit) {
    const uint32_t bounds = find_bounds<false>(unit);
    if (ballot(kFullWarp, is_special(bounds)) == 0) return bounds ^ 0x8000;
    const uint32_t finite = find_bounds<true>(unit);
    return is_special(bounds) ? make_special(finite) : finite ^ 0x8000;
  }
  // Returns the scale of a special group, which consists of the swapped bounds. Bounds that are equal are
  // changed so that they differ, because the swapping of equal bounds could not be recognised.
  VERBENA_DEVICE static uint32_t make_special(uint32_t bounds) {
    float low = -detail::from_bits(bounds << 16), high = detail::from_bits(bounds & 0xffff0000u);
    if (low > high) low = high = 0;  // no element is finite
    if (low == high) {
      low = low < 0 ? low : 0;
      high = high > 0 ? high : low < 0 ? 0 : 1;
    }
    return (detail::to_bits(low) & 0xffff0000u) | detail::to_bits(high) >> 16;
  }

  // Codes are packed into words, starting at the lowest bit of each word. If codes have 6 bits, each of the 6
  // words contains 5 codes. The bits of the last two of the 32 codes are in the two highest bits of the
  // words.
  VERBENA_HOST_DEVICE static constexpr bool has_gap(uint32_t i) { return kBits == 6 && i >= 30; }
  VERBENA_HOST_DEVICE static constexpr uint32_t find_word(uint32_t i) {
    return kBits == 6 ? i / 5 : i * kBits / 32;
  }
  VERBENA_HOST_DEVICE static constexpr uint32_t find_place(uint32_t i) {
    return kBits == 6 ? i % 5 * 6 : i * kBits % 32;
  }
  // Returns the initial value of a word. This value cancels all kRounderBits that put_rounded() adds to the
  // word.
  VERBENA_HOST_DEVICE static constexpr uint32_t take_off_rounders(uint32_t word) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kUnitElements * kTileRows; ++i)
      if (!has_gap(i) && find_word(i) == word) sum -= kRounderBits << find_place(i);
    return sum;
  }
  VERBENA_DEVICE static void put_rounded(uint32_t (&payload)[kBits], uint32_t i, uint32_t rounded) {
    if (has_gap(i)) return put_code(payload, i, rounded - kRounderBits);
    payload[find_word(i)] += rounded << find_place(i);
  }
  VERBENA_DEVICE static void put_code(uint32_t (&payload)[kBits], uint32_t i, uint32_t code) {
    if (!has_gap(i)) {
      payload[find_word(i)] += code << find_place(i);
      return;
    }
    VERBENA_UNROLL
    for (uint32_t part = 0; part < 3; ++part) payload[(i - 30) * 3 + part] += (code >> 2 * part & 3) << 30;
  }
  // Returns code `i` plus kCarrier, as a float.
  VERBENA_DEVICE static float carry_code(const uint32_t (&payload)[kBits], uint32_t i) {
    constexpr uint32_t kMask = kNan << kPlace;
    uint32_t word = 0;
    const uint32_t place = has_gap(i) ? 0 : find_place(i);
    if (!has_gap(i)) {
      word = payload[find_word(i)];
    } else {
      VERBENA_UNROLL
      for (uint32_t part = 0; part < 3; ++part) word |= payload[(i - 30) * 3 + part] >> 30 << 2 * part;
    }
    const uint32_t moved = place <= kPlace ? word << (kPlace - place) : word >> (place - kPlace);
    return detail::from_bits((moved & kMask) | 0x45000000u);
  }
};

// An encoded tile of 1,024 elements takes 1,056 bytes (Int8), 800 bytes (Int6) or 640 bytes (Int4).
using Int8 = IntegerCodec<8, 128>;
using Int6 = IntegerCodec<6, 128>;
using Int4 = IntegerCodec<4, 32>;

}  // namespace verbena::device

#endif
