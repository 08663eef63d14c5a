// The engines' code on simulated networks: nothing is lost, doubled or misplaced, nobody stands still, and
// the goodput that the design is for is reached. Virtual time: how fast the machine is does not matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "protocol/datagram/simulation/scenario.h"
#include "tests/base/scoped_environment.h"

namespace verbena::protocol::datagram::sim {
namespace {

void run_small_worlds(uint64_t first, uint64_t count) {
  int failures = 0;
  for (uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    const std::string problem = run_small(seed);
    EXPECT_EQ(problem, "");
    failures += problem.empty() ? 0 : 1;
  }
}

TEST(DatagramSimulation, SmallWorlds) {
  run_small_worlds(base::read_number("DATAGRAM_FIRST_SEED", 1),
                   base::read_number("DATAGRAM_SEEDS", VERBENA_IS_SANITIZED ? 60 : 1500));
}
TEST(DatagramSimulationLong, SmallWorlds) {
  run_small_worlds(100'000, base::read_number("DATAGRAM_SEEDS", 100'000));
}

struct Bar {
  const char* scenario;
  double goodput, fairness;
};
Report expect(const Bar& bar) {
  Scenario scenario;
  EXPECT_EQ(scenario.read(bar.scenario), "");
  const Report report = run(scenario);
  std::printf("%s\n%s", bar.scenario, report.describe(scenario).c_str());
  EXPECT_GE(report.goodput, bar.goodput) << bar.scenario;
  EXPECT_GE(report.most > 0 ? report.least / report.most : 0, bar.fairness) << bar.scenario;
  EXPECT_EQ(report.totals.wrong, 0U) << bar.scenario;
  EXPECT_EQ(report.totals.silent, 0U) << bar.scenario;
  EXPECT_EQ(report.dropped, 0U) << bar.scenario << ": no port may overflow";
  return report;
}

TEST(DatagramSimulation, OneFlowKeepsTheLineBusyWhateverIsLost) {
  for (const Bar& bar :
       {Bar{"name=flow", 0.99, 1}, Bar{"name=flow loses=1000", 0.98, 1},
        Bar{"name=flow loses=10000", 0.97, 1}, Bar{"name=flow loses=10000 reorders=64", 0.95, 1},
        Bar{"name=flow loses=100000 reorders=64", 0.80, 1},
        Bar{"name=flow loses=300000 reorders=256", 0.20, 1}, Bar{"name=flow loses=500000", 0.10, 1},
        Bar{"name=flow doubles=10000 reorders=64", 0.95, 1}, Bar{"name=flow planes=4 gigabits=100", 0.97, 1}})
    expect(bar);
}

// Reordering alone makes nobody send anything again.
TEST(DatagramSimulation, ReorderingIsNoLoss) {
  EXPECT_EQ(expect({"name=flow reorders=64", 0.98, 1}).engine.resent_packets, 0U);
  // Paths of very different lengths: what counts as late on one path does not across them.
  EXPECT_EQ(expect({"name=flow skew_ns=3000", 0.7, 1}).engine.resent_packets, 0U);
}

TEST(DatagramSimulation, IncastsShareTheirLinkAndDropNothing) {
  const Report small = expect({"name=incast senders=16 bytes=262144 warm_ns=2e6 run_ns=12e6", 0.98, 0.85});
  EXPECT_LE(small.last_hop_queue, 800U);
  EXPECT_LE(small.p99_us, 1.1 * small.p50_us);
  const Report lossy = expect(
      {"name=incast senders=16 bytes=262144 loses=10000 reorders=64 warm_ns=2e6 run_ns=12e6", 0.97, 0.8});
  EXPECT_LE(lossy.peak_pages, 12 * 65U + 512);
}

TEST(DatagramSimulation, ManyToManyFillsTheFabric) {
  expect({"name=permutation leaf_hosts=4 leaves=8 spines=4 run_ns=500000 warm_ns=500000", 0.86, 0.7});
  expect({"name=alltoall hosts=16 bytes=131072 warm_ns=500000 run_ns=1000000", 0.93, 0.5});
}

// 100 us after the death of one of eight spines a flow has its full rate again.
TEST(DatagramSimulation, APathThatDiesIsLeftAtOnce) {
  const Report report = expect({"name=flow fault=spine fault_ns=1500000 bin_ns=20000", 0.98, 1});
  const size_t dead_bin = 1'500'000 / 20'000;
  for (size_t bin = dead_bin + 5; bin < report.bins.size(); ++bin)
    EXPECT_GE(report.bins[bin], 0.97) << (bin - dead_bin) * 20 << " us after it";
  EXPECT_GT(report.swallowed, 0U) << "it did die";
}

// With messages announced, and while it is not known that they have stopped.
TEST(DatagramSimulation, HostsThatStopForGoodTakeNothingFromTheOthers) {
  const std::string fault = " fault=hosts fault_ns=2e6 warm_ns=2e6 run_ns=10e6 bin_ns=1e5";
  for (const char* const who : {"senders=16 stopped=1", "senders=16 stopped=4", "senders=2 stopped=1"}) {
    const Report report = expect({("name=incast " + (who + fault)).c_str(), 0.98, 0});
    EXPECT_GE(*std::min_element(report.bins.begin() + 20, report.bins.end()), 0.9) << who;
  }
  // So many leave little until their grants are taken back.
  const Report report = expect({("name=incast senders=16 stopped=15" + fault).c_str(), 0.4, 0});
  EXPECT_GE(*std::min_element(report.bins.begin() + 20, report.bins.end()), 0.1);
  EXPECT_GE(*std::min_element(report.bins.begin() + 85, report.bins.end()), 0.9);
}

// 64 KiB beside eight senders of 64 MiB: a line's time for what is granted already, and its own.
TEST(DatagramSimulation, AShortMessageWaitsForNoLongOne) {
  Scenario scenario;
  World world(scenario.shape, scenario.temper, scenario.host, scenario.engine, 1);
  Flow flow;
  flow.bytes = 64 << 20;
  for (flow.source = 1; flow.source <= 8; ++flow.source) world.add_flow(flow);
  flow.bytes = 64 << 10;
  flow.depth = 1;
  const uint32_t brief = world.add_flow(flow);
  int64_t longest_ns = 0;
  world.on_received = [&](uint32_t id, uint64_t number) {
    if (id == brief)
      longest_ns = std::max(longest_ns, world.now_ns() - world.flow(id).began_ns[number % kRing]);
  };
  for (uint32_t f = 0; f < world.flows(); ++f) world.fill(f);
  world.run(10'000'000);
  EXPECT_GE(world.flow(brief).received, 100U);
  EXPECT_LE(longest_ns, 200'000);
}

TEST(DatagramSimulation, ADeadRailIsDeadPaths) {
  const Report report =
      expect({"name=flow planes=4 gigabits=100 fault=rail fault_ns=1500000 bin_ns=50000", 0.6, 1});
  for (size_t bin = 1'500'000 / 50'000 + 4; bin < report.bins.size(); ++bin)
    EXPECT_GE(report.bins[bin], 0.65) << "three of four are left: bin " << bin;
}

TEST(DatagramSimulation, ASlowEndHoldsUpNoOther) {
  expect({"name=flow poll_gap_ns=200000", 0.3, 1});
  expect({"name=flow consume_ns=200000 pages=2048", 0.6, 1});
}

TEST(DatagramSimulation, StepsThatWaitForEachOtherAreDone) {
  for (const char* const text :
       {"name=ring leaf_hosts=8 leaves=8 spines=4 steps=16 bytes=65536 run_ns=20e6",
        "name=tree leaf_hosts=8 leaves=8 spines=4 steps=8 bytes=65536 run_ns=20e6"}) {
    Scenario scenario;
    ASSERT_EQ(scenario.read(text), "");
    const Report clean = run(scenario);
    EXPECT_EQ(clean.leftovers, "") << text;
    EXPECT_EQ(clean.totals.wrong, 0U);
    ASSERT_EQ(scenario.read(std::string(text) + " fault=links links=4"), "");
    const Report broken = run(scenario);
    EXPECT_EQ(broken.leftovers, "") << text << ", with links that die";
    EXPECT_LE(broken.p50_us, 1.05 * clean.p50_us) << text;
  }
}

// The figures of the table in docs/measurements, of the size that they are about.
TEST(DatagramSimulationLong, Figures) {
  expect({"name=incast senders=64 warm_ns=12e6 run_ns=220e6", 0.98, 0.9});
  expect({"name=incast senders=120 warm_ns=22e6 run_ns=420e6", 0.98, 0.9});
  expect({"name=permutation run_ns=2e6", 0.90, 0.75});
  expect({"name=permutation loses=10000 reorders=64 run_ns=2e6", 0.88, 0.7});
  expect({"name=alltoall hosts=32 bytes=131072", 0.95, 0.7});
}

// A hundred million packets, all faults at once.
TEST(DatagramSimulationLong, EveryPacketArrivesThoughATenthIsLost) {
  const Report report =
      expect({"name=incast senders=16 leaf_hosts=4 leaves=5 spines=4 loses=100000 reorders=64 "
              "doubles=1000 damages=1000 warm_ns=1e6 run_ns=7.4e9 bin_ns=1e8",
              0.95, 0.95});
  EXPECT_GE(report.engine.sent_packets, 100'000'000U);
  EXPECT_LE(report.max_us, 4 * report.p50_us) << "none waited for long";
}

}  // namespace
}  // namespace verbena::protocol::datagram::sim
