// All-reduces in few bits on emulated GPUs, in two shots and in one: the same bits on every rank, every
// number inside its bound for tensors of models and adversaries, the errors that docs/quantisation.md
// promises, any size, alignment and number of ranks, launch after launch.
#include "verbena/device/collectives/one_shot_codec.cuh"
#include "verbena/device/collectives/two_shot_codec.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "device/collectives/codec_bounds.h"
#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using device::all_reduce_quantised;
using device::all_reduce_quantised_two_shot;
using device::Bfloat16;
using device::DataType;
using device::Float8;
using device::Half;
using device::Int4;
using device::Int6;
using device::Int8;
using device::OneShot;
using device::RoundStochastically;
using device::RoundToNearest;
using device::TwoShot;
using emulator::require;
using emulator::require_done;
using emulator::World;

constexpr const char *kNormal = "normal", *kOutliers = "outliers";

template <typename T>
constexpr DataType kType = DataType::kFloat16;
template <>
constexpr DataType kType<Bfloat16> = DataType::kBfloat16;
template <typename T>
constexpr double kHalfUnit = 0x1p-11;  // of the last bit, relative
template <>
constexpr double kHalfUnit<Bfloat16> = 0x1p-8;

struct Shape {
  int32_t ranks;
  uint32_t blocks = 2, threads = 64;
  uint32_t tiles = 2;  // that a slot has room for, of each phase
};

// In one shot sums are not coded.
struct NotCoded {
  static constexpr uint32_t kGroup = 1;
};
template <typename Sums>
constexpr bool kIsOneShot = std::is_same_v<Sums, NotCoded>;
template <typename Sums>
constexpr int32_t kSomeRanks = kIsOneShot<Sums> ? 2 : 3;  // one shot is for two

// Ranks with a workspace, which goes on from call to call.
template <typename Addends, typename Sums, typename T = Bfloat16>
class CodedRanks {
 public:
  explicit CodedRanks(const Shape& shape)
      : shape_(shape),
        slot_bytes_((shape.tiles * kMaxTileBytes + 127) / 128 * 128 * 2 + 128),
        fleet_(shape.ranks, INT32_MAX, Fleet::measure_workspace(shape.ranks, shape.blocks, slot_bytes_)) {}

  // One launch: the sums, as all ranks have them. `offset`: numbers from a multiple of 16 bytes on rank 0; on
  // the other ranks other ones, unless it is 0. `is_in_place`: on every other rank.
  template <typename Rounding = RoundToNearest>
  std::vector<float> reduce(const std::vector<std::vector<float>>& addends, uint64_t offset = 0,
                            bool is_in_place = false, const Rounding& rounding = {}) {
    const size_t count = addends[0].size(), ranks = addends.size();
    std::vector<std::vector<T>> inputs(ranks), outputs(ranks);
    const auto find_begin = [&](size_t rank) {
      return kMargin + (offset == 0 ? 0 : (offset + 3 * rank) % (2 * kVectorElements));
    };
    const auto fill = [&](std::vector<T>& to, size_t rank, bool is_input) {
      to.assign(count + 2 * kMargin, device::narrow<T>(kBeside));
      for (size_t i = 0; is_input && i < count; ++i)
        to[find_begin(rank) + i] = device::narrow<T>(addends[rank][i]);
    };
    for (size_t rank = 0; rank < ranks; ++rank) {
      fill(inputs[rank], rank, true);
      fill(outputs[rank], rank, is_in_place && rank % 2 == 0);
    }
    ++launches_;
    emulator::run_on_ranks(launches_, shape_.ranks, shape_.blocks, shape_.threads, [&](int32_t number) {
      const auto rank = static_cast<size_t>(number);
      const SymmWorkspace<> mine = fleet_.workspace(number, 0, shape_.blocks, slot_bytes_);
      if ((launches_ + rank) % 3 == 0) device::pause(300'000);
      char* const to = reinterpret_cast<char*>(outputs[rank].data() + find_begin(rank));
      const char* const from = is_in_place && rank % 2 == 0
                                   ? to
                                   : reinterpret_cast<const char*>(inputs[rank].data() + find_begin(rank));
      const auto block = device::block_index();
      if constexpr (kIsOneShot<Sums>) {
        OneShot<> calls(mine, block, shape_.blocks);
        require_done(all_reduce_quantised<Addends>(mine.context, calls, from, to, count * sizeof(T), kType<T>,
                                                   rounding),
                     "all_reduce_quantised");
        require_done(calls.finish(), "finish");
      } else {
        TwoShot<> calls(mine, block, shape_.blocks);
        require_done(all_reduce_quantised_two_shot<Addends, Sums>(mine.context, calls, from, to,
                                                                  count * sizeof(T), kType<T>, rounding),
                     "all_reduce_quantised_two_shot");
        require_done(calls.finish(), "finish");
      }
    });
    std::vector<float> sums;
    for (size_t i = 0; i < count; ++i) sums.push_back(device::widen(outputs[0][find_begin(0) + i]));
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < outputs[rank].size(); ++i) {
        const size_t begin = find_begin(rank);
        const bool is_sum = i >= begin && i < begin + count;
        const bool is_right =
            is_sum ? std::memcmp(&outputs[rank][i], &outputs[0][find_begin(0) + i - begin], sizeof(T)) == 0
                   : device::widen(outputs[rank][i]) == kBeside;
        if (!is_right)
          ADD_FAILURE() << "rank " << rank << " at " << i
                        << (is_sum ? ": other bits" : ": beside the tensor");
        if (!is_right) return sums;
      }
    }
    return sums;
  }

 private:
  static constexpr uint64_t kMargin = 64, kVectorElements = 16 / sizeof(T);
  static constexpr float kBeside = 77;
  static constexpr uint32_t count_tile_bytes() {
    if constexpr (kIsOneShot<Sums>) {
      return device::CodedTiles<Addends>::kBytes;
    } else {
      return std::max(device::CodedTiles<Addends>::kBytes, device::CodedTiles<Sums>::kBytes);
    }
  }
  static constexpr uint32_t kMaxTileBytes = count_tile_bytes();

  const Shape shape_;
  const uint64_t slot_bytes_;
  Fleet fleet_;
  uint64_t launches_ = 0;
};

// "" or the first sum that is further off than the bounds of its addends and of itself.
template <typename Addends, typename Sums, typename T>
std::string check_sums(const std::vector<std::vector<float>>& addends, const std::vector<float>& sums,
                       double slack = 1) {
  const size_t count = sums.size();
  std::vector<double> exact(count), allowed(count), magnitudes(count);
  for (const std::vector<float>& addend : addends) {
    for (size_t first = 0; first < count; first += Addends::kGroup) {
      const size_t end = std::min(count, first + Addends::kGroup);
      std::vector<float> group;
      for (size_t i = first; i < end; ++i) group.push_back(device::widen(device::narrow<T>(addend[i])));
      const Bound<Addends> bound(group);
      for (size_t i = first; i < end; ++i) {
        exact[i] += group[i - first];
        allowed[i] += bound.of(group[i - first], slack);
        magnitudes[i] += std::abs(static_cast<double>(group[i - first]));
      }
    }
  }
  for (size_t first = 0; first < count; first += Sums::kGroup) {
    const size_t end = std::min(count, first + Sums::kGroup);
    std::vector<float> group;  // as far as the sum before it is coded may lie
    for (size_t i = first; i < end; ++i) {
      group.push_back(static_cast<float>(exact[i] + allowed[i]));
      group.push_back(static_cast<float>(exact[i] - allowed[i]));
    }
    const auto bound_of = [&](float number) {
      if constexpr (kIsOneShot<Sums>) {
        return 0.0;
      } else {
        return Bound<Sums>(group).of(number, slack);
      }
    };
    for (size_t i = first; i < end; ++i) {
      const auto farthest = static_cast<float>(std::abs(exact[i]) + allowed[i]);
      const double of_sum = bound_of(farthest);
      const double all = allowed[i] + of_sum + 0x1p-20 * (magnitudes[i] + allowed[i]) +
                         kHalfUnit<T> * 1.01 * (farthest + of_sum) + kSmallestNormal;
      if (std::abs(sums[i] - exact[i]) <= all) continue;
      char text[160];
      std::snprintf(text, sizeof text, "sum %zu: %.9g became %.9g, allowed is %.9g", i, exact[i],
                    static_cast<double>(sums[i]), all);
      return text;
    }
  }
  return "";
}

template <typename Addends_, typename Sums_>
struct Pair {
  using Addends = Addends_;
  using Sums = Sums_;
};
template <typename Pair>
class CodedReduceTest : public testing::Test {};
using Pairs = testing::Types<Pair<Int8, Int8>, Pair<Int6, Int6>, Pair<Int4, Int4>, Pair<Int4, Int8>,
                             Pair<Float8, Float8>, Pair<Float8, Int8>, Pair<MxFloat8, MxFloat8>,
                             Pair<Int8, Int4>, Pair<Int8, NotCoded>, Pair<Int6, NotCoded>,
                             Pair<Int4, NotCoded>, Pair<Float8, NotCoded>, Pair<MxFloat8, NotCoded>>;
TYPED_TEST_SUITE(CodedReduceTest, Pairs);

TYPED_TEST(CodedReduceTest, EverySumStaysInsideItsBound) {
  using Addends = typename TypeParam::Addends;
  using Sums = typename TypeParam::Sums;
  CodedRanks<Addends, Sums> ranks({kSomeRanks<Sums>, 1, 32, 5});  // up to four steps
  Random random(1);
  for (const Tensor& tensor : list_tensors()) {
    // As large as half's are: sums of the largest floats are infinite, in every type.
    if (tensor.name == "the largest" || tensor.name == "of every magnitude") continue;
    std::vector<std::vector<float>> addends(kSomeRanks<Sums>,
                                            std::vector<float>(emulator::kSanitizer ? 1100 : 11000));
    for (auto& addend : addends)
      for (size_t i = 0; i < addend.size(); ++i) addend[i] = tensor.draw(random, i);
    EXPECT_EQ((check_sums<Addends, Sums, Bfloat16>(addends, ranks.reduce(addends))), "") << tensor.name;
    // Ranks that cancel but for a little: the error is that of what was sent, not of what is left.
    for (size_t i = 0; i < addends[0].size(); ++i) {
      addends[1][i] = -addends[0][i] * (i % 3 == 0 ? 1 : 0.99F);
      if (addends.size() > 2) addends[2][i] *= 0.01F;
    }
    EXPECT_EQ((check_sums<Addends, Sums, Bfloat16>(addends, ranks.reduce(addends))), "")
        << tensor.name << " cancelled";
  }
}

TYPED_TEST(CodedReduceTest, EverySizeAlignmentAndPlace) {
  using Addends = typename TypeParam::Addends;
  using Sums = typename TypeParam::Sums;
  CodedRanks<Addends, Sums, Half> ranks({2});
  Random random(2);
  for (const size_t count : {0, 1, 7, 8, 31, 1023, 1024, 1025, 4096, 5000, 20479}) {
    if (emulator::kSanitizer && count > 5000) continue;
    auto addends = draw_addends(random, 2, count);
    for (auto& addend : addends)
      for (float& number : addend) number = device::widen(device::narrow<Half>(number));
    for (const uint64_t offset : {0, 1, 5}) {
      if (emulator::kSanitizer && (count + offset) % 2 != 0) continue;
      const std::vector<float> sums = ranks.reduce(addends, offset, offset == 5);
      ASSERT_EQ(sums.size(), count);
      EXPECT_EQ((check_sums<Addends, Sums, Half>(addends, sums)), "") << count << " at " << offset;
    }
  }
}

// One shot is for two ranks.
template <typename Pair>
class CodedReduceOfManyTest : public testing::Test {};
using TwoShotPairs =
    testing::Types<Pair<Int8, Int8>, Pair<Int6, Int6>, Pair<Int4, Int4>, Pair<Int4, Int8>,
                   Pair<Float8, Float8>, Pair<Float8, Int8>, Pair<MxFloat8, MxFloat8>, Pair<Int8, Int4>>;
TYPED_TEST_SUITE(CodedReduceOfManyTest, TwoShotPairs);

TYPED_TEST(CodedReduceOfManyTest, AnyNumberOfRanks) {
  using Addends = typename TypeParam::Addends;
  using Sums = typename TypeParam::Sums;
  Random random(3);
  for (int32_t count = 1; count <= 16; count += emulator::kSanitizer ? 7 : count == 1 ? 3 : 1) {
    CodedRanks<Addends, Sums> ranks({count, 1, 32, 1});
    const auto addends = draw_addends(random, count, 3333);
    EXPECT_EQ((check_sums<Addends, Sums, Bfloat16>(
                  addends, ranks.reduce(addends, static_cast<uint64_t>(count) % 8, count % 2 == 1))),
              "")
        << count;
  }
}

// An infinity of one rank is one of the sum, infinities of both signs and NaN are NaN; all else is as good as
// ever.
TYPED_TEST(CodedReduceTest, CarriesWhatIsNotFinite) {
  using Addends = typename TypeParam::Addends;
  using Sums = typename TypeParam::Sums;
  constexpr int32_t kRanks = kSomeRanks<Sums>;
  CodedRanks<Addends, Sums> ranks({kRanks});
  std::vector<std::vector<float>> addends(kRanks, std::vector<float>(9000, 0.5F));
  const auto place = [](size_t i) { return i * 701 + 13; };
  for (size_t i = 0; i < 12; ++i) addends[i % kRanks][place(i)] = i % 2 == 0 ? kInfinity : -kInfinity;
  addends[(4 + 1) % kRanks][place(4)] = -kInfinity;  // against the other rank's
  addends[0][place(5)] = std::nanf("");
  const std::vector<float> sums = ranks.reduce(addends);
  for (size_t i = 0; i < 12; ++i) {
    const float sum = sums[place(i)];
    const bool is_nan = i == 4 || i == 5 || std::is_same_v<Addends, MxFloat8>;
    EXPECT_TRUE(is_nan ? std::isnan(sum) : sum == (i % 2 == 0 ? kInfinity : -kInfinity)) << i << ": " << sum;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const bool is_finite = i % 701 != 13 || i >= place(12);
    ASSERT_TRUE(!is_finite || std::abs(sums[i] - 0.5 * kRanks) < 0.11) << i;
  }
}

// `reduce(context, calls, tensor)`, 200 bytes by `Calls` of rank 0.
template <typename Calls, typename Reduce>
void expect_refused(int32_t ranks, uint64_t slot_bytes, const Reduce& reduce) {
  Fleet fleet(ranks, INT32_MAX, Fleet::measure_workspace(ranks, 1, slot_bytes));
  std::vector<Bfloat16> numbers(100);
  emulator::run_kernel(0, 1, 32, [&] {
    const SymmWorkspace<> mine = fleet.workspace(0, 0, 1, slot_bytes);
    Calls calls(mine, 0, 1);
    require(reduce(mine.context, calls, reinterpret_cast<char*>(numbers.data())) == SymmStatus::kInvalid,
            "refused");
  });
}

// Slots that not one tile fits in.
TEST(CodedReduce, RefusesSlotsThatAreTooSmall) {
  expect_refused<TwoShot<>>(2, 896, [](const auto& context, auto& calls, char* tensor) {
    return all_reduce_quantised_two_shot<Int4>(context, calls, tensor, tensor, 200, DataType::kBfloat16);
  });
}

// Slots that not one tile fits in, and other ranks than two.
TEST(CodedReduce, OneShotRefuses) {
  for (const auto& [ranks, slot_bytes] : {std::pair{2, 512}, std::pair{3, 4096}, std::pair{1, 4096}}) {
    expect_refused<OneShot<>>(
        ranks, static_cast<uint64_t>(slot_bytes), [](const auto& context, auto& calls, char* tensor) {
          return all_reduce_quantised<Int4>(context, calls, tensor, tensor, 200, DataType::kBfloat16);
        });
  }
}

// In two shots a rank whose share is empty hears from all others too: it names who does not come, and not the
// rank that waits for that one.
TEST(CodedReduce, ADeadPeerIsNamedByARankWithoutAShare) {
  constexpr uint64_t kSlotBytes = 8192;
  World::Limits patient;
  patient.stalled_steps *= 100;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Fleet fleet(3, INT32_MAX, Fleet::measure_workspace(3, 1, kSlotBytes));
    alignas(16) char inputs[3][512] = {}, outputs[3][512] = {};
    // One tile, which is rank 0's to sum. Rank 1 gives up first.
    fleet.context(0).timeout_ns = 200'000'000;
    fleet.context(1).timeout_ns = 50'000'000;
    const auto kernel = [&](int32_t rank) {
      const SymmWorkspace<> mine = fleet.workspace(rank, 0, 1, kSlotBytes);
      TwoShot<> calls(mine, 0, 1);
      require(all_reduce_quantised_two_shot<Int8>(mine.context, calls, inputs[rank], outputs[rank], 512,
                                                  DataType::kBfloat16) == SymmStatus::kTimedOut,
              "all_reduce_quantised_two_shot");
    };
    emulator::run_on_ranks(seed, 2, 1, 32, kernel, patient);
    for (int32_t rank = 0; rank < 2; ++rank) {
      const uint64_t failure = *fleet.workspace(rank, 0, 1, kSlotBytes).context.failure;
      EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, 2U) << "rank " << rank << ", seed " << seed;
    }
  }
}

// As a graph that is replayed, with other lengths in between: tensors of zeros and ones, which integers code
// exactly.
template <typename Sums>
void sum_zeros_and_ones_in_turn() {
  CodedRanks<Int4, Sums> ranks({2});
  const int launches = emulator::kSanitizer ? 20 : 100;
  for (int launch = 0; launch < launches; ++launch) {
    const float number = static_cast<float>(launch % 2);
    const std::vector<std::vector<float>> addends(2,
                                                  std::vector<float>(launch % 2 == 0 ? 4096 : 8192, number));
    for (const float sum : ranks.reduce(addends)) ASSERT_EQ(sum, 2 * number) << launch;
  }
}
TEST(CodedReduce, ZerosAndOnesInTurn) {
  sum_zeros_and_ones_in_turn<Int4>();
}
TEST(CodedReduce, ZerosAndOnesInTurnInOneShot) {
  sum_zeros_and_ones_in_turn<NotCoded>();
}

// The same seed gives other numbers in each launch, and the same on all ranks; on average they are right.
template <typename Sums>
void round_stochastically() {
  CodedRanks<Int4, Sums, Half> ranks({2});
  expect_right_on_average(
      [&](const auto& addends) { return ranks.reduce(addends, 0, false, RoundStochastically(9)); },
      [](const auto& addends, const auto& sums) { return check_sums<Int4, Sums, Half>(addends, sums, 2); });
}
TEST(CodedReduce, RoundsByChance) {
  round_stochastically<Int4>();
}
TEST(CodedReduce, RoundsByChanceInOneShot) {
  round_stochastically<NotCoded>();
}

struct Errors {
  double relative, bias, slope;  // of the mean, and of the length
};
// Of the numbers that are not outliers, where some are: those are a thousand times as rare as large.
template <typename Addends, typename Sums>
Errors measure(int32_t count_ranks, size_t count, const Tensor& tensor) {
  CodedRanks<Addends, Sums> ranks({count_ranks, 2, 64, 16});
  Random random(static_cast<uint64_t>(count_ranks));
  std::vector<std::vector<float>> addends(static_cast<size_t>(count_ranks), std::vector<float>(count));
  for (auto& addend : addends)
    for (size_t i = 0; i < count; ++i)
      addend[i] = device::widen(device::narrow<Bfloat16>(tensor.draw(random, i)));
  const std::vector<float> sums = ranks.reduce(addends);
  double squares = 0, errors = 0, bias = 0, product = 0;
  for (size_t i = 0; i < count; ++i) {
    if (tensor.name == kOutliers && i % 500 == 7) continue;
    double exact = 0;
    for (const auto& addend : addends) exact += addend[i];
    const double error = sums[i] - exact;
    squares += exact * exact;
    errors += error * error;
    bias += error;
    product += error * exact;
  }
  return {std::sqrt(errors / squares), std::abs(bias) / std::sqrt(squares * static_cast<double>(count)),
          std::abs(product) / squares};
}

const std::vector<Tensor>& list_measured() {
  static const std::vector<Tensor> tensors = {
      {kNormal, [](Random& random, size_t) { return draw_normal(random); }},
      {kOutliers, [](Random& random, size_t i) { return draw_normal(random) * (i % 500 == 7 ? 30 : 1); }},
      // Student's t of 3 degrees of freedom.
      {"heavy-tailed",
       [](Random& random, size_t) {
         double squares = 0;
         for (int i = 0; i < 3; ++i) squares += std::pow(draw_normal(random), 2) / 3;
         return static_cast<float>(draw_normal(random) / std::sqrt(squares));
       }},
      {"uniform",
       [](Random& random, size_t) { return static_cast<float>(random.between(0, 20000)) / 10000 - 1; }},
  };
  return tensors;
}

// On normal numbers at most `percent`; neither their mean nor their length moves by a hundredth of that. What
// other tensors give is printed: docs/quantisation.md has it.
template <typename Addends, typename Sums>
void expect_errors(const char* name, double percent) {
  for (const Tensor& tensor : list_measured()) {
    const size_t count = emulator::kSanitizer ? 16384 : tensor.name == kNormal ? 131072 : 65536;
    for (const int32_t ranks : {2, 4, 8}) {
      if (ranks > 2 && (emulator::kSanitizer || tensor.name != kNormal || kIsOneShot<Sums>)) continue;
      const Errors errors = measure<Addends, Sums>(ranks, count, tensor);
      std::printf("%-12s %-14s %d ranks %6.2f %%  mean %7.4f %%  length %7.4f %%\n", name,
                  tensor.name.c_str(), ranks, 100 * errors.relative, 100 * errors.bias, 100 * errors.slope);
      if (tensor.name != kNormal) continue;
      EXPECT_LE(100 * errors.relative, percent) << name << " of " << ranks;
      if (emulator::kSanitizer) continue;
      EXPECT_LE(100 * errors.bias, percent / 100) << name << " of " << ranks;
      EXPECT_LE(100 * errors.slope, percent / 10) << name << " of " << ranks;
    }
  }
}
TEST(BulkCodecErrors, Int8) {
  expect_errors<Int8, Int8>("int8", 0.95);
}
TEST(BulkCodecErrors, Float8) {
  expect_errors<Float8, Float8>("fp8", 3.6);
}
TEST(BulkCodecErrors, MxFloat8) {
  expect_errors<MxFloat8, MxFloat8>("mxfp8", 3.8);
}
TEST(BulkCodecErrors, Float8ThenInt8) {
  expect_errors<Float8, Int8>("fp8, int8", 2.6);
}
TEST(BulkCodecErrors, Int6) {
  expect_errors<Int6, Int6>("int6", 3.4);
}
TEST(BulkCodecErrors, Int4) {
  expect_errors<Int4, Int4>("int4", 12);
}
TEST(BulkCodecErrors, InOneShot) {
  expect_errors<Int8, NotCoded>("int8", 0.67);
  expect_errors<Float8, NotCoded>("fp8", 2.8);
  expect_errors<MxFloat8, NotCoded>("mxfp8", 3);
  expect_errors<Int6, NotCoded>("int6", 2.6);
  expect_errors<Int4, NotCoded>("int4", 9);
}
TEST(BulkCodecErrors, Int4ThenInt8) {
  expect_errors<Int4, Int8>("int4, int8", 8);
}

}  // namespace
}  // namespace verbena::device_test
