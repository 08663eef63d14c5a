// All-reduce in one shot, and of whole vectors in one and in two, on emulated GPUs: every size and alignment,
// 1 to 16 ranks, any bits, several blocks, calls in one kernel and from launch to launch; the same bits on
// every rank, and nothing beside the output.
#include "verbena/device/collectives/one_shot.cuh"
#include "verbena/device/collectives/two_shot.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/support/rank_counts.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;
using device::OneShot;
using device::TwoShot;
using emulator::require;
using emulator::require_done;
using emulator::World;

constexpr uint64_t kMargin = 64;  // bytes on both sides of an output that nobody writes

struct Call {
  uint64_t count;
  uint64_t input_offset, output_offset;  // bytes, from a multiple of 16, on rank 0
  bool is_in_place = false;
  bool do_ranks_differ = true;  // the other ranks' tensors begin elsewhere, and every other one is in place
};
struct Shape {
  int32_t ranks;
  uint32_t blocks, threads;
  uint64_t slot_bytes;
};

constexpr uint64_t kLaunches = emulator::kSanitizer ? 20 : 200, kSeeds = emulator::kSanitizer ? 1 : 6;
// Many threads poll for long while the others have not begun, and time runs the faster the longer they do.
constexpr World::Limits kPatient{.stalled_steps = 20'000'000};
constexpr uint64_t kNever_ns = uint64_t{1} << 60;
constexpr uint64_t kUntouched = 0x5a5a5a5a5a5a5a5a;

// 16 bytes aligned, and full of what is expected to stay.
class Bytes {
 public:
  explicit Bytes(uint64_t length_bytes) : words_(length_bytes / 16 + 1, Vector{kUntouched, kUntouched}) {}
  char* at(uint64_t offset_bytes) { return reinterpret_cast<char*>(words_.data()) + offset_bytes; }
  uint64_t size() const { return words_.size() * sizeof(Vector); }

 private:
  struct alignas(16) Vector {
    uint64_t low, high;
  };
  std::vector<Vector> words_;
};

template <typename T>
T add_in_order(const std::vector<T>& numbers) {
  if constexpr (std::is_same_v<T, int32_t>) {
    uint32_t sum = 0;
    for (const T number : numbers) sum += static_cast<uint32_t>(number);
    return static_cast<T>(sum);
  } else {
    float sum = device::widen(numbers[0]);
    for (size_t i = 1; i < numbers.size(); ++i) sum += device::widen(numbers[i]);
    return device::narrow<T>(sum);
  }
}
template <typename T>
bool is_nan(T number) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return false;
  } else {
    const float value = device::widen(number);
    return value != value;
  }
}

// Ranks with a workspace, which goes on from run to run.
template <typename T>
class Ranks {
 public:
  explicit Ranks(const Shape& shape)
      : shape_(shape),
        fleet_(shape.ranks, INT32_MAX,
               Fleet::measure_workspace(shape.ranks, shape.blocks, shape.slot_bytes)) {
    for (int32_t rank = 0; rank < shape.ranks; ++rank) fleet_.context(rank).timeout_ns = kNever_ns;
  }

  // The calls in one launch, on data drawn from the seed; "" or what is wrong.
  template <typename Calls = OneShot<>>
  std::string run(uint64_t seed, const std::vector<Call>& calls, bool are_vectors = false) {
    draw(seed, calls);
    World world(seed, kPatient);
    for (int32_t rank = 0; rank < shape_.ranks; ++rank)
      world.add_grid(static_cast<uint32_t>(rank), shape_.blocks, shape_.threads, [=, this, &calls] {
        const SymmWorkspace<> mine = fleet_.workspace(rank, 0, shape_.blocks, shape_.slot_bytes);
        Calls one_shot(mine, device::block_index(), shape_.blocks);
        for (size_t i = 0; i < calls.size(); ++i) {
          // Ranks come late, another one each time.
          if ((seed + i + static_cast<uint64_t>(rank)) % 3 == 0) device::pause(500'000);
          const SymmStatus status =
              are_vectors ? reduce_vectors(one_shot, rank, i, calls[i]) : reduce(one_shot, rank, i, calls[i]);
          require(status == SymmStatus::kDone, "all_reduce");
        }
        require_done(one_shot.finish(), "finish");
      });
    const std::string result = world.run();
    return result.empty() ? check(calls) : result;
  }

  Fleet& fleet() { return fleet_; }

 private:
  using Buffers = std::vector<std::vector<Bytes>>;  // [rank][call]

  static uint64_t find_offset(int32_t rank, uint64_t offset, const Call& call) {
    return call.do_ranks_differ ? (offset + 5 * static_cast<uint64_t>(rank)) % 16 : offset;
  }
  static bool is_in_place(int32_t rank, const Call& call) {
    return call.is_in_place && (!call.do_ranks_differ || rank % 2 == 0);
  }
  T* input(int32_t rank, size_t i, const Call& call) {
    return reinterpret_cast<T*>(
        inputs_[static_cast<size_t>(rank)][i].at(kMargin + find_offset(rank, call.input_offset, call)));
  }
  T* output(int32_t rank, size_t i, const Call& call) {
    return is_in_place(rank, call) ? input(rank, i, call)
                                   : reinterpret_cast<T*>(outputs_[static_cast<size_t>(rank)][i].at(
                                         kMargin + find_offset(rank, call.output_offset, call)));
  }
  template <typename Calls>
  SymmStatus reduce_vectors(Calls& calls, int32_t rank, size_t i, const Call& call) {
    const auto* const from = reinterpret_cast<const char*>(input(rank, i, call));
    auto* const to = reinterpret_cast<char*>(output(rank, i, call));
    const uint64_t length_bytes = call.count * sizeof(T);
    const device::ReduceAs<T> reduce;
    if (shape_.ranks == 2) return calls.template all_reduce_vectors<2>(from, to, length_bytes, reduce);
    if (shape_.ranks == 4) return calls.template all_reduce_vectors<4>(from, to, length_bytes, reduce);
    return calls.template all_reduce_vectors<8>(from, to, length_bytes, reduce);
  }
  template <typename Calls>
  SymmStatus reduce(Calls& one_shot, int32_t rank, size_t i, const Call& call) {
    if (shape_.ranks == 3 && i % 2 == 1)
      return one_shot.template all_reduce<3>(input(rank, i, call), output(rank, i, call), call.count);
    return one_shot.all_reduce(input(rank, i, call), output(rank, i, call), call.count);
  }

  void draw(uint64_t seed, const std::vector<Call>& calls) {
    Random random(seed + 1);
    inputs_.assign(static_cast<size_t>(shape_.ranks), {});
    outputs_ = inputs_;
    numbers_.assign(calls.size(), {});
    for (int32_t rank = 0; rank < shape_.ranks; ++rank) {
      for (size_t i = 0; i < calls.size(); ++i) {
        const uint64_t length_bytes = calls[i].count * sizeof(T);
        inputs_[static_cast<size_t>(rank)].emplace_back(length_bytes + 3 * kMargin);
        outputs_[static_cast<size_t>(rank)].emplace_back(length_bytes + 3 * kMargin);
        std::vector<T> numbers(calls[i].count);
        for (T& number : numbers) number = draw_number(random);
        plant_rare(random, numbers);
        if (length_bytes != 0)
          std::memcpy(static_cast<void*>(input(rank, i, calls[i])), numbers.data(), length_bytes);
        numbers_[i].push_back(numbers);
      }
    }
  }
  // Here and there what a packet does not carry.
  static void plant_rare(Random& random, std::vector<T>& numbers) {
    constexpr size_t kCount = sizeof(uint64_t) / sizeof(T);
    for (size_t i = 0; i + kCount <= numbers.size(); i += kCount) {
      const uint64_t rare = device::Packet::kSentinel ^ random.between(0, 1);
      if (random.between(0, 3) == 0) std::memcpy(&numbers[i], &rare, sizeof(rare));
    }
  }
  // Any bits: also NaN and infinite. And numbers of one magnitude, of which sums round.
  static T draw_number(Random& random) {
    const uint32_t bits = random.between(0, UINT32_MAX);
    T number;
    std::memcpy(&number, &bits, sizeof(T));
    if constexpr (!std::is_same_v<T, int32_t>) {
      if (bits % 4 != 0) number = device::narrow<T>(static_cast<float>(bits % 4099) / 7.0F);
    }
    return number;
  }

  std::string check(const std::vector<Call>& calls) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const uint64_t length_bytes = calls[i].count * sizeof(T);
      for (int32_t rank = 0; rank < shape_.ranks; ++rank) {
        const std::string where = "call " + std::to_string(i) + " rank " + std::to_string(rank);
        const char* const out = reinterpret_cast<const char*>(output(rank, i, calls[i]));
        if (std::memcmp(out, output(0, i, calls[i]), length_bytes) != 0) return where + ": other bits";
        for (uint64_t n = 0; n < calls[i].count; ++n) {
          T got;
          std::memcpy(&got, out + n * sizeof(T), sizeof(T));
          std::vector<T> addends;
          for (const std::vector<T>& of_rank : numbers_[i]) addends.push_back(of_rank[n]);
          const T want = add_in_order(addends);
          if (is_nan(want) ? !is_nan(got) : std::memcmp(&got, &want, sizeof(T)) != 0)
            return where + ": a wrong number at " + std::to_string(n);
        }
        Bytes& whole = (is_in_place(rank, calls[i]) ? inputs_ : outputs_)[static_cast<size_t>(rank)][i];
        for (const char* byte = whole.at(0); byte < whole.at(whole.size()); ++byte) {
          const bool is_margin = byte < out || byte >= out + length_bytes;
          if (is_margin && *byte != 0x5a) return where + ": a byte beside the output";
        }
      }
    }
    return "";
  }

  const Shape shape_;
  Fleet fleet_;
  Buffers inputs_, outputs_;
  std::vector<std::vector<std::vector<T>>> numbers_;  // [call][rank]
};

template <typename T>
class OneShotTest : public testing::Test {};
using Types = testing::Types<float, Half, Bfloat16, int32_t>;
TYPED_TEST_SUITE(OneShotTest, Types);

// 0, 1, 2 ... numbers at any alignment; with two blocks and slots that a long tensor fills several times.
TYPED_TEST(OneShotTest, EverySizeAndAlignment) {
  Ranks<TypeParam> ranks({3, 2, 32, 128});
  std::vector<Call> calls;
  for (uint64_t count = 0; count <= 40; ++count)
    calls.push_back({count, count % 16, count * 7 % 16, count % 5 == 4});
  for (const uint64_t count : {100, 257}) calls.push_back({count, 3, 0});
  for (uint64_t seed = 0; seed < kSeeds; ++seed) EXPECT_EQ(ranks.run(seed, calls), "") << seed;
}

TYPED_TEST(OneShotTest, AnyNumberOfRanks) {
  for (int32_t count = 1; count <= 16; count += emulator::kSanitizer ? 3 : 1) {
    Ranks<TypeParam> ranks({count, 1, 32, 128});
    EXPECT_EQ(ranks.run(static_cast<uint64_t>(count), {{37, 0, 8}, {5, 1, 0, true}}), "") << count;
  }
}

// Whole vectors: none, one, fewer than there are threads, several for each of them; launch after launch, ways
// in turn, so that each goes on where another one ended. Of eight ranks few wait at a time: all of them
// together are slow to emulate.
TYPED_TEST(OneShotTest, Vectors) {
  for (const int32_t count : {2, 4, 8}) {
    Ranks<TypeParam> ranks({count, 2, 32, 2048});
    const uint64_t most = count == 8 ? 11 : 80;
    const auto make_calls = [&](uint64_t turn, uint64_t unit_bytes) {
      const auto call = [&](uint64_t units, uint64_t i) {
        return Call{units * unit_bytes / sizeof(TypeParam), turn % 2 * 16, i * 16, i == 1, false};
      };
      return std::vector<Call>{call(turn % 7, 0), call(turn * 5 % most, 1), call(most, 2)};
    };
    const auto size = static_cast<uint64_t>(count);
    for (uint64_t turn = 0; turn < (emulator::kSanitizer ? 2 : 7); ++turn) {
      ASSERT_EQ(ranks.run(turn, make_calls(turn, 16), true), "") << count << " " << turn;
      ASSERT_EQ(ranks.template run<TwoShot<>>(turn, make_calls(turn, 16 * size), true), "")
          << count << " two shots " << turn;
      ASSERT_EQ(ranks.template run<TwoShot<>>(turn, {{turn * 13 % 70, turn % 16, 3}}), "")
          << count << " any bytes " << turn;
    }
  }
}
// Two shots in as many rounds as slots of few packets need.
TYPED_TEST(OneShotTest, VectorsInRounds) {
  for (const int32_t count : {2, 4, 8}) {
    Ranks<TypeParam> ranks({count, 2, 32, 128});
    for (uint64_t units = 1; units < 70; units += 17)
      EXPECT_EQ(
          ranks.template run<TwoShot<>>(
              units, {{units * 16 * static_cast<uint64_t>(count) / sizeof(TypeParam), 0, 0, false, false}},
              true),
          "")
          << count << " " << units;
  }
}

// As a graph that is replayed: lengths change from launch to launch, so that old packets lie behind them.
TYPED_TEST(OneShotTest, LaunchAfterLaunch) {
  Ranks<TypeParam> ranks({2, 3, 32, 256});
  for (uint64_t launch = 0; launch < kLaunches; ++launch) {
    const std::vector<Call> calls = {{launch * 29 % 150, launch % 16, launch % 3}, {launch % 4, 0, 0, true}};
    ASSERT_EQ(ranks.run(launch, calls), "") << launch;
  }
}

// Bytes of every length and alignment, in place too, in two blocks, behind each other in one kernel.
TEST(OneShot, GathersEverySizeOfRanks) {
  constexpr uint64_t kSlotBytes = 128, kMaxCount = 150;  // two messages a block
  for (const int32_t ranks : list_rank_counts({1, 2, 3, 9})) {
    Fleet fleet(ranks, INT32_MAX, Fleet::measure_workspace(ranks, 2, kSlotBytes));
    const auto size = static_cast<uint64_t>(ranks);
    const auto byte = [](uint64_t rank, uint64_t count, uint64_t i) {
      return static_cast<char>(rank * 41 + count * 7 + i);
    };
    for (uint64_t count = 0; count <= kMaxCount; count += ranks > 8                           ? 29
                                                          : ranks > 3 || emulator::kSanitizer ? 9
                                                                                              : 1) {
      const bool is_in_place = count % 3 == 0;
      const uint64_t offset = kMargin + count % 16;
      std::vector<Bytes> inputs, outputs;
      for (uint64_t rank = 0; rank < size; ++rank) {
        inputs.emplace_back(kMaxCount + 3 * kMargin);
        outputs.emplace_back(size * kMaxCount + 3 * kMargin);
        char* const from =
            is_in_place ? outputs[rank].at(offset + rank * count) : inputs[rank].at(kMargin + 3);
        for (uint64_t i = 0; i < count; ++i) from[i] = byte(rank, count, i);
      }
      emulator::run_on_ranks(count, ranks, 2, 32, [&](int32_t rank) {
        const SymmWorkspace<> mine = fleet.workspace(rank, 0, 2, kSlotBytes);
        const auto r = static_cast<uint64_t>(rank);
        char* const output = outputs[r].at(offset);
        OneShot<> one_shot(mine, device::block_index(), 2);
        for (uint64_t turn = 0; turn < 3; ++turn) {
          if ((count + turn + r) % 3 == 0) device::pause(500'000);
          const char* const input = is_in_place ? output + r * count : inputs[r].at(kMargin + 3);
          require_done(one_shot.all_gather(input, output, count), "all_gather");
        }
        require_done(one_shot.finish(), "finish");
      });
      for (uint64_t rank = 0; rank < size; ++rank) {
        for (uint64_t i = 0; i < outputs[rank].size(); ++i) {
          const bool is_margin = i < offset || i >= offset + size * count;
          const char want = is_margin ? 0x5a : byte((i - offset) / count, count, (i - offset) % count);
          ASSERT_EQ(*outputs[rank].at(i), want) << ranks << " " << count << " rank " << rank << " at " << i;
        }
      }
    }
  }
}

// A rank that does not come is named, and the error stays.
TEST(OneShot, ADeadPeerIsNamed) {
  constexpr uint64_t kSlotBytes = 128;
  Fleet fleet(3, INT32_MAX, Fleet::measure_workspace(3, 1, kSlotBytes));
  float inputs[3][8] = {}, outputs[3][8] = {};
  for (int32_t rank = 0; rank < 2; ++rank) fleet.context(rank).timeout_ns = 50'000'000;
  emulator::run_on_ranks(1, 2, 1, 32, [&](int32_t rank) {
    const SymmWorkspace<> mine = fleet.workspace(rank, 0, 1, kSlotBytes);
    OneShot<> one_shot(mine, 0, 1);
    require(one_shot.all_reduce(inputs[rank], outputs[rank], 8) == SymmStatus::kTimedOut, "all_reduce");
    require(one_shot.all_reduce(inputs[rank], outputs[rank], 8) == SymmStatus::kTimedOut, "the next one");
    require(one_shot.finish() == SymmStatus::kTimedOut, "finish");
  });
  const uint64_t failure = *fleet.workspace(0, 0, 1, kSlotBytes).context.failure;
  EXPECT_EQ(static_cast<SymmWait>(failure & 0xff), SymmWait::kPacket);
  EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, 2U);
  EXPECT_EQ(fleet.workspace(0, 0, 1, kSlotBytes).blocks.epochs[0], 0U) << "a failed call has not ended";
}

// In two shots a rank whose share is empty waits for all others too: it names who does not come, and not the
// rank that waits for that one.
TEST(TwoShot, ADeadPeerIsNamedByARankWithoutAShare) {
  constexpr uint64_t kSlotBytes = 128;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Fleet fleet(3, INT32_MAX, Fleet::measure_workspace(3, 1, kSlotBytes));
    float inputs[3][4] = {}, outputs[3][4] = {};
    // One packet, which is rank 0's to sum. Rank 1 gives up first.
    fleet.context(0).timeout_ns = 200'000'000;
    fleet.context(1).timeout_ns = 50'000'000;
    const auto kernel = [&](int32_t rank) {
      const SymmWorkspace<> mine = fleet.workspace(rank, 0, 1, kSlotBytes);
      TwoShot<> calls(mine, 0, 1);
      require(calls.all_reduce(inputs[rank], outputs[rank], 4) == SymmStatus::kTimedOut, "all_reduce");
    };
    emulator::run_on_ranks(seed, 2, 1, 32, kernel, kPatient);
    for (int32_t rank = 0; rank < 2; ++rank) {
      const uint64_t failure = *fleet.workspace(rank, 0, 1, kSlotBytes).context.failure;
      EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, 2U) << "rank " << rank << ", seed " << seed;
    }
  }
}

// The same of whole vectors, in one shot and in two: some of the block's threads wait in vain.
template <typename Calls>
void expect_named_in_vectors() {
  constexpr uint64_t kSlotBytes = 1024;
  Fleet fleet(4, INT32_MAX, Fleet::measure_workspace(4, 1, kSlotBytes));
  alignas(16) float inputs[4][32] = {}, outputs[4][32] = {};
  for (int32_t rank = 0; rank < 3; ++rank) fleet.context(rank).timeout_ns = 50'000'000;
  const auto kernel = [&](int32_t rank) {
    const SymmWorkspace<> mine = fleet.workspace(rank, 0, 1, kSlotBytes);
    Calls calls(mine, 0, 1);
    const auto reduce = [&] {
      return calls.template all_reduce_vectors<4>(reinterpret_cast<const char*>(inputs[rank]),
                                                  reinterpret_cast<char*>(outputs[rank]),
                                                  sizeof(inputs[rank]), device::ReduceAs<float>{});
    };
    require(reduce() == SymmStatus::kTimedOut, "all_reduce");
    require(reduce() == SymmStatus::kTimedOut, "the next one");
    require(calls.finish() == SymmStatus::kTimedOut, "finish");
  };
  emulator::run_on_ranks(1, 3, 1, 32, kernel, kPatient);
  const uint64_t failure = *fleet.workspace(0, 0, 1, kSlotBytes).context.failure;
  EXPECT_EQ(static_cast<SymmWait>(failure & 0xff), SymmWait::kPacket);
  EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, 3U);
}
TEST(OneShot, ADeadPeerIsNamedInVectors) {
  expect_named_in_vectors<OneShot<>>();
}
TEST(TwoShot, ADeadPeerIsNamedInVectors) {
  expect_named_in_vectors<TwoShot<>>();
}

// What all_reduce_vectors() is not for.
template <typename Calls>
void expect_refused_vectors(uint64_t unit_bytes) {
  constexpr uint64_t kSlotBytes = 256;
  Fleet fleet(2, INT32_MAX, Fleet::measure_workspace(2, 1, kSlotBytes));
  alignas(16) char input[512] = {}, output[512] = {};
  emulator::run_kernel(0, 1, 32, [&] {
    const SymmWorkspace<> mine = fleet.workspace(0, 0, 1, kSlotBytes);
    const auto status = [&](auto ranks, uint64_t from, uint64_t to, uint64_t length_bytes) {
      Calls calls(mine, 0, 1);
      return calls.template all_reduce_vectors<decltype(ranks)::value>(
          input + from, output + to, length_bytes, device::ReduceAs<float>{});
    };
    using Two = std::integral_constant<int, 2>;
    using Four = std::integral_constant<int, 4>;
    require_done(status(Two{}, 0, 0, 0), "nothing to do");
    require(status(Two{}, 4, 0, unit_bytes) == SymmStatus::kInvalid, "an input between vectors");
    require(status(Two{}, 0, 8, unit_bytes) == SymmStatus::kInvalid, "an output between vectors");
    require(status(Two{}, 0, 0, unit_bytes + 4) == SymmStatus::kInvalid, "half a vector");
    require(status(Four{}, 0, 0, 4 * unit_bytes) == SymmStatus::kInvalid, "a team of another size");
  });
}
TEST(OneShot, RefusesOtherThanVectors) {
  expect_refused_vectors<OneShot<>>(16);
}
TEST(TwoShot, RefusesOtherThanVectors) {
  expect_refused_vectors<TwoShot<>>(32);
}
TEST(OneShot, RefusesVectorsWithoutRoom) {
  constexpr uint64_t kSlotBytes = 256;
  Fleet fleet(2, INT32_MAX, Fleet::measure_workspace(2, 1, kSlotBytes));
  alignas(16) char data[256] = {};
  emulator::run_kernel(0, 1, 32, [&] {
    const SymmWorkspace<> mine = fleet.workspace(0, 0, 1, kSlotBytes);
    OneShot<> calls(mine, 0, 1);
    require(calls.all_reduce_vectors<2>(data, data, kSlotBytes / 24 * 16 + 16, device::ReduceAs<float>{}) ==
                SymmStatus::kInvalid,
            "more than a slot has room for");
  });
}

TEST(OneShot, RefusesBlocksThatTheWorkspaceHasNot) {
  constexpr uint64_t kSlotBytes = 128;
  Fleet fleet(1, INT32_MAX, Fleet::measure_workspace(1, 2, kSlotBytes));
  float number = 1;
  emulator::run_kernel(0, 1, 32, [&] {
    const SymmWorkspace<> mine = fleet.workspace(0, 0, 2, kSlotBytes);
    OneShot<> many(mine, 0, 3), beyond(mine, 2, 2), fine(mine, 1, 2);
    require(many.all_reduce(&number, &number, 1) == SymmStatus::kInvalid, "more blocks than there are");
    require(many.finish() == SymmStatus::kInvalid, "finish");
    require(beyond.all_reduce(&number, &number, 1) == SymmStatus::kInvalid, "no such block");
    require_done(fine.all_reduce<1>(&number, &number, 0), "nothing to do");
    require_done(fine.finish(), "finish");
  });
}

}  // namespace
}  // namespace verbena::device_test
