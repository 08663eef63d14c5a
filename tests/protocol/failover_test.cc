// Connections that fail, a hundred thousand of them, each fixed by its seed. A failing seed runs alone with
//   FAILOVER_FIRST_SEED=<seed> FAILOVER_SEEDS=1 protocol_test --gtest_filter='Failover.Seeds*'
// VERBENA_TEST_LONG runs ten million.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "protocol/simulation/simulation.h"
#include "tests/base/scoped_environment.h"

namespace verbena::protocol::simulation {
namespace {

// In shares, which run beside one another.
constexpr uint64_t kShares = 8;
constexpr uint64_t kSeeds = VERBENA_IS_SANITIZED ? 1500 : 13'000;  // of each
constexpr uint64_t kLongSeeds = 1'250'000;
constexpr uint64_t kAllMeetFrom = 10'000;  // so many runs are enough for every fault to meet every state

struct Totals {
  uint64_t runs = 0, steps = 0, successes = 0, both_report = 0, one_reports = 0, faultless = 0;
  uint64_t faults = 0, failures = 0, replays = 0, revivals = 0, staged = 0, direct = 0;
  FaultCounts counts{};

  void add(const Report& report, const FaultCounts& more) {
    ++runs;
    steps += report.steps;
    const int errors = !report.sender_error.empty() + !report.receiver_error.empty();
    ++(errors == 0 ? successes : errors == 1 ? one_reports : both_report);
    faultless += report.faults == 0;
    faults += report.faults;
    failures += report.failures;
    replays += report.replays;
    revivals += report.revivals;
    staged += report.staged_messages;
    direct += report.direct_messages;
    for (uint32_t kind = 0; kind < kFaultKinds; ++kind)
      for (uint32_t state = 0; state < kStates; ++state) counts[kind][state] += more[kind][state];
  }
};

void print(const Totals& totals) {
  const auto value = [](uint64_t number) { return static_cast<unsigned long long>(number); };
  std::printf(
      "%llu runs, %llu steps: %llu succeed, %llu end in an error at one end, %llu at both; %llu without a "
      "fault\n",
      value(totals.runs), value(totals.steps), value(totals.successes), value(totals.one_reports),
      value(totals.both_report), value(totals.faultless));
  std::printf(
      "%llu faults, %llu queue pairs failed, %llu revived, %llu chunks replayed; %llu messages staged, %llu "
      "direct\n",
      value(totals.faults), value(totals.failures), value(totals.revivals), value(totals.replays),
      value(totals.staged), value(totals.direct));
  std::printf("%-16s", "");
  for (uint32_t state = 0; state < kStates; ++state) std::printf("%9s", name_of(static_cast<State>(state)));
  for (uint32_t kind = 0; kind < kFaultKinds; ++kind) {
    std::printf("\n%-16s", name_of(static_cast<FaultKind>(kind)));
    for (uint32_t state = 0; state < kStates; ++state) {
      if (is_possible(static_cast<FaultKind>(kind), static_cast<State>(state))) {
        std::printf("%9llu", value(totals.counts[kind][state]));
      } else {
        std::printf("%9s", "-");
      }
    }
  }
  std::printf("\n");
}

void expect_all_met(const Totals& totals) {
  for (uint32_t kind = 0; kind < kFaultKinds; ++kind) {
    for (uint32_t state = 0; state < kStates; ++state) {
      const auto fault = static_cast<FaultKind>(kind);
      const auto met = static_cast<State>(state);
      if (is_possible(fault, met)) {
        EXPECT_GT(totals.counts[kind][state], 0U) << name_of(fault) << " never met " << name_of(met);
      }
    }
  }
  EXPECT_GT(totals.replays, totals.runs / 10);
  EXPECT_GT(totals.revivals, totals.runs / 10);
  EXPECT_GT(totals.successes, totals.runs / 2);
  EXPECT_GT(totals.both_report, 0U);
}

void run_seeds(uint64_t first, uint64_t count) {
  const auto meta = std::make_unique<NetUnpackMeta>();
  Scratch scratch{meta.get(), {}, {}};
  const auto totals = std::make_unique<Totals>();
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Shape shape = draw_failing_shape(seed);
    Simulation simulation(shape, seed, scratch);
    const Report report = simulation.run();
    ASSERT_TRUE(report.problem.empty()) << "seed " << seed << ": " << report.problem;
    totals->add(report, simulation.fault_counts());
  }
  print(*totals);
  if (count >= kAllMeetFrom) expect_all_met(*totals);
}

class Failover : public testing::TestWithParam<uint64_t> {};
class FailoverLong : public testing::TestWithParam<uint64_t> {};

TEST_P(Failover, NothingIsLostAndNothingHangs) {
  run_seeds(base::read_number("FAILOVER_FIRST_SEED", 1) + GetParam() * kSeeds,
            base::read_number("FAILOVER_SEEDS", kSeeds));
}

TEST_P(FailoverLong, NothingIsLostAndNothingHangs) {
  if (std::getenv("VERBENA_TEST_LONG") == nullptr) GTEST_SKIP() << "VERBENA_TEST_LONG is not set";
  run_seeds(1'000'000 + GetParam() * kLongSeeds, kLongSeeds);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Failover, testing::Range<uint64_t>(0, kShares));
INSTANTIATE_TEST_SUITE_P(Seeds, FailoverLong, testing::Range<uint64_t>(0, kShares));

}  // namespace
}  // namespace verbena::protocol::simulation
