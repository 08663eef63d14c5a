// Groups of one-sided endpoints that fail, each fixed by its seed. A failing seed runs alone with
//   LANE_FIRST_SEED=<seed> LANE_SEEDS=1 protocol_test --gtest_filter='Lane*.*'
// VERBENA_TEST_LONG runs a hundred times as many.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "protocol/lane_simulation/run.h"
#include "tests/base/scoped_environment.h"

namespace verbena::protocol::lane_simulation {
namespace {

constexpr uint64_t kShares = 4;
constexpr uint64_t kSeeds = VERBENA_IS_SANITIZED ? 400 : 3000;  // of each
constexpr uint64_t kLongSeeds = 100 * kSeeds;
constexpr uint64_t kAllMeetFrom = 2000;  // so many runs are enough for everything to happen

void run_seeds(uint64_t first, uint64_t count, bool fails) {
  Report totals;
  uint64_t errors = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Report report = run(seed, fails);
    ASSERT_TRUE(report.problem.empty()) << "seed " << seed << ": " << report.problem;
    errors += report.errors != 0;
    totals.add(report);
  }
  const auto wide = [](uint64_t number) { return static_cast<unsigned long long>(number); };
  std::printf(
      "%llu groups, %llu operations, %llu steps; %llu faults, %llu queue pairs failed, %llu revived, "
      "%llu requests repeated, %llu answers lost, %llu moves of words; %llu groups with an error\n",
      wide(count), wide(totals.operations), wide(totals.steps), wide(totals.faults), wide(totals.failures),
      wide(totals.revivals), wide(totals.replays), wide(totals.lost_answers), wide(totals.moves),
      wide(errors));
  if (!fails) {
    EXPECT_EQ(errors, 0U);
  }
  if (!fails || count < kAllMeetFrom) return;
  for (const uint64_t met :
       {totals.failures, totals.revivals, totals.replays, totals.lost_answers, totals.moves})
    EXPECT_GT(met, count / 100);
  EXPECT_GT(errors, count / 100);
  EXPECT_LT(errors, count / 2);
}

TEST(LaneSimulation, EveryOperationIsDoneOnceAndInOrder) {
  run_seeds(base::read_number("LANE_FIRST_SEED", 1), base::read_number("LANE_SEEDS", kSeeds), false);
}

class LaneFailover : public testing::TestWithParam<uint64_t> {};
class LaneFailoverLong : public testing::TestWithParam<uint64_t> {};

TEST_P(LaneFailover, NothingHappensTwiceAndNothingHangs) {
  run_seeds(base::read_number("LANE_FIRST_SEED", 1) + GetParam() * kSeeds,
            base::read_number("LANE_SEEDS", kSeeds), true);
}

TEST_P(LaneFailoverLong, NothingHappensTwiceAndNothingHangs) {
  if (std::getenv("VERBENA_TEST_LONG") == nullptr) GTEST_SKIP() << "VERBENA_TEST_LONG is not set";
  run_seeds(1'000'000 + GetParam() * kLongSeeds, kLongSeeds, true);
}

INSTANTIATE_TEST_SUITE_P(Seeds, LaneFailover, testing::Range<uint64_t>(0, kShares));
INSTANTIATE_TEST_SUITE_P(Seeds, LaneFailoverLong, testing::Range<uint64_t>(0, kShares));

TEST(LaneSimulation, ASeedRunsTheSameWayTwice) {
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(run(seed, true).steps, run(seed, true).steps);
}

}  // namespace
}  // namespace verbena::protocol::lane_simulation
