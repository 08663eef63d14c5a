// The contents of dispatched rows, packet by packet: the bytes of the caller's row, or its elements cast to
// e4m3 with a scale for each 128 of them.
#ifndef VERBENA_DEVICE_MOE_ROW_SOURCE_CUH
#define VERBENA_DEVICE_MOE_ROW_SOURCE_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/moe/area.cuh"
#include "verbena/device/packed.cuh"

namespace verbena::device {

// Both classes have load(), which all lanes of a warp call together with adjacent packets: lane i's packet is
// number 32 m + i of the row. `is_there` is false after the row's end. If kHasScales, `scales` of each lane
// receives the packet of scales of these 32 packets, number m.
struct MoeRowBytes {
  static constexpr bool kHasScales = false;

  VERBENA_DEVICE static Packet::Data load(const char* row, uint32_t index, bool is_there, uint32_t,
                                          Packet::Data&) {
    return is_there ? load_moe<Packet::Data>(row, index) : Packet::Data{};
  }
};

// element = byte * scale, scale = the largest magnitude of 128 elements / 448, at least 1e-4 / 448. A NaN
// makes its scale and all elements of the scale NaN. Same as the rows that rms_norm.cuh quantises
// (kFloat8Block, kFloat8BlockPower).
template <typename T>
struct MoeRowCast {
  static constexpr bool kHasScales = true;
  static constexpr uint32_t kLanes = 128 / Packet::kBytes;  // that have the elements of a scale
  static constexpr float kMinMagnitude = 1e-4F, kMaxNumber = 448;

  VERBENA_DEVICE static Packet::Data load(const char* row, uint32_t index, bool is_there, uint32_t has_powers,
                                          Packet::Data& scales) {
    PackedSum<T> numbers[2];
    float largest = kMinMagnitude;
    VERBENA_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const Packet::Data data =
          is_there ? load_moe<Packet::Data>(row, 2 * uint64_t{index} + half) : Packet::Data{};
      numbers[half].begin(__builtin_bit_cast(Packed<T>, data));
      VERBENA_UNROLL
      for (uint32_t i = 0; i < PackedSum<T>::kCount; ++i)
        largest = detail::choose_larger(
            largest, detail::from_bits(detail::to_bits(numbers[half].sums[i]) & 0x7fffffffU));
    }
    VERBENA_UNROLL
    for (uint32_t step = 1; step < kLanes; step *= 2)
      largest = detail::choose_larger(largest, shuffle_float(largest, lane() ^ step));
    float scale = detail::divide(largest, kMaxNumber);
    float inverse = 0;
    if (has_powers != 0) {
      const uint32_t exponent = detail::round_up_to_power(scale);
      scale = detail::from_bits(exponent == 255 ? 0x7fffffffU : exponent << 23);
      inverse = detail::invert_exponent(exponent);
    } else {
      inverse = detail::divide(1, scale);
    }
    uint32_t words[4];
    VERBENA_UNROLL
    for (uint32_t word = 0; word < 4; ++word) {
      float scaled[4];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        scaled[i] = detail::multiply(numbers[word / 2].sums[word % 2 * 4 + i], inverse);
      words[word] = Element<E4m3>::narrow(scaled);
    }
    scales = {detail::to_bits(shuffle_float(scale, 0)), detail::to_bits(shuffle_float(scale, kLanes)),
              detail::to_bits(shuffle_float(scale, 2 * kLanes)),
              detail::to_bits(shuffle_float(scale, 3 * kLanes))};
    return {words[0], words[1], words[2], words[3]};
  }

 private:
  VERBENA_DEVICE static float shuffle_float(float value, uint32_t from) {
    return detail::from_bits(shuffle(kFullWarp, detail::to_bits(value), static_cast<int>(from)));
  }
};

}  // namespace verbena::device

#endif
