// What codecs may do to numbers, by their definitions in double, and tensors as models and adversaries make
// them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/support/random.h"
#include "verbena/device/collectives/codec_float8.cuh"
#include "verbena/device/collectives/codec_integer.cuh"

namespace verbena::device_test {

using device::Float8Codec;
using device::IntegerCodec;
using device::MxFloat8;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr double kLargestBfloat16 = 0x1.FEp127, kSmallestNormal = 0x1p-126;

// Rounded away from each other to numbers of 8 bits, by the definition of bfloat16.
inline double round_to_bfloat16(double value, bool is_up) {
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), -126) - 7;
  const double steps = std::ldexp(value, -exponent);
  return std::ldexp(is_up ? std::ceil(steps) : std::floor(steps), exponent);
}

inline bool is_finite(float number) {
  return std::abs(static_cast<double>(number)) <= kLargestBfloat16;
}

// What may be wrong with each number of a group, by the codecs' definitions. `slack`: 1 to nearest, 2 by
// chance.
template <typename Codec>
struct Bound;
template <uint32_t kBits, uint32_t kGroup>
struct Bound<IntegerCodec<kBits, kGroup>> {
  explicit Bound(const std::vector<float>& group) {
    double low = kInfinity, high = -kInfinity;
    bool is_special = false;
    for (const float number : group) {
      is_special |= !is_finite(number) || std::abs(number) >= 0x1p112F;
      if (!is_finite(number)) continue;
      low = std::min(low, static_cast<double>(number));
      high = std::max(high, static_cast<double>(number));
    }
    if (low > high) return;
    low = round_to_bfloat16(low, false);
    high = round_to_bfloat16(high, true);
    if (low == high && !is_special) return;
    if (low == high) low = std::min(low, 0.0), high = std::max(high, 0.0);
    step = std::max((high - low) / ((1 << kBits) - (is_special ? 4 : 1)), kSmallestNormal);
  }
  double of(float, double slack) const { return step * (0.5 * slack + 0.01); }
  double step = 0;
};
template <uint32_t kGroup>
struct Bound<Float8Codec<kGroup>> {
  explicit Bound(const std::vector<float>& group) {
    double largest = 0, last = 448;
    for (const float number : group) {
      if (is_finite(number)) {
        largest = std::max(largest, std::abs(static_cast<double>(number)));
      } else {
        last = 416;
      }
    }
    step = std::max(round_to_bfloat16(largest, true) / last, kSmallestNormal);
  }
  double of(float number, double slack) const {
    return slack * 1.0001 * std::max(std::abs(static_cast<double>(number)) / 16, step * 0x1p-10);
  }
  double step;
};
template <>
struct Bound<MxFloat8> {
  explicit Bound(const std::vector<float>& group) {
    double largest = 0;
    for (const float number : group)
      if (is_finite(number)) largest = std::max(largest, std::abs(static_cast<double>(number)));
    step = kSmallestNormal;
    while (largest > step * 448) step *= 2;
  }
  double of(float number, double slack) const {
    return slack * std::max(std::abs(static_cast<double>(number)) / 16, step * 0x1p-10);
  }
  double step;
};

struct Tensor {
  std::string name;
  std::function<float(Random&, size_t)> draw;
};
inline float draw_normal(Random& random) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += random.between(0, 1 << 24);
  return static_cast<float>(sum / (1 << 24) - 6);
}
inline std::vector<std::vector<float>> draw_addends(Random& random, int32_t ranks, size_t count) {
  std::vector<std::vector<float>> addends(static_cast<size_t>(ranks), std::vector<float>(count));
  for (auto& addend : addends)
    for (float& number : addend) number = draw_normal(random);
  return addends;
}

// All-reduces of one pair of addends that round stochastically: each is within the bounds, `check` returns
// what is wrong, and other than the one before, and their average is right.
template <typename Reduce, typename Check>
void expect_right_on_average(const Reduce& reduce, const Check& check) {
  const int launches = emulator::kSanitizer ? 20 : 60;
  Random random(4);
  const auto addends = draw_addends(random, 2, 2500);
  std::vector<double> mean(addends[0].size(), 0.0);
  std::vector<float> before;
  for (int launch = 0; launch < launches; ++launch) {
    const std::vector<float> sums = reduce(addends);
    ASSERT_EQ(check(addends, sums), "");
    ASSERT_NE(sums, before) << launch;
    before = sums;
    for (size_t i = 0; i < sums.size(); ++i) mean[i] += sums[i] / static_cast<double>(launches);
  }
  double error = 0;
  for (size_t i = 0; i < mean.size(); ++i)
    error += std::abs(mean[i] - addends[0][i] - addends[1][i]) / static_cast<double>(mean.size());
  EXPECT_LT(error, 0.5 / std::sqrt(launches));
}
// What models and adversaries make.
inline std::vector<Tensor> list_tensors() {
  return {
      {"normal", [](Random& random, size_t) { return draw_normal(random); }},
      {"heavy-tailed",
       [](Random& random, size_t) {
         return draw_normal(random) / (std::abs(draw_normal(random)) + 1e-5F);  // as Cauchy's
       }},
      {"an outlier channel",
       [](Random& random, size_t i) { return draw_normal(random) * (i % 91 == 7 ? 1000 : 1); }},
      {"constant", [](Random&, size_t i) { return static_cast<float>(i / 4096) - 0.3F; }},
      {"zero", [](Random&, size_t) { return 0.0F; }},
      {"small", [](Random& random, size_t) { return draw_normal(random) * 0x1p-122F; }},
      {"tiny", [](Random& random, size_t) { return draw_normal(random) * 0x1p-130F; }},
      {"the tiniest",
       [](Random& random, size_t) { return static_cast<float>(random.between(0, 2)) * 0x1p-149F; }},
      {"the largest",
       [](Random& random, size_t) { return random.between(0, 1) == 0 ? 0x1.FEp127F : -0x1.FEp127F; }},
      {"of every magnitude",
       [](Random& random, size_t) {
         return std::ldexp(draw_normal(random), static_cast<int>(random.between(0, 250)) - 128);
       }},
      {"far from zero", [](Random& random, size_t) { return 1000 + draw_normal(random); }},
      {"a last bit apart",
       [](Random& random, size_t i) {
         return std::nextafter(static_cast<float>(i / 128) * 3.7F,
                               random.between(0, 1) == 0 ? kInfinity : -kInfinity);
       }},
      {"one against all", [](Random&, size_t i) { return i % 32 == 5 ? 1.0F : 0.0F; }},
      {"halfway",
       [](Random&, size_t i) {
         return i % 32 == 0 ? 15.0F : i % 32 == 1 ? 0.0F : 0.5F + static_cast<float>(i % 14);
       }},
  };
}

}  // namespace verbena::device_test
