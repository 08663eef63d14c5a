// Packed numbers: conversions against tables that are computed from the formats' definitions, all of them;
// sums and memory.
#include "verbena/device/packed.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"
#include "verbena/device/machine.cuh"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::E4m3;
using device::E5m2;
using device::Half;

// A format by its definition: (-1)^sign 2^(exponent - bias) (1 + mantissa / 2^bits).
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity, saturates;

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  uint32_t sign() const { return 1U << (bits() - 1); }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t largest() const { return has_infinity ? infinity() - 1 : sign() - 2; }
  uint32_t infinity() const { return ((1U << exponent_bits) - 1) << mantissa_bits; }
  bool is_nan(uint32_t pattern) const {
    const uint32_t magnitude = pattern & (sign() - 1);
    return has_infinity ? magnitude > infinity() : magnitude == sign() - 1;
  }
  double value(uint32_t pattern) const {
    const uint32_t magnitude = pattern & (sign() - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double mantissa = magnitude & ((1U << mantissa_bits) - 1);
    const double unit = std::ldexp(1.0, -mantissa_bits);
    double result = exponent == 0 ? std::ldexp(mantissa * unit, 1 - bias())
                                  : std::ldexp(1 + mantissa * unit, exponent - bias());
    if (has_infinity && magnitude == infinity()) result = std::numeric_limits<double>::infinity();
    return (pattern & sign()) != 0 ? -result : result;
  }
};
template <typename T>
Format format_of();
template <>
Format format_of<Half>() {
  return {5, 10, true, false};
}
template <>
Format format_of<Bfloat16>() {
  return {8, 7, true, false};
}
template <>
Format format_of<E4m3>() {
  return {4, 3, false, true};
}
template <>
Format format_of<E5m2>() {
  return {5, 2, true, true};
}

template <typename T>
T make(uint32_t pattern) {
  return {static_cast<decltype(T::bits)>(pattern)};
}

// The pattern nearest to the value, the even one of two, found among neighbours in the table.
template <typename T>
class Table {
 public:
  Table() {
    for (uint32_t pattern = 0; pattern <= format_.largest(); ++pattern)
      values_.push_back(format_.value(pattern));
  }
  uint32_t nearest(float given) const {
    if (std::isnan(given)) return format_.sign() - 1;
    const uint32_t sign = std::signbit(given) ? format_.sign() : 0;
    const double value = std::abs(static_cast<double>(given));
    const auto above =
        static_cast<uint32_t>(std::lower_bound(values_.begin(), values_.end(), value) - values_.begin());
    if (above == values_.size()) {
      // Halfway to where the next number would be.
      const double step = values_.back() - values_[values_.size() - 2];
      const bool is_over = value >= values_.back() + step / 2;
      return sign | (is_over && !format_.saturates ? format_.infinity() : format_.largest());
    }
    if (above == 0 || values_[above] == value) return sign | above;
    const double to_above = values_[above] - value, to_below = value - values_[above - 1];
    const bool takes_above = to_above < to_below || (to_above == to_below && above % 2 == 0);
    return sign | (takes_above ? above : above - 1);
  }
  size_t size() const { return values_.size(); }
  double operator[](size_t pattern) const { return values_[pattern]; }

 private:
  Format format_ = format_of<T>();
  std::vector<double> values_;
};

template <typename T>
class PackedTest : public testing::Test {};
using Types = testing::Types<Half, Bfloat16, E4m3, E5m2>;
TYPED_TEST_SUITE(PackedTest, Types);

TYPED_TEST(PackedTest, EveryPatternIsItsValueAndComesBack) {
  const Format format = format_of<TypeParam>();
  for (uint32_t pattern = 0; pattern < 1U << format.bits(); ++pattern) {
    const float wide = device::widen(make<TypeParam>(pattern));
    if (format.is_nan(pattern)) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
      ASSERT_EQ(device::narrow<TypeParam>(wide).bits, format.sign() - 1);
      continue;
    }
    ASSERT_EQ(wide, format.value(pattern)) << pattern;
    ASSERT_EQ(std::signbit(wide), (pattern & format.sign()) != 0) << pattern;
    // An infinity of a type that saturates becomes its largest number.
    const bool is_cut = std::isinf(wide) && format.saturates;
    ASSERT_EQ(device::narrow<TypeParam>(wide).bits, is_cut ? pattern - 1 : pattern) << pattern;
  }
}

// Halfway between two neighbours, and a float's last bit to both sides of it.
TYPED_TEST(PackedTest, RoundsToNearestEven) {
  const Table<TypeParam> table;
  const auto expect = [&](float value) {
    for (const float given : {value, -value})
      ASSERT_EQ(device::narrow<TypeParam>(given).bits, table.nearest(given)) << given;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (size_t pattern = 0; pattern < table.size(); ++pattern) {
    const double step = pattern + 1 < table.size() ? table[pattern + 1] - table[pattern]
                                                   : table[pattern] - table[pattern - 1];
    const auto halfway = static_cast<float>(table[pattern] + step / 2);
    expect(halfway);
    expect(std::nextafter(halfway, 0.0F));
    expect(std::nextafter(halfway, kInfinity));
  }
  for (const float value :
       {kInfinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::quiet_NaN(), 0.0F})
    expect(value);
  Random random(7);
  for (int i = 0; i < 200'000; ++i) {
    const auto bits = static_cast<uint32_t>(random.next());
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    ASSERT_EQ(device::narrow<TypeParam>(value).bits, table.nearest(value)) << value;
  }
}

// Sums of vectors in memory, on the emulated GPU: each number in float, in order, rounded once.
template <typename T, uint32_t kBytes>
void add_ranks() {
  constexpr uint32_t kThreads = 32, kRanks = 5, kCount = kBytes / sizeof(T);
  const Table<T> table;
  Random random(3);
  const auto any = [&] { return static_cast<float>(random.between(0, 40'000)) / 1000 - 20; };
  alignas(32) T inputs[kRanks][kThreads * kCount], output[kThreads * kCount];
  for (auto& input : inputs)
    for (T& number : input) number = make<T>(table.nearest(any()));
  emulator::run_kernel(2, 1, kThreads, [&] {
    const uint32_t at = device::thread_index() * kCount;
    device::PackedSum<T, kBytes> sum;
    sum.begin(device::load_packed<kBytes>(inputs[0] + at));
    for (uint32_t rank = 1; rank < kRanks; ++rank) sum.add(device::load_packed<kBytes>(inputs[rank] + at));
    device::store_packed(output + at, sum.round());
  });
  for (uint32_t i = 0; i < kThreads * kCount; ++i) {
    float sum = 0;
    for (const auto& input : inputs) sum += static_cast<float>(format_of<T>().value(input[i].bits));
    ASSERT_EQ(output[i].bits, table.nearest(sum)) << i;
  }
}

TYPED_TEST(PackedTest, SumsVectorsOfAnyLength) {
  add_ranks<TypeParam, 4>();
  add_ranks<TypeParam, 8>();
  add_ranks<TypeParam, 16>();
  add_ranks<TypeParam, 32>();
}

// Other types are summed in themselves.
TEST(Packed, OtherNumbers) {
  const device::Packed<double, 16> doubles =
      __builtin_bit_cast(decltype(doubles), (std::array<double, 2>{0x1p-40, 3}));
  device::PackedSum<double, 16> sum;
  sum.begin(doubles);
  sum.add(__builtin_bit_cast(device::Packed<double>, (std::array<double, 2>{1, 4})));
  EXPECT_EQ((__builtin_bit_cast(std::array<double, 2>, sum.round())),
            (std::array<double, 2>{1 + 0x1p-40, 7}));
  EXPECT_EQ(device::widen(int64_t{1} << 60), int64_t{1} << 60);
  EXPECT_EQ(device::narrow<int32_t>(-5), -5);
}

}  // namespace
}  // namespace verbena::device_test
