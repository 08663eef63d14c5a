// Thousands of connections, each fixed by its seed. A failing seed runs alone with
//   SIMULATION_FIRST_SEED=<seed> SIMULATION_SEEDS=1 protocol_test --gtest_filter='Simulation.*'
#include "protocol/simulation/simulation.h"
#include "tests/base/scoped_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

namespace verbena::protocol::simulation {
namespace {

// A sanitizer makes a seed cost five times as much.
constexpr uint64_t kSeeds = VERBENA_IS_SANITIZED ? 400 : 2000;
constexpr uint64_t kLongSeeds = 100'000;

Report run_seed(uint64_t seed, Scratch& scratch) {
  const Shape shape = draw_shape(seed);
  return Simulation(shape, seed, scratch).run();
}

void run_seeds(uint64_t first, uint64_t count) {
  const auto meta = std::make_unique<NetUnpackMeta>();
  Scratch scratch{meta.get(), {}, {}};
  uint64_t staged = 0, direct = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Report report = run_seed(seed, scratch);
    ASSERT_TRUE(report.problem.empty()) << "seed " << seed << ": " << report.problem;
    staged += report.staged_messages;
    direct += report.direct_messages;
  }
  if (count < 100) return;  // a few seeds, for debugging
  EXPECT_GT(staged, direct / 5) << "both paths are walked";
  EXPECT_GT(direct, staged / 5);
}

TEST(Simulation, EveryByteOfEverySeedIsRightAndInOrder) {
  run_seeds(base::read_number("SIMULATION_FIRST_SEED", 1), base::read_number("SIMULATION_SEEDS", kSeeds));
}

TEST(SimulationLong, EveryByteOfManySeedsIsRightAndInOrder) {
  if (std::getenv("VERBENA_TEST_LONG") == nullptr) GTEST_SKIP() << "VERBENA_TEST_LONG is not set";
  run_seeds(kSeeds + 1, kLongSeeds);
}

// Messages of one length, one at a time, so that every queue pair is free when one is posted.
Report run_one_by_one(uint32_t rails, uint32_t queue_pairs, uint32_t length_bytes, uint32_t adaptive = 0) {
  Shape shape;
  shape.rails = rails;
  shape.queue_pairs = queue_pairs;
  shape.stages = false;
  shape.adaptive = adaptive;
  shape.adaptive_above_bytes = 8192;
  shape.min_stripe_bytes = 1 << 20;
  MessageShape message{};
  message.length_bytes = message.room_bytes = length_bytes;
  shape.messages.assign(64, message);
  const auto meta = std::make_unique<NetUnpackMeta>();
  Scratch scratch{meta.get(), {}, {}};
  const Report report = Simulation(shape, 1, scratch).run();
  EXPECT_EQ(report.problem, "");
  return report;
}

TEST(Simulation, QueuePairsOfOneRailAreUsedInTurn) {
  const Report report = run_one_by_one(1, 4, 8);
  for (uint32_t q = 0; q < 4; ++q) EXPECT_EQ(report.packets[q], 16U) << q;
}

TEST(Simulation, ShortMessagesStayOnTheWarmRail) {
  const Report report = run_one_by_one(2, 2, 8);
  EXPECT_EQ(report.packets[0] * report.packets[1], 0U);
  EXPECT_EQ(report.packets[0] + report.packets[1], 64U);
}

TEST(Simulation, WhereTheNetworkRoutesAdaptivelyImmediatesFollowLongWrites) {
  EXPECT_EQ(run_one_by_one(1, 1, 8193, 1).plain_writes, 64U);
  EXPECT_EQ(run_one_by_one(1, 1, 8192, 1).plain_writes, 0U);
  EXPECT_EQ(run_one_by_one(1, 1, 100'000).plain_writes, 0U);
}

TEST(Simulation, ASeedRunsTheSameWayTwice) {
  const auto meta = std::make_unique<NetUnpackMeta>();
  Scratch scratch{meta.get(), {}, {}};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Report first = run_seed(seed, scratch), second = run_seed(seed, scratch);
    EXPECT_EQ(first.steps, second.steps);
    EXPECT_EQ(first.staged_messages, second.staged_messages);
  }
}

}  // namespace
}  // namespace verbena::protocol::simulation
