// Thousands of connections, each fixed by its seed. A failing seed runs alone with
//   SIMULATION_FIRST_SEED=<seed> SIMULATION_SEEDS=1 protocol_test --gtest_filter='Simulation.*'
#include "protocol/simulation/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

namespace verbena::protocol::simulation {
namespace {

// A sanitizer makes a seed cost five times as much.
constexpr uint64_t kSeeds = VERBENA_IS_SANITIZED ? 400 : 2000;
constexpr uint64_t kLongSeeds = 100'000;

uint64_t read_number(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

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
  if (count < 100) return;  // somebody looks at a few seeds
  EXPECT_GT(staged, direct / 5) << "both paths are walked";
  EXPECT_GT(direct, staged / 5);
}

TEST(Simulation, EveryByteOfEverySeedIsRightAndInOrder) {
  run_seeds(read_number("SIMULATION_FIRST_SEED", 1), read_number("SIMULATION_SEEDS", kSeeds));
}

TEST(SimulationLong, EveryByteOfManySeedsIsRightAndInOrder) {
  if (std::getenv("VERBENA_TEST_LONG") == nullptr) GTEST_SKIP() << "VERBENA_TEST_LONG is not set";
  run_seeds(kSeeds + 1, kLongSeeds);
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
