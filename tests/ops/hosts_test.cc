// Communicators of ranks in several hosts, which VERBENA_HOSTID makes of processes, over softverbs: teams
// that cannot be, calls that there are not, teams of both kinds side by side, a rank that does not come.
// verbena-bench coll checks what calls compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "ops/rank_process.h"

namespace verbena {
namespace {

using testing::HasSubstr;

TEST(OpsAcrossHosts, HostsHaveEquallyManyRanks) {
  const std::string said = run({0, 0, 1}, [](Rank& rank, uint32_t) -> std::string {
    const verbena_result result = rank.create(verbena_team_world(rank.context().handle()));
    return result == VERBENA_SUCCESS ? "was made" : verbena_last_error();
  });
  EXPECT_THAT(said, HasSubstr("not distributed evenly over its hosts: of the team's 3 ranks"));
  EXPECT_THAT(said, testing::Not(HasSubstr("was made")));
}

// Ranks 0 and 1 of one host, 2 and 3 of two: their teams are made by one call, and by others none is.
TEST(OpsAcrossHosts, TeamsOfOneHostAndOfSeveralSideBySide) {
  EXPECT_EQ(run({0, 0, 0, 1, 1},
                [](Rank& rank, uint32_t number) -> std::string {
                  const SymmetricTeam team =
                      rank.context().split(rank.context().world(), number == 4 ? -1 : number / 2);
                  check(rank.create(team.handle()));
                  if (number == 4) return "";
                  check(rank.all_reduce());
                  return rank.has_sum(2, number < 2 ? 1 : 5) ? "" : "wrong";
                }),
            "");
}

// Host 0 has ranks 0 and 2: sums go by hosts, whatever the order of ranks.
TEST(OpsAcrossHosts, RanksOfAHostNeedNotBeNeighbours) {
  EXPECT_EQ(run({0, 1, 0, 1},
                [](Rank& rank, uint32_t) -> std::string {
                  rank.create_for_all();
                  check(rank.all_reduce());
                  return rank.has_sum(4, 6) ? "" : "wrong";
                }),
            "");
}

TEST(OpsAcrossHosts, RefusesWhatThereIsNot) {
  const std::string said = run({0, 1}, [](Rank& rank, uint32_t) -> std::string {
    rank.create_for_all();
    std::string all;
    const auto refuse = [&](verbena_result result) {
      all += result == VERBENA_INVALID_USAGE ? "" : std::string(" not refused: ") + verbena_last_error();
    };
    for (const verbena_ops_algorithm algorithm :
         {VERBENA_OPS_ONE_SHOT, VERBENA_OPS_DIRECT, VERBENA_OPS_TWO_SHOT}) {
      const verbena_ops_choice choice{algorithm, 0, 0, 0};
      refuse(rank.all_reduce(&choice));
    }
    const verbena_ops_choice copies{VERBENA_OPS_COPY_ENGINES, 0, 0, 0};
    refuse(verbena_ops_all_gather(rank.ops(), rank.tensor(0), rank.tensor(1), 1, 64, &copies, nullptr));
    verbena_ops_norm norm{};
    norm.rows = 2;
    norm.hidden = 64;
    refuse(verbena_ops_reduce_scatter_norm_all_gather(rank.ops(), rank.tensor(0), rank.tensor(1),
                                                      VERBENA_OPS_BFLOAT16, &norm, nullptr, nullptr));
    return all;
  });
  EXPECT_EQ(said, "");
}

// The same numbers by either way of sending them; and where calls are compared, a rank that encodes and one
// that does not are told apart.
TEST(OpsAcrossHosts, LosslessCallsAreAskedForByAllRanks) {
  setenv("VERBENA_OPS_CHECK", "1", 1);
  const std::string said = run({0, 1}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    const verbena_ops_choice lossless{VERBENA_OPS_LOSSLESS, 0, 0, 0};
    const auto sum = [&](const verbena_ops_choice* choice) {
      auto* const input = reinterpret_cast<uint16_t*>(rank.tensor(0));
      // 1 and 2 as bfloat16.
      for (size_t i = 0; i < kCount; ++i) input[i] = number == 0 ? 0x3f80 : 0x4000;
      return verbena_ops_all_reduce(rank.ops(), input, rank.tensor(1), kCount, VERBENA_OPS_BFLOAT16,
                                    VERBENA_OPS_SUM, choice, nullptr);
    };
    for (const verbena_ops_choice* const choice :
         {&lossless, static_cast<const verbena_ops_choice*>(nullptr)}) {
      check(sum(choice));
      rank.synchronize();
      const auto* const output = reinterpret_cast<const uint16_t*>(rank.tensor(1));
      for (size_t i = 0; i < kCount; ++i)
        if (output[i] != 0x4040) return "wrong";
    }
    check(sum(number == 0 ? &lossless : nullptr));
    rank.synchronize();
    char text[512] = "";
    (void)verbena_ops_get_error(rank.ops(), text, sizeof(text));
    return text;
  });
  unsetenv("VERBENA_OPS_CHECK");
  EXPECT_THAT(said, HasSubstr("ranks 0 and 1 of the team make different calls"));
  EXPECT_THAT(said, HasSubstr("algorithm 32"));
  EXPECT_THAT(said, testing::Not(HasSubstr("wrong")));
}

// Rank 3 comes when the others have given up: all of them name it, and go on after a reset.
TEST(OpsAcrossHosts, NamesTheRankThatDoesNotComeAndGoesOn) {
  setenv("VERBENA_SYMM_TIMEOUT_MS", "1000", 1);
  EXPECT_EQ(run({0, 0, 1, 1},
                [](Rank& rank, uint32_t number) -> std::string {
                  rank.create_for_all();
                  check(rank.all_reduce());
                  if (!rank.has_sum(4, 6)) return "wrong";
                  if (number == 3) {
                    std::this_thread::sleep_for(std::chrono::seconds(3));
                  } else if (rank.all_reduce() != VERBENA_SUCCESS) {
                    return verbena_last_error();
                  }
                  rank.synchronize();
                  char text[512] = "";
                  const verbena_result result = verbena_ops_get_error(rank.ops(), text, sizeof(text));
                  if (result != VERBENA_TIMEOUT || std::string(text).find("of rank 3") == std::string::npos)
                    return std::string("said: ") + text;
                  check(verbena_ops_reset(rank.ops()));
                  check(rank.all_reduce());
                  return rank.has_sum(4, 6) ? "" : "wrong after a reset";
                }),
            "");
  unsetenv("VERBENA_SYMM_TIMEOUT_MS");
}

// Rank 3 does not come, and rank 2, of its host, begins later than rank 0, whose counterpart it is. Ranks
// that wait for another host wait longer: rank 2 gives up first, and all name rank 3, and not the one that
// waits for it.
TEST(OpsAcrossHosts, NamesTheRankThatDoesNotComeAndNotTheOneThatWaitsForIt) {
  setenv("VERBENA_SYMM_TIMEOUT_MS", "4000", 1);
  EXPECT_EQ(run({0, 0, 1, 1},
                [](Rank& rank, uint32_t number) -> std::string {
                  rank.create_for_all();
                  check(rank.all_reduce());
                  if (!rank.has_sum(4, 6)) return "wrong";
                  if (number == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
                  if (number == 3) {
                    std::this_thread::sleep_for(std::chrono::seconds(7));
                    return "";
                  }
                  check(rank.all_reduce());
                  rank.synchronize();
                  char text[512] = "";
                  const verbena_result result = verbena_ops_get_error(rank.ops(), text, sizeof(text));
                  const bool is_named = std::string(text).find("of rank 3") != std::string::npos;
                  return result == VERBENA_TIMEOUT && is_named ? "" : std::string("said: ") + text;
                }),
            "");
  unsetenv("VERBENA_SYMM_TIMEOUT_MS");
}

}  // namespace
}  // namespace verbena
