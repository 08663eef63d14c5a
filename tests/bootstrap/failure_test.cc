// Ranks that never come, come late to a call, are out of step, leave, or die: the others end, and name them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/support/ranks.h"
#include "tests/base/log_capture.h"

namespace verbena::bootstrap {
namespace {

using testing::HasSubstr;

struct Case {
  uint32_t count_ranks, fan_out;
  uint32_t absent;
};

std::string show(const testing::TestParamInfo<Case>& info) {
  return std::to_string(info.param.count_ranks) + "RanksFanOut" + std::to_string(info.param.fan_out) +
         "Without" + std::to_string(info.param.absent);
}

class AbsenceTest : public testing::TestWithParam<Case> {
 protected:
  // Every line names the absent rank.
  void expect_named(size_t lines) {
    const auto warnings = log_.warnings();
    EXPECT_EQ(warnings.size(), lines);
    const std::string name = "rank " + std::to_string(GetParam().absent);
    for (const std::string& line : warnings) EXPECT_THAT(line, HasSubstr("waited for " + name));
  }

  base::LogCapture log_;
};

TEST_P(AbsenceTest, WhoNeverComesIsNamed) {
  const auto [count, fan_out, absent] = GetParam();
  const UniqueId id = take(make_unique_id(), "id");
  run_as_threads(count, [&](uint32_t rank) {
    if (rank == GetParam().absent) return;
    const auto joined = Bootstrap::join(id, rank, count, {.timeout_ms = 3'000, .fan_out = fan_out});
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().status, base::Status::kTimeout) << "rank " << rank;
  });
  expect_named(count - 1);
}

TEST_P(AbsenceTest, WhoDoesNotCallIsNamed) {
  const auto [count, fan_out, absent] = GetParam();
  std::atomic<uint32_t> ended{0};
  run_joined(count,
             [&](Bootstrap& bootstrap) {
               ASSERT_TRUE(bootstrap.barrier());
               bootstrap.set_timeout_ms(1'000);
               if (bootstrap.rank() == GetParam().absent) {
                 const auto limit = base::Deadline::after_ms(20'000);
                 while (ended.load() < count - 1 && !limit.has_passed()) std::this_thread::yield();
                 return;
               }
               EXPECT_EQ(bootstrap.barrier().status(), base::Status::kTimeout);
               EXPECT_EQ(bootstrap.barrier().status(), base::Status::kTimeout)
                   << "the first error is the last";
               ended.fetch_add(1);
             },
             {.timeout_ms = 30'000, .fan_out = fan_out});
  expect_named(count - 1);
}

INSTANTIATE_TEST_SUITE_P(Absences, AbsenceTest,
                         testing::Values(Case{2, 64, 0}, Case{5, 64, 3}, Case{7, 2, 1}, Case{7, 2, 6}), show);

// Runs in a separate process; returns 0 if the bootstrap failed with `text`.
int expect_failure(base::Outcome outcome, const base::LogCapture& log, const std::string& text) {
  if (outcome) return 1;
  for (const std::string& line : log.warnings()) {
    if (line.find(text) != std::string::npos) return 0;
  }
  for (const std::string& line : log.warnings()) std::fprintf(stderr, "%s\n", line.c_str());
  return 2;
}

class DeathTest : public testing::TestWithParam<Case> {};

TEST_P(DeathTest, EndsTheOthersAtOnce) {
  const auto [count, fan_out, dying] = GetParam();
  const UniqueId id = take(make_unique_id(), "id");
  const std::string name = "rank " + std::to_string(dying) + " disconnected";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Processes ranks(count, [&, count = count, fan_out = fan_out, dying = dying](uint32_t rank) {
    base::LogCapture log;
    auto bootstrap = Bootstrap::join(id, rank, count, {.timeout_ms = 10 * kPatienceMs, .fan_out = fan_out});
    if (!bootstrap || !bootstrap->barrier()) return 3;
    if (rank == dying) {
      if (write(ready[1], "x", 1) != 1) return 4;
      pause();
    }
    return expect_failure(bootstrap->barrier(), log, name);
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  ranks.kill(dying);
  std::vector<int> expected(count, 0);
  expected[dying] = 128 + SIGKILL;
  EXPECT_EQ(ranks.await(kPatienceMs), expected) << "255: a rank waited for its deadline";
}

INSTANTIATE_TEST_SUITE_P(Deaths, DeathTest,
                         testing::Values(Case{2, 64, 0}, Case{2, 64, 1}, Case{6, 64, 4}, Case{7, 2, 1},
                                         Case{7, 2, 5}, Case{7, 2, 0}),
                         show);

TEST(Leaving, IsNamedSo) {
  base::LogCapture log;
  std::atomic<bool> has_left{false};
  const UniqueId id = take(make_unique_id(), "id");
  run_as_threads(3, [&](uint32_t rank) {
    {
      auto bootstrap = take(Bootstrap::join(id, rank, 3), "bootstrap");
      if (rank != 2) {
        while (!has_left.load()) std::this_thread::yield();
        EXPECT_EQ(bootstrap.barrier().status(), base::Status::kRemote);
      }
    }
    has_left.store(true);
  });
  EXPECT_THAT(log.warnings(), testing::Each(HasSubstr("rank 2 has closed its connection")));
  EXPECT_EQ(log.warnings().size(), 2U);
}

TEST(LookingAround, SeesADeathWithoutACall) {
  const UniqueId id = take(make_unique_id(), "id");
  Processes ranks(3, [&](uint32_t rank) {
    base::LogCapture log;
    auto bootstrap = Bootstrap::join(id, rank, 3);
    if (!bootstrap || !bootstrap->check_ranks() || !bootstrap->barrier()) return 3;
    if (rank == 1) raise(SIGKILL);
    const auto deadline = base::Deadline::after_ms(kPatienceMs);
    while (bootstrap->check_ranks() && !deadline.has_passed()) usleep(1000);
    return expect_failure(bootstrap->barrier(), log, "rank 1 disconnected");
  });
  EXPECT_EQ(ranks.await(kPatienceMs), (std::vector<int>{0, 128 + SIGKILL, 0}));
}

TEST(OutOfStep, BothCallsAreNamed) {
  base::LogCapture log;
  run_joined(3, [](Bootstrap& bootstrap) {
    std::vector<std::byte> all(3 * 8), mine(8);
    const auto outcome = bootstrap.rank() == 1 ? bootstrap.all_gather(mine, all) : bootstrap.barrier();
    EXPECT_EQ(outcome.status(), base::Status::kInvalidUsage);
  });
  for (const std::string& line : log.warnings()) {
    EXPECT_THAT(line, HasSubstr("rank 1 is in all-gather 2 with 8 bytes, rank 0 in barrier 2 with 0"));
  }
  EXPECT_EQ(log.warnings().size(), 3U);
}

// The rendezvous lives on with the first that came.
TEST(Joining, AnotherCountOrATakenRankIsRefused) {
  base::LogCapture log;
  const UniqueId id = take(make_unique_id(), "id");
  const Meeting meeting = take(parse(id), "meeting");
  const auto deadline = base::Deadline::after_ms(kPatienceMs);
  // Returns once the rendezvous knows the rank: that of rank 0 awaits nobody, and its children are told of
  // it.
  const auto register_rank = [&](uint32_t rank, const base::SocketAddress& own) {
    const TreeLinks::Place place{TreeShape{.count_ranks = 3}, rank, meeting.nonce, meeting.secret};
    return ask_for_parent(meeting, place, own, deadline, Patience::kNone);
  };
  ASSERT_TRUE(register_rank(0, meeting.address));
  const auto join = [&](uint32_t rank, uint32_t count) {
    return Bootstrap::join(id, rank, count, {.timeout_ms = kPatienceMs});
  };
  EXPECT_EQ(join(1, 4).error().status, base::Status::kRemote);
  EXPECT_EQ(join(0, 3).error().status, base::Status::kRemote);
  EXPECT_THAT(log.warnings(),
              testing::IsSupersetOf({HasSubstr("the peer expects a different number of ranks (3)"),
                                     HasSubstr("another process has already joined as this rank")}));
  for (const uint32_t rank : {1U, 2U}) {
    const auto parent = register_rank(rank, {});
    ASSERT_TRUE(parent);
    EXPECT_EQ(base::describe(*parent), base::describe(meeting.address)) << rank;
  }
}

TEST(Joining, ARendezvousThatHasGoneIsSeenAtOnce) {
  base::LogCapture log;
  auto rendezvous = take(Rendezvous::open({}, 10'000), "rendezvous");
  const UniqueId id = rendezvous->id();
  std::thread rank([&] {
    EXPECT_EQ(Bootstrap::join(id, 1, 2, {.timeout_ms = 20'000}).error().status, base::Status::kRemote);
  });
  usleep(50'000);
  rendezvous.reset();
  rank.join();
  EXPECT_EQ(Bootstrap::join(id, 1, 2, {.timeout_ms = 20'000}).error().status, base::Status::kRemote);
  EXPECT_THAT(log.warnings().back(), HasSubstr("the peer cannot be reached: Connection refused"));
}

}  // namespace
}  // namespace verbena::bootstrap
