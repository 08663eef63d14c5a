// Rails that fail under load, by plans of faults: what was under way goes on over the others, or over the
// same one once it is back. Every put is there when the word behind it is, every add has happened exactly
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/scoped_environment.h"
#include "base/scratch_path.h"
#include "transport/one_sided/support/traffic.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr uint32_t kLanes = 2;
constexpr size_t kMostBytes = 24'000;  // of a put

struct Plan {
  const char* name;
  const char* devices;
  const char* faults;
  const char* retry_ms = "20";
};
std::ostream& operator<<(std::ostream& out, const Plan& plan) {
  return out << plan.name;
}

// In a process of its own, whose settings are its own.
void run_with(const Plan& plan, const std::function<void(Ranks&)>& body,
              EndpointOptions options = {.lanes = kLanes, .send_depth = 64}) {
  run_process([&] {
    setenv("SOFTVERBS_DEVICES", plan.devices, 1);
    setenv("SOFTVERBS_FAULTS", plan.faults, 1);
    setenv("VERBENA_RAIL_RETRY_MS", plan.retry_ms, 1);
    setenv("VERBENA_ACK_TIMEOUT", "12", 1);
    setenv("VERBENA_RETRY_COUNT", "1", 1);
    setenv("VERBENA_MIN_STRIPE_BYTES", "4096", 1);
    Ranks ranks = make_group(3, options, Traffic::kRegionBytes);
    body(ranks);
  });
}

class OneSidedFailoverTest : public testing::TestWithParam<Plan> {};

TEST_P(OneSidedFailoverTest, EveryPutIsThereWhenItsWordIsAndEveryAddHappensOnce) {
  run_with(GetParam(), [](Ranks& ranks) {
    Traffic traffic(ranks, kLanes, kMostBytes);
    for (int round = 0; round < 120 && traffic.play(); ++round) continue;
    traffic.expect_sums();
    EXPECT_GT(count_failures(ranks).failed_queue_pairs, 0U) << "the plan has struck";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, OneSidedFailoverTest,
    testing::Values(
        Plan{"LostAcknowledgements", "1", "fail status=RETRY_EXC work=done every=97 per=qp"},
        Plan{"LostRequests", "1", "fail status=RETRY_EXC work=none every=97 per=qp"},
        Plan{"SilentErrors", "2", "error every=211 per=qp"},
        Plan{"ErrorsAtBothEnds", "2", "fail status=RETRY_EXC peer=error every=173 per=qp"},
        Plan{"LostAdds", "2", "fail status=RETRY_EXC work=done every=31 per=qp opcode=ATOMIC_FETCH_AND_ADD"},
        Plan{"ARailThatBlinks", "2", "down rail=0 nth=400 for=60ms up=60ms flaps=5"},
        Plan{"TheWordsRailDiesForGood", "2", "down rail=0 nth=600"},
        Plan{"TheOtherRailDiesForGood", "2", "down rail=1 nth=300"},
        Plan{"ThreeRailsInTurn", "3",
             "down rail=0 nth=300 for=80ms; down rail=1 nth=400 for=80ms; down rail=2 nth=300 for=80ms"},
        Plan{"TheWordsDeviceFails", "2", "event type=DEVICE_FATAL rail=0 nth=600"},
        Plan{"TheOtherDeviceFails", "2", "event type=DEVICE_FATAL rail=1 nth=300"},
        Plan{"TheOnlyRailBlinks", "1", "down nth=700 for=100ms"}),
    [](const auto& plan) { return std::string(plan.param.name); });

// Counters and the trace of lanes, one of whose rails fails: written when the last lane is gone.
TEST(OneSidedObservationTest, FilesKnowOperationsAndTheRailThatFailed) {
  const tests::ScratchPath stats("stats"), trace("trace");
  const base::ScopedEnvironment environment({{"VERBENA_STATS", stats.get()}, {"VERBENA_TRACE", trace.get()}});
  run_with({"", "2", "down rail=1 nth=300"},
           [](Ranks& ranks) {
             Traffic traffic(ranks, kLanes, kMostBytes);
             for (int round = 0; round < 30; ++round) ASSERT_TRUE(traffic.play());
             traffic.expect_sums();
           },
           {.lanes = kLanes, .send_depth = 64, .is_observed = true});
  EXPECT_THAT(stats.read(), AllOf(ContainsRegex("verbena_messages_total.*one-sided.*peer=.rank 1.* [1-9]"),
                                  ContainsRegex("verbena_rail_failures_total.*softverbs1.* [1-9]")));
  EXPECT_THAT(trace.read(), AllOf(HasSubstr("one-sided to rank 2"), HasSubstr("failed: softverbs1:1")));
}

// Long puts over two rails, each stripe in its place, with a rail that fails in the middle.
TEST(OneSidedStripesTest, LongPutsAndGetsTakeAllRailsAndSurviveOne) {
  run_with({"", "2", "fail status=RETRY_EXC work=done rail=1 every=9"}, [](Ranks& ranks) {
    constexpr size_t kLong = 3'000'017;
    Rank& rank = *ranks[0];
    for (uint64_t round = 1; round <= 20; ++round) {
      fill(rank.memory().subspan(64, kLong), round);
      ASSERT_EQ(rank.endpoint().put({1, 0, kRegion, kRegion, 64, 4 << 20, kLong}, 0), Posting::kTaken);
      ASSERT_EQ(rank.endpoint().write_word({1, 0, kRegion, 0}, round, 0), Posting::kTaken);
      ASSERT_TRUE(
          poll_all(ranks, [&] { return ranks[1]->word(0).load(std::memory_order_acquire) == round; }));
      ASSERT_TRUE(holds(ranks[1]->memory().subspan(4 << 20, kLong), round)) << round;
      ASSERT_EQ(rank.endpoint().get({1, 0, kRegion, kRegion, 4 << 20, 4 << 20, kLong}, round),
                Posting::kTaken);
      ASSERT_TRUE(poll_all(ranks, [&] { return rank.count_done(1, 0) == 3 * round; }));
      ASSERT_TRUE(holds(rank.memory().subspan(4 << 20, kLong), round)) << round;
    }
    EXPECT_GT(count_failures(ranks).replayed_requests + count_failures(ranks).failed_queue_pairs, 0U);
  });
}

// The answers of adds: each value once, or told to be lost. What the word becomes is exact in any case.
TEST(OneSidedAnswersTest, AnAddWhoseAnswerIsLostSaysSo) {
  run_with(
      {"", "1", "fail status=RETRY_EXC work=done every=40 per=qp opcode=ATOMIC_FETCH_AND_ADD"},
      [](Ranks& ranks) {
        constexpr uint64_t kAdds = 400;
        Rank& rank = *ranks[0];
        for (uint64_t i = 0; i < kAdds; ++i) {
          ASSERT_TRUE(poll_all(ranks, [&] {
            return rank.endpoint().add_word({1, 0, kRegion, Traffic::kSums}, 1, i + 1) == Posting::kTaken;
          }));
        }
        ASSERT_TRUE(poll_all(ranks, [&] { return rank.count_done(1, 0) == kAdds; }));
        EXPECT_EQ(ranks[1]->word(Traffic::kSums).load(), kAdds);
        uint64_t lost = 0;
        ASSERT_EQ(rank.told().size(), kAdds);
        for (uint64_t i = 0; i < kAdds; ++i) {
          const EndpointCompletion& told = rank.told()[i];
          EXPECT_EQ(told.cookie, i + 1);
          lost += told.is_answer_lost;
          if (!told.is_answer_lost) {
            EXPECT_EQ(told.value, i);
          }
        }
        EXPECT_GE(lost, kAdds / 40);
        EXPECT_LT(lost, kAdds / 2);
      });
}

// The READs and WRITEs by which an agent changes words in GPU memory fail, and are repeated.
TEST(OneSidedAddTest, AddsByTheDeviceAreRepeatedAndHappenOnce) {
  const base::ScopedEnvironment environment({{"SOFTVERBS_PROFILE", "bnxt"}, {"VERBENA_SELF_TEST", "0"}});
  for (const char* faults : {"fail status=RETRY_EXC work=none opcode=RDMA_READ every=5",
                             "fail status=RETRY_EXC work=done every=61 per=qp"}) {
    run_with({"", "1", faults},
             [](Ranks& ranks) {
               Traffic traffic(ranks, kLanes, kMostBytes);
               for (int round = 0; round < 60 && traffic.play(); ++round) continue;
               traffic.expect_sums();
             },
             {.lanes = kLanes, .send_depth = 64, .pushes_all_gets = true});
  }
}

// The device does not report a READ of them.
TEST(OneSidedAddTest, AddsByADeviceThatFallsSilentAreRepeated) {
  const base::ScopedEnvironment environment(
      {{"SOFTVERBS_PROFILE", "bnxt"}, {"VERBENA_SELF_TEST", "0"}, {"VERBENA_FAILOVER_TIMEOUT_MS", "500"}});
  run_with({"", "1", "drop nth=9 opcode=RDMA_READ"},
           [](Ranks& ranks) {
             Traffic traffic(ranks, kLanes, kMostBytes);
             for (int round = 0; round < 10 && traffic.play(); ++round) continue;
             traffic.expect_sums();
           },
           {.lanes = kLanes, .send_depth = 64, .pushes_all_gets = true});
}

// A push of gets into GPU memory whose queue pair fails is asked for again.
TEST(OneSidedPushTest, AFailedPushIsRepeated) {
  run_with({"", "1", "fail status=RETRY_EXC work=none opcode=RDMA_READ every=5"},
           [](Ranks& ranks) {
             Rank& rank = *ranks[0];
             fill(ranks[1]->memory().first(1000), 5);
             for (uint64_t i = 1; i <= 50; ++i) {
               ASSERT_EQ(rank.endpoint().get({1, 0, kRegion, kRegion, 4096, 0, 1000}, i), Posting::kTaken);
               ASSERT_TRUE(poll_all(ranks, [&] { return rank.count_done(1, 0) == i; })) << i;
               EXPECT_TRUE(holds(rank.memory().subspan(4096, 1000), 5));
             }
           },
           {.lanes = 1, .pushes_all_gets = true});
}

std::string fail_for_good(const char* devices, const char* faults) {
  setenv("SOFTVERBS_DEVICES", devices, 1);
  setenv("SOFTVERBS_FAULTS", faults, 1);
  setenv("VERBENA_ACK_TIMEOUT", "12", 1);
  setenv("VERBENA_FAILOVER_TIMEOUT_MS", "400", 1);
  setenv("VERBENA_RAIL_RETRY_MS", "20", 1);
  Ranks ranks = make_group(3, {.lanes = 1});
  Rank& rank = *ranks[0];
  EXPECT_TRUE(poll_all(ranks, [&] {
    if (rank.endpoint().error(1).empty()) {
      static_cast<void>(rank.endpoint().put({1, 0, kRegion, kRegion, 0, 0, 64}, 0));
      static_cast<void>(rank.endpoint().add_word({1, 0, kRegion, Traffic::kSums}, 1, 0));
    }
    return !rank.endpoint().error(1).empty() && !ranks[1]->endpoint().error(0).empty();
  }));
  EXPECT_EQ(rank.count_failures(1), 1U) << "told once";
  return rank.endpoint().error(1) + "\n" + ranks[1]->endpoint().error(0);
}

TEST(OneSidedEndTest, WithoutAnyRailBothEndsSayWhy) {
  run_process([] {
    const std::string error = fail_for_good("2", "down rail=0 nth=50; down rail=1 nth=1");
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1, rail softverbs0:1"), HasSubstr("softverbs1:1"),
                             HasSubstr("VERBENA_FAILOVER_TIMEOUT_MS 400 ms")));
  });
}

TEST(OneSidedEndTest, ARequestThatIsWrongEndsThePeerOnBothSides) {
  run_process([] {
    const std::string error = fail_for_good("2", "fail nth=40 opcode=ATOMIC_FETCH_AND_ADD status=REM_ACCESS");
    EXPECT_THAT(error,
                AllOf(HasSubstr("remote access error"), HasSubstr("closed its connection to this rank")));
  });
}

}  // namespace
}  // namespace verbena::transport
