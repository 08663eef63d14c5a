// Ports that do not reach themselves: the host routes their address through a switch that does not return it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "transport/one_sided/support/traffic.h"
#include "transport/support/faulty_devices.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

using testing::HasSubstr;

constexpr size_t kBytes = 1000;

// Two ranks that are connected to each other, with a device of its own each, and not to themselves.
void run_apart(const std::function<void(Ranks&, verbs::faulty::Hooks&)>& body) {
  run_process([&] {
    for (const auto& [name, value] : choose_faulty_devices()) setenv(name.c_str(), value.c_str(), 1);
    setenv("VERBENA_RAIL_RETRY_MS", "10", 1);
    setenv("VERBENA_FAILOVER_TIMEOUT_MS", "500", 1);
    verbs::faulty::Hooks& hooks = find_hooks();
    hooks.reaches_no_self = true;
    Ranks ranks = make_group(2, {.lanes = 2, .pushes_all_gets = true});
    fill(ranks[1]->memory().first(kBytes), 5);
    ASSERT_EQ(ranks[0]->endpoint().put({1, 0, kRegion, kRegion, 0, 8192, kBytes}, 0), Posting::kTaken);
    EXPECT_TRUE(ranks[0]->drain(1));
    body(ranks, hooks);
  });
}

bool get(Ranks& ranks) {
  Rank& rank = *ranks[0];
  EXPECT_EQ(rank.endpoint().get({1, 0, kRegion, kRegion, 4096, 0, kBytes}, 7), Posting::kTaken);
  const uint64_t aim = rank.endpoint().count_taken(1, 0);
  EXPECT_TRUE(poll_all(ranks, [&] { return rank.count_done(1, 0) == aim || rank.count_failures(1) != 0; }));
  return rank.count_failures(1) == 0 && holds(rank.memory().subspan(4096, kBytes), 5);
}

TEST(GetPushTest, APortThatReachesItselfLaterPushesTheGetsThatWait) {
  run_apart([](Ranks& ranks, verbs::faulty::Hooks& hooks) {
    Rank& rank = *ranks[0];
    EXPECT_EQ(rank.endpoint().get({1, 0, kRegion, kRegion, 4096, 0, kBytes}, 7), Posting::kTaken);
    const int before = hooks.self_connects;
    EXPECT_TRUE(poll_all(ranks, [&] { return hooks.self_connects >= before + 2; }));
    EXPECT_EQ(rank.count_done(1, 0), 1U) << "a get that was not pushed";
    hooks.reaches_no_self = false;
    EXPECT_TRUE(get(ranks));
  });
}

TEST(GetPushTest, APortThatNeverReachesItselfFailsGetsAndSaysWhy) {
  run_apart([](Ranks& ranks, verbs::faulty::Hooks&) {
    EXPECT_FALSE(get(ranks));
    EXPECT_THAT(ranks[0]->endpoint().error(1),
                HasSubstr("the plugin could not create the queue pair that connects the port to itself"));
  });
}

// Begins a get whose own READ is carried out; the READ that pushes its data is never reported.
void begin_swallowed(Ranks& ranks, verbs::faulty::Hooks& hooks) {
  hooks.reaches_no_self = false;
  EXPECT_TRUE(get(ranks));
  const int before = hooks.reads[0];
  EXPECT_EQ(ranks[0]->endpoint().get({1, 0, kRegion, kRegion, 4096, 0, kBytes}, 7), Posting::kTaken);
  ranks[0]->endpoint().ring();
  EXPECT_EQ(hooks.reads[0], before + 1);
  hooks.swallows_reads = true;
  EXPECT_TRUE(poll_all(ranks, [&] { return hooks.reads[0] == before + 2; }));
}

TEST(GetPushTest, AReadThatIsNotReportedIsPostedAgain) {
  run_apart([](Ranks& ranks, verbs::faulty::Hooks& hooks) {
    begin_swallowed(ranks, hooks);
    hooks.swallows_reads = false;
    EXPECT_TRUE(get(ranks));
  });
}

TEST(GetPushTest, AReadThatIsNeverReportedFailsGetsAndSaysWhy) {
  run_apart([](Ranks& ranks, verbs::faulty::Hooks& hooks) {
    begin_swallowed(ranks, hooks);
    EXPECT_TRUE(poll_all(ranks, [&] { return ranks[0]->count_failures(1) != 0; }));
    EXPECT_THAT(ranks[0]->endpoint().error(1),
                HasSubstr("the device reports no completions of the requests of this queue pair"));
  });
}

// The first of two devices, of both ranks, which was to carry the words: between opening and connecting.
TEST(FailedDeviceTest, RanksConnectWithoutIt) {
  run_process([&] {
    for (const auto& [name, value] : choose_faulty_devices()) setenv(name.c_str(), value.c_str(), 1);
    setenv("SOFTVERBS_DEVICES", "2", 1);
    choose_devices();
    Ranks ranks;
    for (const uint32_t rank : {0, 1})
      ranks.push_back(std::make_unique<Rank>(
          EndpointOptions{.rank = rank, .count_ranks = 2, .rails = 2, .lanes = 1}, 1 << 20));
    find_hooks().end_device(0);
    std::string error;
    std::vector<std::byte> told[2];
    for (const uint32_t rank : {0, 1}) told[rank] = ranks[rank]->endpoint().local_address(1 - rank, &error);
    for (const uint32_t rank : {0, 1}) {
      verbena::Endpoint& endpoint = ranks[rank]->endpoint();
      ASSERT_TRUE(endpoint.connect(1 - rank, told[1 - rank], &error)) << error;
      const auto region = ranks[1 - rank]->endpoint().region_address(kRegion);
      ASSERT_TRUE(endpoint.add_remote_region(1 - rank, kRegion, region, &error)) << error;
    }
    fill(ranks[0]->memory().first(kBytes), 5);
    ASSERT_EQ(ranks[0]->endpoint().put({1, 0, kRegion, kRegion, 0, 8192, kBytes}, 0), Posting::kTaken);
    ASSERT_EQ(ranks[0]->endpoint().add_word({1, 0, kRegion, 0}, 1, 0), Posting::kTaken);
    EXPECT_TRUE(poll_all(ranks, [&] { return ranks[0]->count_done(1, 0) == 2; }));
    EXPECT_TRUE(holds(ranks[1]->memory().subspan(8192, kBytes), 5));
    EXPECT_EQ(ranks[1]->word(0).load(), 1U);
  });
}

TEST(OwnLaneTest, APortThatReachesItselfLaterPutsToItself) {
  run_apart([](Ranks& ranks, verbs::faulty::Hooks& hooks) {
    Rank& rank = *ranks[1];
    ASSERT_EQ(rank.endpoint().put({1, 1, kRegion, kRegion, 0, 4096, kBytes}, 7), Posting::kTaken);
    const int before = hooks.self_connects;
    EXPECT_TRUE(poll_all(ranks, [&] { return hooks.self_connects >= before + 2; }));
    hooks.reaches_no_self = false;
    EXPECT_TRUE(rank.drain(1, 1));
    EXPECT_TRUE(holds(rank.memory().subspan(4096, kBytes), 5));
  });
}

}  // namespace
}  // namespace verbena::transport
