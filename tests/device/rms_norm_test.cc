// RMSNorm of rows on an emulated block, against its definition in double: every option, row lengths that
// registers hold and longer ones, any alignment; the same bits in every way to compute a row; nothing written
// beside it.
#include "verbena/device/rms_norm.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;
using device::RmsNorm;
using device::RowQuantisation;

constexpr uint8_t kUntouched = 0x5a;

// Bytes that begin `offset` behind a multiple of 16, between margins.
class Bytes {
 public:
  explicit Bytes(uint64_t length_bytes, uint64_t offset = 0)
      : vectors_(length_bytes / 16 + 10), length_bytes_(length_bytes), offset_(64 + offset) {
    std::memset(static_cast<void*>(vectors_.data()), kUntouched, vectors_.size() * 16);
  }
  template <typename T = uint8_t>
  T* at(uint64_t index = 0) {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(vectors_.data()) + offset_) + index;
  }
  bool has_margins() {
    const auto* const all = reinterpret_cast<const uint8_t*>(vectors_.data());
    for (uint64_t i = 0; i < vectors_.size() * 16; ++i)
      if ((i < offset_ || i >= offset_ + length_bytes_) && all[i] != kUntouched) return false;
    return true;
  }

 private:
  struct alignas(16) Vector {
    uint8_t bytes[16];
  };
  std::vector<Vector> vectors_;
  uint64_t length_bytes_, offset_;
};

struct Case {
  uint64_t rows, hidden;
  uint32_t threads = 64;
  uint64_t gap = 0;     // numbers between rows
  uint64_t offset = 0;  // numbers from a multiple of 16 bytes
  RowQuantisation kind = RowQuantisation::kNone;
  bool has_residual = true, is_in_place = false, has_output = true, has_weight = true;
  bool rounds_sum = false, rounds_normed = false;
  float weight_offset = 0;
  uint64_t padding = 0;
  float magnitude = 1;
  uint64_t seed = 1;
};

// Scales as the consumers want them, one for each block of a row; and what lies between them.
struct ScaleSpace {
  uint64_t row_stride = 1, block_stride = 1, bytes = 0, unit = 4;
};
uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}
ScaleSpace find_scale_space(const Case& c) {
  const uint64_t blocks = (c.hidden + 127) / 128, small_blocks = (c.hidden + 31) / 32;
  switch (c.kind) {
    case RowQuantisation::kFloat8Tensor:
      return {0, 0, 4};
    case RowQuantisation::kFloat8Token:
    case RowQuantisation::kInt8Token:
      return {1, 1, 4 * c.rows};
    case RowQuantisation::kFloat8Block:
    case RowQuantisation::kFloat8BlockPower:
      // Row by row, or column by column with columns of a multiple of 4.
      if (c.seed % 2 == 0) return {blocks, 1, 4 * blocks * c.rows};
      return {1, round_up(c.rows, 4), 4 * ((blocks - 1) * round_up(c.rows, 4) + c.rows)};
    case RowQuantisation::kFloat8BlockExponent:
      return {1, round_up(c.rows, 4), 4 * ((round_up(blocks, 4) / 4 - 1) * round_up(c.rows, 4) + c.rows)};
    case RowQuantisation::kMxFloat8:
      return {small_blocks, 1, small_blocks * c.rows, 1};
    case RowQuantisation::kMxFloat8Swizzled:
      return {0, 0, round_up(c.rows, 128) * round_up(small_blocks, 4), 1};
    default:
      return {1, 1, 0};
  }
}

template <typename T>
struct Tensors {
  explicit Tensors(const Case& given)
      : c(given),
        step(given.hidden + given.padding + given.gap),
        x(bytes(), offset()),
        residual(bytes(), offset()),
        weight(given.hidden * sizeof(T), offset()),
        residual_out(bytes(), offset()),
        output(bytes(), offset()),
        numbers(given.rows * step, given.offset),
        scales(find_scale_space(given).bytes, 0) {
    Random random(given.seed);
    const auto draw = [&](Bytes& to, uint64_t count, float magnitude) {
      for (uint64_t i = 0; i < count; ++i)
        *to.at<T>(i) =
            device::narrow<T>((static_cast<float>(random.between(0, 4000)) / 1000 - 2) * magnitude);
    };
    draw(x, given.rows * step, given.magnitude);
    draw(residual, given.rows * step, given.magnitude);
    draw(weight, given.hidden, 1);
    if (given.kind == RowQuantisation::kFloat8Tensor) *scales.template at<float>() = 0.013F;
  }
  uint64_t bytes() const { return c.rows * step * sizeof(T); }
  uint64_t offset() const { return c.offset * sizeof(T); }

  RmsNorm<T> describe() {
    RmsNorm<T> norm{};
    norm.rows = c.rows;
    norm.hidden = c.hidden;
    norm.weight = c.has_weight ? weight.template at<T>() : nullptr;
    norm.epsilon = 1e-5F;
    norm.weight_offset = c.weight_offset;
    norm.rounds_sum = c.rounds_sum;
    norm.rounds_normed = c.rounds_normed;
    norm.residual_in = c.has_residual ? residual.template at<T>() : nullptr;
    norm.residual_out = c.is_in_place ? residual.template at<T>() : residual_out.template at<T>();
    norm.output = c.has_output ? output.template at<T>() : nullptr;
    norm.residual_in_stride = norm.residual_out_stride = norm.output_stride = step;
    norm.padding = c.padding;
    norm.quantised.kind = c.kind;
    norm.quantised.elements = numbers.at();
    norm.quantised.row_bytes = step;
    norm.quantised.scales = scales.at();
    const ScaleSpace space = find_scale_space(c);
    norm.quantised.scale_row_stride = space.row_stride;
    norm.quantised.scale_block_stride = space.block_stride;
    return norm;
  }

  Case c;
  uint64_t step;
  Bytes x, residual, weight, residual_out, output, numbers, scales;
};

template <uint32_t kKept, typename T>
void run(Tensors<T>& tensors, uint32_t blocks = 1) {
  const RmsNorm<T> norm = tensors.describe();
  emulator::run_kernel(tensors.c.seed, blocks, tensors.c.threads, [&] {
    device::norm_rows<kKept>(norm, tensors.x.template at<T>(), tensors.step, device::block_index(), norm.rows,
                             blocks);
  });
}

template <typename T>
constexpr double kHalfUnit = 0;  // half of the last bit, of 1
template <>
constexpr double kHalfUnit<Half> = 0x1p-11;
template <>
constexpr double kHalfUnit<Bfloat16> = 0x1p-8;
template <>
constexpr double kHalfUnit<float> = 0x1p-22;  // and of the arithmetic

double value_of_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}
double round_by_double(double value, double half_unit) {
  if (value == 0 || half_unit == kHalfUnit<float>) return value;
  const double unit = std::ldexp(2 * half_unit, std::ilogb(value));
  return std::nearbyint(value / unit) * unit;
}

// The scale of a block of a row, read from where its consumer looks.
template <typename T>
double read_scale(Tensors<T>& tensors, uint64_t row, uint64_t column) {
  const ScaleSpace space = find_scale_space(tensors.c);
  const uint64_t block = column / 128, small_block = column / 32, tiles = (tensors.c.hidden + 127) / 128;
  const auto power = [](uint8_t exponent) { return std::ldexp(1.0, exponent - 127); };
  switch (tensors.c.kind) {
    case RowQuantisation::kFloat8Tensor:
      return *tensors.scales.template at<float>();
    case RowQuantisation::kFloat8Token:
    case RowQuantisation::kInt8Token:
      return *tensors.scales.template at<float>(row);
    case RowQuantisation::kFloat8BlockExponent:
      return power(
          *tensors.scales.at((row * space.row_stride + block / 4 * space.block_stride) * 4 + block % 4));
    case RowQuantisation::kMxFloat8:
      return power(*tensors.scales.at(row * space.row_stride + small_block * space.block_stride));
    case RowQuantisation::kMxFloat8Swizzled:
      return power(*tensors.scales.at((row / 128 * tiles + small_block / 4) * 512 + row % 32 * 16 +
                                      row % 128 / 32 * 4 + small_block % 4));
    default:
      return *tensors.scales.template at<float>(row * space.row_stride + block * space.block_stride);
  }
}
// What the scale has to be of numbers that are so large.
double want_scale(RowQuantisation kind, double largest) {
  const double floor = std::max(largest / 448, 1e-10);
  switch (kind) {
    case RowQuantisation::kFloat8Tensor:
      return static_cast<double>(0.013F);
    case RowQuantisation::kInt8Token:
      return std::max(largest / 127, 1e-10);
    case RowQuantisation::kFloat8BlockPower:
    case RowQuantisation::kFloat8BlockExponent:
      return std::ldexp(1.0, static_cast<int>(std::ceil(std::log2(floor))));
    case RowQuantisation::kMxFloat8:
    case RowQuantisation::kMxFloat8Swizzled:
      return std::ldexp(1.0, std::max(-126, static_cast<int>(std::ceil(std::log2(largest / 448)))));
    default:
      return floor;
  }
}
uint64_t count_in_block(const Case& c) {
  switch (c.kind) {
    case RowQuantisation::kMxFloat8:
    case RowQuantisation::kMxFloat8Swizzled:
      return 32;
    case RowQuantisation::kFloat8Block:
    case RowQuantisation::kFloat8BlockPower:
    case RowQuantisation::kFloat8BlockExponent:
      return 128;
    default:
      return c.hidden;
  }
}

template <typename T>
std::string check_quantised(Tensors<T>& tensors, uint64_t row, const std::vector<double>& output) {
  const Case& c = tensors.c;
  const uint64_t in_block = count_in_block(c);
  for (uint64_t first = 0; first < c.hidden; first += in_block) {
    const uint64_t end = std::min(c.hidden, first + in_block);
    double largest = 0;
    for (uint64_t i = first; i < end; ++i) largest = std::max(largest, std::abs(output[i]));
    const double scale = read_scale(tensors, row, first), want = want_scale(c.kind, largest);
    const std::string where = " of row " + std::to_string(row) + " at " + std::to_string(first);
    if (std::abs(scale - want) > want * 0x1p-22)
      return "scale " + std::to_string(scale) + " and not " + std::to_string(want) + where;
    for (uint64_t i = first; i < end; ++i) {
      const uint8_t byte = *tensors.numbers.at(row * tensors.step + i);
      const double exact = output[i] / scale;
      const bool is_integer = c.kind == RowQuantisation::kInt8Token;
      const double got = is_integer ? static_cast<int8_t>(byte) : value_of_e4m3(byte);
      const double limited = std::max(-448.0, std::min(448.0, exact));
      const double unit =
          is_integer ? 1 : std::ldexp(1, std::max(-9, limited == 0 ? -9 : std::ilogb(limited) - 3));
      if (!(std::abs(got - limited) <= unit * 0.50001)) return "number " + std::to_string(got) + where;
    }
  }
  return "";
}

template <typename T>
std::string check(Tensors<T>& given, Tensors<T>& tensors) {
  const Case& c = tensors.c;
  Bytes& residual_out = c.is_in_place ? tensors.residual : tensors.residual_out;
  for (uint64_t row = 0; row < c.rows; ++row) {
    const std::string where = " of row " + std::to_string(row);
    std::vector<double> h(c.hidden), output(c.hidden);
    double squares = 0;
    for (uint64_t i = 0; i < c.hidden; ++i) {
      float sum = device::widen(*given.x.template at<T>(row * tensors.step + i));
      if (c.has_residual) sum += device::widen(*given.residual.template at<T>(row * tensors.step + i));
      const T rounded = device::narrow<T>(sum);
      if (std::memcmp(&rounded, residual_out.at<T>(row * tensors.step + i), sizeof(T)) != 0)
        return "residual" + where;
      h[i] = c.rounds_sum ? device::widen(rounded) : sum;
      squares += h[i] * h[i];
    }
    const double root = std::sqrt(squares / static_cast<double>(c.hidden) + static_cast<double>(1e-5F));
    for (uint64_t i = 0; i < c.hidden; ++i) {
      if (!c.has_output) continue;
      output[i] = device::widen(*tensors.output.template at<T>(row * tensors.step + i));
      const double weight =
          c.weight_offset +
          (c.has_weight ? static_cast<double>(device::widen(*tensors.weight.template at<T>(i))) : 1);
      // In float the middle may be rounded to the other side.
      double want = 0;
      bool is_right = false;
      for (const double side : {1 - 1e-6, 1 + 1e-6}) {
        const double middle = h[i] / root * side;
        want = (c.rounds_normed ? round_by_double(middle, kHalfUnit<T>) : middle) * weight;
        is_right |= std::abs(output[i] - want) <= (1.01 * kHalfUnit<T> + 2e-6) * std::abs(want) + 0x1p-24;
      }
      if (!is_right) {
        char text[120];
        std::snprintf(text, sizeof text, "%g and not %g at %zu", output[i], want, static_cast<size_t>(i));
        return text + where;
      }
    }
    if (c.kind != RowQuantisation::kNone && c.has_output) {
      const std::string wrong = check_quantised(tensors, row, output);
      if (!wrong.empty()) return wrong;
    }
    for (uint64_t i = c.hidden; i < tensors.step; ++i) {
      const bool is_padding = i < c.hidden + c.padding;
      const uint8_t want = is_padding ? 0 : kUntouched;
      for (uint64_t byte = 0; byte < sizeof(T); ++byte)
        if (c.has_output &&
            tensors.output.template at<uint8_t>((row * tensors.step + i) * sizeof(T))[byte] != want)
          return "padding" + where;
      if (c.kind != RowQuantisation::kNone && *tensors.numbers.at(row * tensors.step + i) != want)
        return "quantised padding" + where;
    }
  }
  if (c.kind == RowQuantisation::kFloat8BlockExponent) {
    const ScaleSpace space = find_scale_space(c);
    for (uint64_t block = (c.hidden + 127) / 128; block % 4 != 0; ++block)
      for (uint64_t row = 0; row < c.rows; ++row)
        if (*tensors.scales.at((row * space.row_stride + block / 4 * space.block_stride) * 4 + block % 4) !=
            0)
          return "a scale of no block is not 0";
  }
  if (c.kind == RowQuantisation::kMxFloat8Swizzled) {
    uint64_t written = 0;
    for (uint64_t i = 0; i < find_scale_space(c).bytes; ++i) written += *tensors.scales.at(i) != 0;
    if (written != c.rows * ((c.hidden + 31) / 32)) return "what no row has is not 0";
  }
  if (!tensors.output.has_margins() || !tensors.numbers.has_margins() || !tensors.scales.has_margins() ||
      !residual_out.has_margins())
    return "a byte beside a tensor";
  return "";
}

// By three ways: most of the row in registers, some of it, none; over several blocks: each the same bits.
template <typename T>
void expect_right(const Case& c) {
  const std::string name = "hidden " + std::to_string(c.hidden) + " kind " +
                           std::to_string(static_cast<int>(c.kind)) + " seed " + std::to_string(c.seed);
  Tensors<T> given(c), tensors(c), second(c), third(c);
  run<4>(tensors);
  ASSERT_EQ(check(given, tensors), "") << name;
  run<1>(second, 2);
  run<0>(third, 3);
  for (Tensors<T>* other : {&second, &third}) {
    ASSERT_EQ(check(given, *other), "") << name;
    for (const auto member : {&Tensors<T>::output, &Tensors<T>::numbers, &Tensors<T>::scales,
                              &Tensors<T>::residual_out, &Tensors<T>::residual}) {
      const uint64_t length = member == &Tensors<T>::scales    ? find_scale_space(c).bytes
                              : member == &Tensors<T>::numbers ? c.rows * tensors.step
                                                               : tensors.bytes();
      ASSERT_EQ(std::memcmp((tensors.*member).at(), (other->*member).at(), length), 0)
          << name << ": other bits";
    }
  }
}

template <typename T>
class RmsNormTest : public testing::Test {};
using Types = testing::Types<Bfloat16, Half, float>;
TYPED_TEST_SUITE(RmsNormTest, Types);

// Row lengths of models, and odd ones; longer than all registers of the block.
TYPED_TEST(RmsNormTest, AnyRowLength) {
  for (const uint64_t hidden : {1, 7, 8, 100, 513, 2880, 5376}) {
    if (emulator::kSanitizer && hidden > 600) continue;
    expect_right<TypeParam>({3, hidden});
    expect_right<TypeParam>({2, hidden, 128, 3, 1});
  }
  if (!emulator::kSanitizer) expect_right<TypeParam>({1, 20000, 512});
}

TYPED_TEST(RmsNormTest, EveryKindOfQuantisedRows) {
  for (uint32_t kind = 1; kind <= 8; ++kind) {
    for (uint64_t seed = 1; seed <= (emulator::kSanitizer ? 1 : 2); ++seed) {
      Case c{emulator::kSanitizer ? 2U : 5U, 680, 64};
      c.kind = static_cast<RowQuantisation>(kind);
      c.seed = seed;
      c.magnitude = seed == 1 ? 1 : 300;
      c.padding = seed == 1 ? 0 : 24;
      expect_right<TypeParam>(c);
      c.hidden = 45;  // less than a block
      c.offset = 1;
      expect_right<TypeParam>(c);
      c.hidden = 384;
      c.padding = 0;
      c.offset = 0;
      expect_right<TypeParam>(c);
    }
  }
}

TYPED_TEST(RmsNormTest, EveryOption) {
  for (uint32_t options = 0; options < 64; options += emulator::kSanitizer ? 5 : 1) {
    Case c{2, 136, 64};
    c.has_residual = (options & 1) != 0;
    c.is_in_place = c.has_residual && (options & 2) != 0;
    c.has_weight = (options & 4) != 0;
    c.rounds_sum = (options & 8) != 0;
    c.rounds_normed = (options & 16) != 0;
    c.has_output = (options & 32) == 0;
    c.weight_offset = static_cast<float>(options % 3);
    c.kind = options % 4 == 3 ? RowQuantisation::kFloat8Token : RowQuantisation::kNone;
    c.seed = options;
    expect_right<TypeParam>(c);
  }
}

// Zeros, and numbers so large that their squares are more than a float has: the row is then infinite, as the
// definition in float says.
TEST(RmsNorm, Zeros) {
  Case c{2, 256, 64};
  c.magnitude = 0;
  for (const auto kind :
       {RowQuantisation::kFloat8Token, RowQuantisation::kFloat8BlockExponent, RowQuantisation::kInt8Token}) {
    c.kind = kind;
    expect_right<Bfloat16>(c);
  }
  c.kind = RowQuantisation::kMxFloat8;
  Tensors<Bfloat16> tensors(c);
  run<4>(tensors);
  for (uint64_t i = 0; i < c.hidden; ++i) EXPECT_EQ(*tensors.numbers.at(i) & 0x7f, 0);
  EXPECT_EQ(*tensors.scales.at(), 1) << "the least scale";
}

// Of what the block's threads have just written, in one kernel with the norm after it.
TEST(RmsNorm, BehindWhatTheBlockWrote) {
  for (uint64_t seed = 0; seed < (emulator::kSanitizer ? 3 : 20); ++seed) {
    Case c{2, 300, 96};
    c.seed = seed;
    Tensors<Bfloat16> given(c), first(c), second(c);
    const RmsNorm<Bfloat16> norm = first.describe(), after = second.describe();
    const uint64_t count = c.rows * first.step;
    std::memset(first.x.at(), 0, first.bytes());
    emulator::run_kernel(seed, 1, c.threads, [&] {
      for (uint64_t i = device::thread_index(); i < count; i += c.threads)
        device::store<device::Order::kWeak, device::Scope::kThreads>(first.x.at<Bfloat16>(count - 1 - i),
                                                                     *given.x.at<Bfloat16>(count - 1 - i));
      device::norm_rows(norm, first.x.at<Bfloat16>(), first.step, 0, c.rows);
      device::norm_rows(after, first.x.at<Bfloat16>(), first.step, 0, c.rows);
    });
    ASSERT_EQ(check(given, first), "") << seed;
    ASSERT_EQ(check(given, second), "") << seed;
  }
}

// A NaN makes its row NaN, scales and all, and no other.
TEST(RmsNorm, NanStaysInItsRow) {
  for (const auto kind : {RowQuantisation::kFloat8Token, RowQuantisation::kFloat8Block,
                          RowQuantisation::kFloat8BlockExponent, RowQuantisation::kMxFloat8}) {
    Case c{3, 256, 64};
    c.kind = kind;
    Tensors<Bfloat16> tensors(c);
    *tensors.x.at<Bfloat16>(tensors.step + 77) = {0x7fc0};
    run<4>(tensors);
    for (uint64_t row = 0; row < 3; ++row) {
      for (uint64_t i = 0; i < c.hidden; ++i) {
        const float number = device::widen(*tensors.output.at<Bfloat16>(row * tensors.step + i));
        ASSERT_EQ(number != number, row == 1) << row << " " << i;
        ASSERT_EQ((*tensors.numbers.at(row * tensors.step + i) & 0x7f) == 0x7f, row == 1) << row << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
