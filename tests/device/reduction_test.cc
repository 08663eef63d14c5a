// What becomes of numbers that are none: a NaN of any rank is in the result, whatever the reduction.
#include "verbena/device/reduction.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "verbena/device/packed.cuh"

namespace verbena::device_test {
namespace {

using device::DataType;
using device::Reduction;

constexpr int kAddends = 4;

template <typename T>
constexpr DataType kType = DataType::kFloat32;
template <>
constexpr DataType kType<device::Half> = DataType::kFloat16;
template <>
constexpr DataType kType<device::Bfloat16> = DataType::kBfloat16;
template <>
constexpr DataType kType<device::E4m3> = DataType::kE4m3;

// Of 16 bytes of each rank, all the same number but for rank `which`'s first one.
template <typename T>
float reduce(Reduction reduction, int which, float other) {
  device::Vector16 addends[kAddends];
  for (int rank = 0; rank < kAddends; ++rank) {
    T numbers[16 / sizeof(T)];
    for (T& number : numbers) number = device::narrow<T>(static_cast<float>(rank + 1));
    if (rank == which) numbers[0] = device::narrow<T>(other);
    std::memcpy(&addends[rank], numbers, sizeof(numbers));
  }
  const device::ReduceAny reduce{kType<T>, reduction};
  typename device::ReduceAny::Sums<device::Vector16> sums;
  reduce.add(sums, addends, 0, kAddends);
  const device::Vector16 result = reduce.finish<device::Vector16>(sums, kAddends);
  T first;
  std::memcpy(&first, &result, sizeof(first));
  return device::widen(first);
}

template <typename T>
class ReductionTest : public testing::Test {};
using Types = testing::Types<float, device::Half, device::Bfloat16, device::E4m3>;
TYPED_TEST_SUITE(ReductionTest, Types);

TYPED_TEST(ReductionTest, ANanOfAnyRankIsInTheResult) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax}) {
    for (int which = 0; which < kAddends; ++which) {
      const float result = reduce<TypeParam>(reduction, which, std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(std::isnan(result)) << "reduction " << static_cast<int>(reduction) << ", rank " << which;
    }
  }
}

TYPED_TEST(ReductionTest, NumbersWithoutANan) {
  EXPECT_EQ(reduce<TypeParam>(Reduction::kSum, 0, 2), 11);
  EXPECT_EQ(reduce<TypeParam>(Reduction::kMean, 0, 3), 3);
  EXPECT_EQ(reduce<TypeParam>(Reduction::kMin, 2, -8), -8);
  EXPECT_EQ(reduce<TypeParam>(Reduction::kMax, 1, 16), 16);
}

}  // namespace
}  // namespace verbena::device_test
