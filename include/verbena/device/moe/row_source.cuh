// Provides the contents of dispatched rows, packet by packet, and stores rows in the output. The contents are
// either the bytes of the caller's row, or its elements cast to e4m3, with one scale per 128 elements.
#ifndef VERBENA_DEVICE_MOE_ROW_SOURCE_CUH
#define VERBENA_DEVICE_MOE_ROW_SOURCE_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/message_bytes.cuh"
#include "verbena/device/moe/area.cuh"
#include "verbena/device/packed.cuh"

namespace verbena::device {

// MoeRowBytes and MoeRowCast each have a function load(). All lanes of a warp must call load() together, for
// adjacent packets: lane i loads packet 32 m + i of the row. `is_there` is false after the end of the row. If
// kHasScales is true, every lane's `scales` receives packet m of the row's scales, which belongs to these 32
// packets.
struct MoeRowBytes {
  static constexpr bool kHasScales = false;

  VERBENA_DEVICE static Packet::Data load(const char* row, uint32_t index, bool is_there, MoeScales,
                                          Packet::Data&) {
    return is_there ? load_moe<Packet::Data>(row, index) : Packet::Data{};
  }
};

// Casts elements of type T to e4m3. The value of an element is its e4m3 number times the scale. The scale is
// 1/448 of the largest magnitude of 128 elements, but at least 1e-4 / 448. If an element is NaN, its scale
// and all elements with this scale become NaN. rms_norm.cuh quantises rows in the same way (kFloat8Block,
// kFloat8BlockPower).
template <typename T>
struct MoeRowCast {
  static constexpr bool kHasScales = true;
  static constexpr uint32_t kLanes = 128 / Packet::kBytes;  // lanes that hold the elements of one scale
  static constexpr float kMinMagnitude = 1e-4F, kMaxNumber = 448;

  VERBENA_DEVICE static Packet::Data load(const char* row, uint32_t index, bool is_there, MoeScales format,
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
    if (format != MoeScales::kFloats) {
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

// The expert ids of this rank's tokens.
class MoeIds {
 public:
  VERBENA_DEVICE MoeIds(const MoeShape& shape, const MoeDispatch& call) : call_(call), experts_(shape) {}

  VERBENA_DEVICE const MoeExperts& experts() const { return experts_; }
  // Returns the k-th id of a token, or -1 if the id names no expert.
  VERBENA_DEVICE int32_t load(uint32_t token, uint32_t k) const {
    const uint64_t index = token * call_.id_stride + k;
    return experts_.check(call_.has_long_ids != 0 ? load_moe<int64_t>(call_.ids, index)
                                                  : int64_t{load_moe<int32_t>(call_.ids, index)});
  }

 private:
  const MoeDispatch& call_;
  const MoeExperts experts_;
};

// Loads the caller's rows and stores the rows of the output.
template <typename Rows>
class MoeRows {
 public:
  using Data = Packet::Data;
  static constexpr uint32_t kAtOnce = 4;  // packets of a row that a thread moves at a time

 protected:
  VERBENA_DEVICE MoeRows(const SymmWorkspace<>& workspace, const MoeShape& shape, const MoeDispatch& call)
      : area_(workspace, shape, MoeKind::kDispatch),
        shape_(shape),
        call_(call),
        layout_(call.layout),
        row_packets_(call.row_bytes / Packet::kBytes),
        scale_packets_(moe_divide_up(call.scale_bytes, Packet::kBytes)) {}

  // Loads packets of the row of one of this rank's tokens. All lanes of a warp must call it, with adjacent
  // packets.
  VERBENA_DEVICE void load_row(uint32_t token, uint32_t first, uint32_t end, Data (&data)[kAtOnce],
                               Data (&scales)[kAtOnce]) const {
    const auto* const row = static_cast<const char*>(call_.rows) + token * call_.row_stride;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t index = first + i * kWarpLanes;
      data[i] = Rows::load(row, index, index < end, call_.scale_format, scales[i]);
    }
  }
  // Loads a packet of the caller's scales.
  VERBENA_DEVICE Data load_scales(uint32_t token, uint32_t index) const {
    return find_scales(call_.scales, token, call_.scale_stride).load(index);
  }
  VERBENA_DEVICE void store_row(uint64_t row, uint32_t index, const Data& data) const {
    store_moe<Data>(static_cast<char*>(call_.output) + row * call_.row_bytes, index, data);
  }
  // Stores a packet of scales to a row of the output, whose scales begin at `output_scales`.
  VERBENA_DEVICE void store_scales(void* output_scales, uint32_t row, uint32_t index,
                                   const Data& data) const {
    if (call_.scale_format != MoeScales::kExponents && call_.column_rows == 0)
      return find_scales(output_scales, row, call_.scale_bytes).store(index, data);
    store_formed(output_scales, row, index, data);
  }
  VERBENA_DEVICE void store_scales(uint32_t row, uint32_t index, const Data& data) const {
    store_scales(call_.output_scales, row, index, data);
  }

  // copy_part() copies a row of this rank, and receive_part() receives a row. Both functions store the
  // packets `begin` to `end` - 1 of the row in one or more rows of the output. In a cast, copy_part() also
  // stores the scales. for_each_row(store) calls store(row) for each row of the output. All lanes of a warp
  // must call the functions.
  template <typename ForEachRow>
  VERBENA_DEVICE void copy_part(uint32_t token, uint32_t begin, uint32_t end,
                                const ForEachRow& for_each_row) const {
    for (uint32_t base = begin; base < end; base += kAtOnce * kWarpLanes) {
      const uint32_t first = base + lane();
      Data data[kAtOnce], scales[kAtOnce];
      load_row(token, first, end, data, scales);
      for_each_row([&](uint32_t row) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t index = first + i * kWarpLanes;
          if (index < end) store_row(row, index, data[i]);
          if (Rows::kHasScales && lane() == 0 && index < end)
            store_scales(row, index / kWarpLanes, scales[i]);
        }
      });
    }
  }
  // @tparam kIsWhole  true if for_each_row() contains warp-wide operations
  template <bool kIsWhole, typename ForEachRow>
  VERBENA_DEVICE bool receive_part(const MoePlace& from, uint32_t source, uint32_t begin, uint32_t end,
                                   const ForEachRow& for_each_row) {
    for (uint32_t base = begin; base + (kIsWhole ? 0 : lane()) < end; base += kAtOnce * kWarpLanes) {
      const uint32_t first = base + lane();
      Data data[1][kAtOnce] = {};
      const bool have_come = area_.receive({from}, {source}, 1, first, end, data);
      if (kIsWhole ? ballot(kFullWarp, !have_come) != 0 : !have_come) return false;
      for_each_row([&](uint32_t row) {
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kAtOnce; ++i)
          if (first + i * kWarpLanes < end) store_row(row, first + i * kWarpLanes, data[0][i]);
      });
    }
    return true;
  }

  MoeArea area_;
  const MoeShape& shape_;
  const MoeDispatch& call_;
  const MoeHandleLayout& layout_;
  const uint32_t row_packets_, scale_packets_;

 private:
  VERBENA_DEVICE MessageBytes<char*> find_scales(const void* base, uint64_t row, uint64_t stride) const {
    return {static_cast<char*>(const_cast<void*>(base)) + row * stride, call_.scale_bytes};
  }
  // Stores scales of a cast. If the call asks for this, stores the scales as exponents or in columns.
  VERBENA_DEVICE void store_formed(void* output_scales, uint32_t row, uint32_t index,
                                   const Data& data) const {
    uint32_t words[4] = {data.x, data.y, data.z, data.w};
    const uint32_t scales = call_.scale_bytes / 4;
    uint32_t first = 4 * index, end = scales - first < 4 ? scales : first + 4;
    if (call_.scale_format == MoeScales::kExponents) {
      uint32_t exponents = 0;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        if (first + i < end) exponents |= (words[i] >> 23 & 0xff) << (8 * i);
      words[0] = exponents;
      first = index;
      end = index + 1;
    }
    const uint32_t count = call_.output_scale_bytes / 4;
    uint64_t at = uint64_t{row} * count + first;
    uint32_t step = 1;
    if (call_.column_rows != 0) {
      const uint32_t group = row / call_.column_rows;
      step = call_.column_rows;
      at = (uint64_t{group} * count + first) * step + (row - group * step);
    }
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      if (first + i < end) store_moe<uint32_t>(output_scales, at + uint64_t{i} * step, words[i]);
  }
};

}  // namespace verbena::device

#endif
