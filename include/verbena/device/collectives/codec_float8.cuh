// Codecs that send elements as e4m3 (an 8-bit float), with a scale for each group. The scale determines a
// number that is called the group's step. The decoded value of an element is its e4m3 value times the step.
// The error is at most max(|element| / 16, step * 2^-10). NaN stays NaN.
//
// In Float8, the scale is the group's largest magnitude, rounded up to bfloat16. An element with this
// magnitude is encoded as the largest e4m3 value. If some elements of the group are not finite, the sign bit
// of the scale is set. In this case the largest e4m3 value stands for infinity, and finite elements use the
// other values. In MxFloat8, the scale has OCP's e8m0 format. The scale is the smallest power of two that is
// not below the group's largest magnitude / 448. In MxFloat8, an infinity becomes NaN.
#ifndef VERBENA_DEVICE_COLLECTIVES_CODEC_FLOAT8_CUH
#define VERBENA_DEVICE_COLLECTIVES_CODEC_FLOAT8_CUH

#include "verbena/device/collectives/codec.cuh"

namespace verbena::device {

namespace detail {

inline constexpr float kLargestE4m3 = 448, kNextToLargestE4m3 = 416;

// Rounds to an e4m3 value, up or down at random. Does not change magnitudes above the largest e4m3 value.
VERBENA_DEVICE float round_to_e4m3(float number, uint32_t draw) {
  const uint32_t bits = to_bits(number), magnitude = bits & 0x7fffffffu;
  uint32_t result = (magnitude + (draw << 12) + (1u << 11)) & ~((1u << 20) - 1);
  // Subnormal e4m3 values are 2^-9 apart.
  if (magnitude < to_bits(0x1p-6F)) {
    const float steps = add(multiply(from_bits(magnitude), 512), (static_cast<float>(draw) + 0.5F) / 256);
    result = to_bits(static_cast<float>(static_cast<uint32_t>(steps)) / 512);
  }
  return magnitude > to_bits(kLargestE4m3) ? number : from_bits(result | (bits & 0x80000000u));
}

// Encodes a unit. `inverse` is 1 / step.
template <typename Rounding>
VERBENA_DEVICE void encode_e4m3(const float* unit, float inverse, uint32_t row, const Rounding& rounding,
                                uint32_t* payload) {
  VERBENA_UNROLL
  for (uint32_t word = 0; word < kUnitElements / 4; ++word) {
    float scaled[4];
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      scaled[i] = multiply(unit[4 * word + i], inverse);
      if constexpr (Rounding::kIsStochastic)
        scaled[i] = round_to_e4m3(scaled[i], rounding.draw(row, 4 * word + i));
    }
    payload[word] = Element<E4m3>::narrow(scaled);
  }
}
VERBENA_DEVICE void decode_e4m3(const uint32_t* payload, float* unit) {
  VERBENA_UNROLL
  for (uint32_t word = 0; word < kUnitElements / 4; ++word)
    Element<E4m3>::widen(payload[word], unit + 4 * word);
}

// Returns the largest magnitude of the elements of a unit, as a bfloat16.
template <bool kOfFinite>
VERBENA_DEVICE uint32_t find_magnitude_of_unit(const float* unit) {
  float largest = 0;
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kUnitElements; ++i) {
    const float magnitude = from_bits(to_bits(unit[i]) & 0x7fffffffu);
    if (!kOfFinite || is_finite(magnitude)) largest = choose_larger(largest, magnitude);
  }
  return round_up_to_bfloat16(largest);
}
inline constexpr uint32_t kInfiniteMagnitude = 0x7f80;  // as the bits of a bfloat16; larger bit patterns are
                                                        // NaN

// Finds the largest magnitude of this lane's group in each row. Each word of `pairs` contains the magnitudes
// of two rows.
// @return whether all elements are finite
template <uint32_t kLanes>
VERBENA_DEVICE bool find_magnitudes(const TileElements& numbers, uint32_t (&pairs)[kTileRows / 2]) {
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kTileRows / 2; ++i)
    pairs[i] = find_magnitude_of_unit<false>(numbers.of[2 * i]) |
               find_magnitude_of_unit<false>(numbers.of[2 * i + 1]) << 16;
  find_largest_pairs<kLanes>(pairs);
  bool are_finite = true;
  VERBENA_UNROLL
  for (uint32_t i = 0; i < kTileRows / 2; ++i)
    are_finite =
        are_finite & ((pairs[i] & 0xffff) < kInfiniteMagnitude) & (pairs[i] >> 16 < kInfiniteMagnitude);
  return ballot(kFullWarp, !are_finite) == 0;
}
template <uint32_t kLanes, bool kOfFinite>
VERBENA_DEVICE uint32_t find_finite_magnitude(const float* unit) {
  uint32_t pair[1] = {find_magnitude_of_unit<kOfFinite>(unit)};
  find_largest_pairs<kLanes>(pair);
  return pair[0];
}
// Returns the largest finite magnitude of a group, as a bfloat16. The sign bit of the result is set if some
// elements are not finite.
template <uint32_t kLanes>
VERBENA_DEVICE uint32_t find_magnitude(const float* unit) {
  const uint32_t magnitude = find_finite_magnitude<kLanes, false>(unit);
  const bool is_special = magnitude >= kInfiniteMagnitude;
  if (ballot(kFullWarp, is_special) == 0) return magnitude;
  return find_finite_magnitude<kLanes, true>(unit) | (is_special ? 0x8000 : 0);
}

}  // namespace detail

template <uint32_t kGroup_>
class Float8Codec {
 public:
  static constexpr uint32_t kBits = 8, kGroup = kGroup_, kScaleWords = kTileRows / 2;

  struct Coded {
    uint32_t payload[kBits];
    uint32_t scales[kScaleWords];  // scales of the rows, two per word
  };

  template <typename Rounding>
  VERBENA_DEVICE static Coded encode(const TileElements& numbers, const Rounding& rounding) {
    Coded coded;
    if (!detail::find_magnitudes<kGroup / kUnitElements>(numbers, coded.scales)) {
      // Passes copies to encode_rows(), because compilers keep a variable in memory if its address is passed.
      const TileElements copy = numbers;
      const Rounding own = rounding;
      Coded special;
      encode_rows(copy, own, special);
      return special;
    }
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const float step = find_step(coded.scales[row / 2] >> row % 2 * 16);
      detail::encode_e4m3(numbers.of[row], detail::divide_nearly(1, step), row, rounding,
                          coded.payload + 2 * row);
    }
    return coded;
  }
  VERBENA_DEVICE static void decode_row(const Coded& coded, uint32_t row, float* unit) {
    const uint32_t scale = coded.scales[row / 2] >> row % 2 * 16 & 0xffff;
    const float step = find_step(scale);
    detail::decode_e4m3(coded.payload + 2 * row, unit);
    if ((scale & 0x8000) != 0) {
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        if (unit[i] == detail::kLargestE4m3 || unit[i] == -detail::kLargestE4m3)
          unit[i] = detail::make_infinity(unit[i] < 0);
      }
    }
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i) unit[i] = detail::multiply(unit[i], step);
  }

 private:
  // Encodes tiles with elements that are not finite.
  template <typename Rounding>
  VERBENA_DEVICE_FAR static void encode_rows(const TileElements& numbers, const Rounding& rounding,
                                             Coded& coded) {
    coded = {};
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const uint32_t scale = detail::find_magnitude<kGroup / kUnitElements>(numbers.of[row]);
      coded.scales[row / 2] |= scale << row % 2 * 16;
      detail::encode_e4m3(numbers.of[row], detail::divide(1, find_step(scale)), row, rounding,
                          coded.payload + 2 * row);
    }
  }

  // Returns the step of a group, which is the decoded value of the e4m3 number 1. The step is large enough
  // that its inverse is finite.
  VERBENA_DEVICE static float find_step(uint32_t scale) {
    const float largest = detail::from_bits((scale & 0x7fff) << 16);
    const float inverse_of_last =
        (scale & 0x8000) != 0 ? 1 / detail::kNextToLargestE4m3 : 1 / detail::kLargestE4m3;
    const float step = detail::multiply(largest, inverse_of_last);
    return step < detail::kSmallestNormal ? detail::kSmallestNormal : step;
  }
};

class MxFloat8 {
 public:
  static constexpr uint32_t kBits = 8, kGroup = 32, kScaleWords = 1;

  struct Coded {
    uint32_t payload[kBits];
    uint32_t scales[kScaleWords];  // scales of the rows, one byte each
  };

  template <typename Rounding>
  VERBENA_DEVICE static Coded encode(const TileElements& numbers, const Rounding& rounding) {
    Coded coded;
    uint32_t magnitudes[kTileRows / 2];
    if (!detail::find_magnitudes<kGroup / kUnitElements>(numbers, magnitudes)) {
      // Passes copies to encode_rows(), because compilers keep a variable in memory if its address is passed.
      const TileElements copy = numbers;
      const Rounding own = rounding;
      Coded special;
      encode_rows(copy, own, special);
      return special;
    }
    coded.scales[0] = 0;
    VERBENA_UNROLL
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const uint32_t magnitude = magnitudes[row / 2] >> row % 2 * 16 & 0x7fff;
      const uint32_t scale = detail::choose_exponent(detail::from_bits(magnitude << 16));
      coded.scales[0] |= scale << 8 * row;
      detail::encode_e4m3(numbers.of[row], detail::invert_exponent(scale), row, rounding,
                          coded.payload + 2 * row);
    }
    return coded;
  }

  VERBENA_DEVICE static void decode_row(const Coded& coded, uint32_t row, float* unit) {
    const float step = detail::from_bits((coded.scales[0] >> 8 * row & 0xff) << 23);
    detail::decode_e4m3(coded.payload + 2 * row, unit);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kUnitElements; ++i) unit[i] = detail::multiply(unit[i], step);
  }

 private:
  // Encodes tiles with elements that are not finite.
  template <typename Rounding>
  VERBENA_DEVICE_FAR static void encode_rows(const TileElements& numbers, const Rounding& rounding,
                                             Coded& coded) {
    coded = {};
    for (uint32_t row = 0; row < kTileRows; ++row) {
      const uint32_t magnitude = detail::find_magnitude<kGroup / kUnitElements>(numbers.of[row]);
      const uint32_t scale = detail::choose_exponent(detail::from_bits((magnitude & 0x7fff) << 16));
      coded.scales[0] |= scale << 8 * row;
      float unit[kUnitElements];
      for (uint32_t i = 0; i < kUnitElements; ++i) {
        unit[i] = numbers.of[row][i];
        // Without this special case, an infinity would become the largest e4m3 value.
        if ((magnitude & 0x8000) != 0 && !detail::is_finite(unit[i])) unit[i] = detail::from_bits(0x7fffffff);
      }
      detail::encode_e4m3(unit, detail::invert_exponent(scale), row, rounding, coded.payload + 2 * row);
    }
  }
};

// An encoded tile of 1,024 elements takes 1,056 bytes.
using Float8 = Float8Codec<64>;

}  // namespace verbena::device

#endif
