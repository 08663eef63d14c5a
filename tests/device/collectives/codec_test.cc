// Codecs on an emulated warp, against their definitions in double: every number inside its bound whatever the
// tensor, what is not finite carried, tails and alignments, rounding by chance, and the errors of a whole
// all-reduce that docs/quantisation.md promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "device/collectives/codec_bounds.h"
#include "device/emulator/sanitizer.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::CodedTiles;
using device::Half;
using device::kRowElements;
using device::kTileElements;
using device::kTileRows;
using device::kUnitElements;
using device::RoundStochastically;
using device::RoundToNearest;

// Through a codec and back, in the memory of one message. `offset` moves both tensors from a multiple of 16.
template <typename Codec, typename T, typename Rounding = RoundToNearest>
std::vector<T> code(const std::vector<T>& numbers, uint64_t offset = 0, const Rounding& rounding = {}) {
  constexpr T kUntouched{};
  const uint64_t count = numbers.size(), tiles = (count + kTileElements - 1) / kTileElements;
  struct alignas(16) Vector {
    char bytes[16];
  };
  std::vector<Vector> memory(tiles * CodedTiles<Codec>::kBytes / 16 + 1, Vector{{}}),
      input((count + offset) * sizeof(T) / 16 + 1), output((count + offset) * sizeof(T) / 16 + 3);
  auto* const from = reinterpret_cast<T*>(input.data()) + offset;
  auto* const to = reinterpret_cast<T*>(output.data()) + offset;
  std::memcpy(static_cast<void*>(from), numbers.data(), count * sizeof(T));
  to[count] = kUntouched;
  std::memset(memory.back().bytes, 0x5a, 16);
  emulator::run_kernel(count, 1, 32, [&] {
    const CodedTiles<Codec> message(memory.front().bytes, tiles);
    const auto is_whole = [&](uint64_t first) { return offset == 0 && first + kRowElements <= count; };
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      device::TileElements of_tile;
      for (uint32_t row = 0; row < kTileRows; ++row) {
        const uint64_t first = tile * kTileElements + row * kRowElements;
        device::PackedSum<T, kUnitElements * sizeof(T)> unit{};
        unit.begin(device::load_unit(from, first, count, is_whole(first)));
        std::copy_n(unit.sums, kUnitElements, of_tile.of[row]);
      }
      message.store(tile, Codec::encode(of_tile, rounding.in_tile(tile)));
    }
    device::sync_warp();
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      const auto coded = message.load(tile);
      for (uint32_t row = 0; row < kTileRows; ++row) {
        const uint64_t first = tile * kTileElements + row * kRowElements;
        device::PackedSum<T, kUnitElements * sizeof(T)> unit{};
        Codec::decode_row(coded, row, unit.sums);
        device::store_unit(to, first, count, is_whole(first), unit.round());
      }
    }
  });
  for (const char byte : memory.back().bytes) EXPECT_EQ(byte, 0x5a) << "behind the message";
  EXPECT_EQ(std::memcmp(to + count, &kUntouched, sizeof(T)), 0) << "behind the tensor";
  return {to, to + count};
}

// "" or the first number outside. The bound is of what comes out before it is rounded to T; `last_bit` is
// half of T's.
template <typename Codec>
std::string check_bounds(const std::vector<float>& given, const std::vector<float>& got, double slack = 1,
                         double last_bit = 0) {
  for (size_t first = 0; first < given.size(); first += Codec::kGroup) {
    const size_t end = std::min(given.size(), first + Codec::kGroup);
    const Bound<Codec> bound(std::vector<float>(given.begin() + static_cast<ptrdiff_t>(first),
                                                given.begin() + static_cast<ptrdiff_t>(end)));
    for (size_t i = first; i < end; ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - given[i]);
      const double allowed = bound.of(given[i], slack) + last_bit * std::abs(static_cast<double>(given[i]));
      const bool is_nan = std::isnan(given[i]) || (std::is_same_v<Codec, MxFloat8> && !is_finite(given[i]));
      // Rounded beyond the last float.
      const bool may_be_infinite =
          std::abs(static_cast<double>(given[i])) + allowed >= 0x1p128 || !is_finite(given[i]);
      if (is_finite(given[i]) && error <= allowed) continue;
      if (may_be_infinite && (is_nan ? std::isnan(got[i]) : got[i] == std::copysign(kInfinity, given[i])))
        continue;
      char text[160];
      std::snprintf(text, sizeof text, "number %zu: %.9g became %.9g, allowed is %.9g", i, given[i], got[i],
                    allowed);
      return text;
    }
  }
  return "";
}

template <typename Codec>
class CodecTest : public testing::Test {};
using Codecs =
    testing::Types<IntegerCodec<8, 128>, IntegerCodec<6, 128>, IntegerCodec<4, 32>, IntegerCodec<8, 32>,
                   IntegerCodec<6, 64>, Float8Codec<32>, Float8Codec<64>, Float8Codec<128>, MxFloat8>;
TYPED_TEST_SUITE(CodecTest, Codecs);

TYPED_TEST(CodecTest, EveryNumberStaysInsideItsBound) {
  Random random(1);
  for (const Tensor& tensor : list_tensors()) {
    std::vector<float> numbers(emulator::kSanitizer ? 2048 : 16384);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = tensor.draw(random, i);
    EXPECT_EQ(check_bounds<TypeParam>(numbers, code<TypeParam>(numbers)), "") << tensor.name;
  }
}

// In the types of tensors, which round once more.
TYPED_TEST(CodecTest, ReadsAndWritesHalvesAndBfloat16) {
  const auto run = [](auto type, double last_bit) {
    using T = decltype(type);
    Random random(2);
    std::vector<T> numbers(kTileElements * 3 / 2);
    std::vector<float> given, got;
    for (T& number : numbers) {
      number = device::narrow<T>(draw_normal(random) * 8);
      given.push_back(device::widen(number));
    }
    for (const T number : code<TypeParam>(numbers)) got.push_back(device::widen(number));
    EXPECT_EQ(check_bounds<TypeParam>(given, got, 1, last_bit), "") << sizeof(T);
  };
  run(Half{}, 0x1.1p-11);
  run(Bfloat16{}, 0x1.1p-8);
}

// The rest of a group of infinities and NaN is as good as a few codes less allow.
TYPED_TEST(CodecTest, CarriesWhatIsNotFinite) {
  const float kinds[] = {kInfinity, -kInfinity, std::nanf(""), 3.4e38F, -3.4e38F};
  Random random(3);
  std::vector<float> numbers(8 * kTileElements);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = draw_normal(random);
    if (i % 256 == i / 256 % 256) numbers[i] = kinds[i / 256 % 5];
    if (i / kTileElements == 3) numbers[i] = kinds[random.between(0, 2)];          // nothing else
    if (i / kTileElements == 4) numbers[i] = i % 32 == 9 ? kinds[i / 32 % 3] : 5;  // among equal ones
    if (i / kTileElements == 5) numbers[i] = i % 32 == 9 ? kinds[i / 32 % 3] : 0;
    if (i / kTileElements == 6 && i % 32 != 3) numbers[i] = -7;
  }
  EXPECT_EQ(check_bounds<TypeParam>(numbers, code<TypeParam>(numbers)), "");
}

// A tail is coded as if the tensor went on with its last number, and nothing behind it is written.
TYPED_TEST(CodecTest, EveryLengthAndAlignment) {
  Random random(4);
  std::vector<float> numbers(kTileElements + 300);
  for (float& number : numbers) number = 100 + draw_normal(random);
  const auto step = static_cast<size_t>(emulator::kSanitizer ? 131 : 7);
  for (size_t count = 1; count <= numbers.size(); count += count < 40 ? 1 : step) {
    const std::vector<float> part(numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(count));
    const std::vector<float> aligned = code<TypeParam>(part), moved = code<TypeParam>(part, 1 + count % 3);
    ASSERT_EQ(check_bounds<TypeParam>(part, aligned), "") << count;
    ASSERT_EQ(aligned, moved) << count;
  }
}

// By chance a number goes up or down; on average it is right, also in the middle of a step.
TYPED_TEST(CodecTest, RoundsByChance) {
  const int turns = emulator::kSanitizer ? 20 : 400;
  Random random(5);
  std::vector<float> numbers(kTileElements);
  for (float& number : numbers) number = draw_normal(random);
  std::vector<double> mean(numbers.size(), 0.0);
  std::vector<float> first;
  for (int turn = 0; turn < turns; ++turn) {
    const std::vector<float> got =
        code<TypeParam>(numbers, 0, RoundStochastically(static_cast<uint64_t>(turn)));
    ASSERT_EQ(check_bounds<TypeParam>(numbers, got, 2), "") << turn;
    if (turn == 0) first = got;
    for (size_t i = 0; i < got.size(); ++i) mean[i] += got[i] / static_cast<double>(turns);
  }
  EXPECT_EQ(first, code<TypeParam>(numbers, 0, RoundStochastically(0))) << "the same seed";
  EXPECT_NE(first, code<TypeParam>(numbers, 0, RoundStochastically(1)));
  // Of `turns` drawings the mean is wrong by a step over twice their root on average; nearest would be by a
  // quarter.
  double error = 0, steps = 0, bias = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t begin = i / TypeParam::kGroup * TypeParam::kGroup;
    const Bound<TypeParam> bound(
        std::vector<float>(numbers.begin() + static_cast<ptrdiff_t>(begin),
                           numbers.begin() + static_cast<ptrdiff_t>(begin + TypeParam::kGroup)));
    error += std::abs(mean[i] - numbers[i]);
    bias += mean[i] - numbers[i];
    steps += bound.of(numbers[i], 2);
  }
  EXPECT_LT(error, steps / std::sqrt(turns));
  EXPECT_LT(std::abs(bias), 4 * steps / std::sqrt(turns * static_cast<double>(numbers.size())));
}

template <typename Codec>
class IntegerCodecTest : public testing::Test {};
using IntegerCodecs = testing::Types<IntegerCodec<8, 128>, IntegerCodec<6, 128>, IntegerCodec<4, 32>>;
TYPED_TEST_SUITE(IntegerCodecTest, IntegerCodecs);

// Each group is one pattern of bfloat16, every finite one.
TYPED_TEST(IntegerCodecTest, EqualNumbersComeBackAsTheyWere) {
  std::vector<Bfloat16> numbers;
  for (uint32_t pattern = 0; pattern < 1 << 16; pattern += emulator::kSanitizer ? 97 : 1) {
    if ((pattern & 0x7f80) != 0x7f80 && pattern != 0x8000)
      numbers.insert(numbers.end(), TypeParam::kGroup, Bfloat16{static_cast<uint16_t>(pattern)});
  }
  const std::vector<Bfloat16> got = code<TypeParam>(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(got[i].bits, numbers[i].bits) << i;
}

// The order of codes is part of the format: a number's bits lie where its index says, the first in the
// lowest.
TEST(IntegerCodec, PacksInOrder) {
  emulator::run_kernel(0, 1, 32, [] {
    constexpr uint32_t kCount = kUnitElements * kTileRows;
    float numbers[kCount];
    const auto encode = [&](auto codec) {
      device::TileElements tile;
      std::copy_n(numbers, kCount, tile.of[0]);
      return decltype(codec)::encode(tile, RoundToNearest{});
    };
    for (uint32_t i = 0; i < kCount; ++i)
      numbers[i] = static_cast<float>(i % 8 == 0 ? 0 : i % 8 == 7 ? 15 : i % 8 + i / 8);
    const auto four = encode(IntegerCodec<4, 32>{});
    for (uint32_t i = 0; i < kCount; ++i)
      emulator::require((four.payload[i / 8] >> i % 8 * 4 & 15) == static_cast<uint32_t>(numbers[i]),
                        "4 bits");
    for (const uint32_t scale : four.scales) emulator::require(scale == 0x41700000, "from 0 to 15");
    for (uint32_t i = 0; i < kCount; ++i)
      numbers[i] = static_cast<float>(i % 8 == 0 ? 0 : i % 8 == 7 ? 63 : i * 7 % 64);
    const auto six = encode(IntegerCodec<6, 32>{});
    for (uint32_t i = 0; i < 30; ++i)
      emulator::require((six.payload[i / 5] >> i % 5 * 6 & 63) == static_cast<uint32_t>(numbers[i]),
                        "6 bits");
    for (uint32_t i = 30; i < kCount; ++i) {
      const uint32_t* const words = six.payload + (i - 30) * 3;
      emulator::require(
          (words[0] >> 30 | words[1] >> 30 << 2 | words[2] >> 30 << 4) == static_cast<uint32_t>(numbers[i]),
          "6 bits in three words");
    }
  });
}

}  // namespace
}  // namespace verbena::device_test
