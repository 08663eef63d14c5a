// Rails that fail under load, by plans of faults: what was under way goes on over the others, or over the
// same one once it is back. Every put is there when the word behind it is, every add has happened exactly
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <numeric>

#include "base/parameters.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "transport/one_sided/support/group.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kSlots = 64, kSlotBytes = 24'000;
constexpr size_t kData = 1 << 20;           // where the puts of a rank land at its peers
constexpr size_t kFlags = 0, kSums = 4096;  // words, by rank and lane; by rank
constexpr uint32_t kLanes = 2;

struct Plan {
  const char* name;
  const char* devices;
  const char* faults;
  const char* retry_ms = "20";
};
std::ostream& operator<<(std::ostream& out, const Plan& plan) {
  return out << plan.name;
}

// All of them poll, as the drivers of all ranks do.
bool poll_all(std::vector<std::unique_ptr<Rank>>& ranks, const std::function<bool()>& done) {
  const auto deadline = base::Deadline::after_ms(Rank::kPatienceMs);
  while (!done()) {
    for (const auto& rank : ranks) {
      rank->endpoint().ring();
      rank->poll();
    }
    if (deadline.has_passed()) return false;
  }
  return true;
}

protocol::LaneCounts count_failures(std::vector<std::unique_ptr<Rank>>& ranks) {
  protocol::LaneCounts sum;
  for (const auto& rank : ranks) {
    const auto counts = static_cast<OneSidedEndpoint&>(rank->endpoint()).count_failures();
    sum.failed_queue_pairs += counts.failed_queue_pairs;
    sum.revived_queue_pairs += counts.revived_queue_pairs;
    sum.replayed_requests += counts.replayed_requests;
  }
  return sum;
}

// In a process of its own, whose settings are its own.
void run_with(const Plan& plan, const std::function<void(std::vector<std::unique_ptr<Rank>>&)>& body,
              EndpointOptions options = {.lanes = kLanes, .send_depth = 64}) {
  run_processes({[&](Channel& channel) {
                  setenv("SOFTVERBS_DEVICES", plan.devices, 1);
                  setenv("SOFTVERBS_FAULTS", plan.faults, 1);
                  setenv("VERBENA_RAIL_RETRY_MS", plan.retry_ms, 1);
                  setenv("VERBENA_ACK_TIMEOUT", "12", 1);
                  setenv("VERBENA_RETRY_COUNT", "1", 1);
                  setenv("VERBENA_MIN_STRIPE_BYTES", "4096", 1);
                  auto ranks = make_group(3, options, 8 << 20);
                  body(ranks);
                  channel.meet();
                }},
                {[](Channel& channel) { channel.meet(); }});
}

class OneSidedFailoverTest : public testing::TestWithParam<Plan> {};

// Each rank puts to every rank, its own too, over each lane: a slot's bytes, then the flag with the round's
// number, and an add to a word that all ranks add to. Whoever sees the flag finds the bytes.
TEST_P(OneSidedFailoverTest, EveryPutIsThereWhenItsWordIsAndEveryAddHappensOnce) {
  run_with(GetParam(), [](auto& ranks) {
    constexpr uint64_t kRounds = 120;
    const auto slot_of = [](uint32_t from, uint32_t lane) {
      return kData + (size_t{from} * kLanes + lane) * kSlotBytes;
    };
    const auto flag_of = [](uint32_t from, uint32_t lane) { return kFlags + (from * kLanes + lane) * 64; };
    uint64_t addends = 0;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const size_t length = 1 + round * 7919 % kSlotBytes;
      for (auto& from : ranks) {
        fill(from->memory().subspan(4 << 20, length), round);
        for (uint32_t to = 0; to < 3; ++to) {
          for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const size_t slot = slot_of(from->rank(), lane), flag = flag_of(from->rank(), lane);
            ASSERT_EQ(from->endpoint().put({to, lane, kRegion, kRegion, 4 << 20, slot, length}, 0),
                      Posting::kTaken);
            ASSERT_EQ(from->endpoint().write_word({to, lane, kRegion, flag}, round, 0), Posting::kTaken);
            ASSERT_EQ(from->endpoint().add_word({to, lane, kRegion, kSums}, round, round), Posting::kTaken);
          }
        }
      }
      addends += 3 * kLanes * round;
      const auto is_here = [&] {
        for (const auto& to : ranks) {
          for (uint32_t from = 0; from < 3; ++from)
            for (uint32_t lane = 0; lane < kLanes; ++lane)
              if (to->word(flag_of(from, lane)).load(std::memory_order_acquire) != round) return false;
        }
        return true;
      };
      ASSERT_TRUE(poll_all(ranks, is_here)) << "round " << round;
      for (const auto& to : ranks)
        for (uint32_t from = 0; from < 3; ++from)
          for (uint32_t lane = 0; lane < kLanes; ++lane)
            ASSERT_TRUE(holds(to->memory().subspan(slot_of(from, lane), length), round));
      ASSERT_TRUE(poll_all(ranks,
                           [&] {
                             for (const auto& from : ranks)
                               for (uint32_t to = 0; to < 3; ++to)
                                 for (uint32_t lane = 0; lane < kLanes; ++lane)
                                   if (from->count_done(to, lane) != 3 * round) return false;
                             return true;
                           }))
          << "round " << round;
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->word(kSums).load(), addends);
      for (uint32_t peer = 0; peer < 3; ++peer) EXPECT_EQ(rank->endpoint().error(peer), "");
    }
    const protocol::LaneCounts counts = count_failures(ranks);
    EXPECT_GT(counts.failed_queue_pairs, 0U) << "the plan has struck";
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
        Plan{"TheOnlyRailBlinks", "1", "down nth=700 for=100ms"}),
    [](const auto& plan) { return std::string(plan.param.name); });

// Long puts over two rails, each stripe in its place, with a rail that fails in the middle.
TEST(OneSidedStripesTest, LongPutsAndGetsTakeAllRailsAndSurviveOne) {
  run_with({"", "2", "fail status=RETRY_EXC work=done rail=1 every=9"}, [](auto& ranks) {
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
  run_with({"", "1", "fail status=RETRY_EXC work=done every=40 per=qp opcode=ATOMIC_FETCH_AND_ADD"},
           [](auto& ranks) {
             constexpr uint64_t kAdds = 400;
             Rank& rank = *ranks[0];
             for (uint64_t i = 0; i < kAdds; ++i) {
               ASSERT_TRUE(poll_all(ranks, [&] {
                 return rank.endpoint().add_word({1, 0, kRegion, kSums}, 1, i + 1) == Posting::kTaken;
               }));
             }
             ASSERT_TRUE(poll_all(ranks, [&] { return rank.count_done(1, 0) == kAdds; }));
             EXPECT_EQ(ranks[1]->word(kSums).load(), kAdds);
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

// A push of gets into GPU memory whose queue pair fails is asked for again.
TEST(OneSidedPushTest, AFailedPushIsRepeated) {
  run_with({"", "1", "fail status=RETRY_EXC work=none opcode=RDMA_READ every=5"},
           [](auto& ranks) {
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
  std::string error;
  setenv("SOFTVERBS_DEVICES", devices, 1);
  setenv("SOFTVERBS_FAULTS", faults, 1);
  setenv("VERBENA_ACK_TIMEOUT", "12", 1);
  setenv("VERBENA_FAILOVER_TIMEOUT_MS", "400", 1);
  setenv("VERBENA_RAIL_RETRY_MS", "20", 1);
  auto ranks = make_group(3, {.lanes = 1});
  Rank& rank = *ranks[0];
  EXPECT_TRUE(poll_all(ranks, [&] {
    if (rank.endpoint().error(1).empty()) {
      static_cast<void>(rank.endpoint().put({1, 0, kRegion, kRegion, 0, 0, 64}, 0));
      static_cast<void>(rank.endpoint().add_word({1, 0, kRegion, kSums}, 1, 0));
    }
    return !rank.endpoint().error(1).empty() && !ranks[1]->endpoint().error(0).empty();
  }));
  error = rank.endpoint().error(1) + "\n" + ranks[1]->endpoint().error(0);
  EXPECT_EQ(rank.count_failures(1), 1U) << "told once";
  return error;
}

TEST(OneSidedEndTest, WithoutAnyRailBothEndsSayWhy) {
  run_processes({[](Channel& channel) {
                  const std::string error = fail_for_good("2", "down rail=0 nth=50; down rail=1 nth=1");
                  EXPECT_THAT(error, AllOf(HasSubstr("rank 1, rail softverbs0:1"), HasSubstr("softverbs1:1"),
                                           HasSubstr("VERBENA_FAILOVER_TIMEOUT_MS 400 ms")));
                  channel.meet();
                }},
                {[](Channel& channel) { channel.meet(); }});
}

TEST(OneSidedEndTest, ARequestThatIsWrongEndsThePeerOnBothSides) {
  run_processes({[](Channel& channel) {
                  const std::string error =
                      fail_for_good("2", "fail nth=40 opcode=ATOMIC_FETCH_AND_ADD status=REM_ACCESS");
                  EXPECT_THAT(error,
                              AllOf(HasSubstr("remote access error"), HasSubstr("given this rank up")));
                  channel.meet();
                }},
                {[](Channel& channel) { channel.meet(); }});
}

}  // namespace
}  // namespace verbena::transport
