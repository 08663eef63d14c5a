// Teams: their members, the order of these, and that teams do not share words.
#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "symm/support/contexts.h"

namespace verbena::symm {
namespace {

using base::Status;
using base::SymmPath;

std::vector<uint32_t> count_from(uint32_t first, uint32_t count, uint32_t step) {
  std::vector<uint32_t> ranks(count);
  for (uint32_t i = 0; i < count; ++i) ranks[i] = first + i * step;
  return ranks;
}

class TeamTest : public testing::TestWithParam<SymmPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, TeamTest, testing::Values(SymmPath::kAuto, SymmPath::kRdma), name_path);

TEST_P(TeamTest, TheFirstAreTheWorldAndTheRanksInReach) {
  run_contexts(3, make_settings(GetParam()), [&](Context& context) {
    EXPECT_EQ(context.world().ranks(), count_from(0, 3, 1));
    EXPECT_EQ(context.world().rank(), context.rank());
    const bool reaches = GetParam() == SymmPath::kAuto;
    EXPECT_EQ(context.in_reach().ranks(), reaches ? count_from(0, 3, 1) : count_from(context.rank(), 1, 1));
    const SymmContext& kernel = context.world().context();
    EXPECT_EQ(kernel.lsa_size, reaches ? 3 : 1);
    EXPECT_EQ(kernel.lsa_mask, reaches ? 7U : 1U << context.rank());
    EXPECT_EQ(kernel.lsa_base_rank, reaches ? 0 : static_cast<int32_t>(context.rank()));
    EXPECT_EQ(kernel.has_remote, !reaches);
    EXPECT_EQ(kernel.queues.count != 0, !reaches);
  });
}

TEST_P(TeamTest, SplitsByColorAndKey) {
  run_contexts(5, make_settings(GetParam()), [](Context& context) {
    const uint32_t rank = context.rank();
    // The even ones backwards; rank 3 in none.
    const auto team =
        context.split_team(&context.world(), rank == 3 ? kNoColor : int64_t{rank % 2}, -int64_t{rank});
    ASSERT_TRUE(team);
    ASSERT_EQ(*team == nullptr, rank == 3);
    if (*team != nullptr) {
      EXPECT_EQ((*team)->ranks(),
                rank % 2 == 0 ? (std::vector<uint32_t>{4, 2, 0}) : std::vector<uint32_t>{1});
      EXPECT_EQ((*team)->ranks()[(*team)->rank()], rank);
      for (int32_t member = 0; member < (*team)->context().team_size; ++member)
        EXPECT_EQ((*team)->context().inline_world_ranks[member],
                  static_cast<int32_t>((*team)->ranks()[member]));
    }
    // Of a team: those that are not in it say so.
    const auto part = context.split_team(rank % 2 == 0 ? *team : nullptr, 0, rank == 2 ? 0 : 1);
    ASSERT_TRUE(part);
    ASSERT_EQ(*part == nullptr, rank % 2 != 0);
    if (*part != nullptr) {
      EXPECT_EQ((*part)->ranks(), (std::vector<uint32_t>{2, 0, 4}));
    }
  });
}

TEST_P(TeamTest, TakesAnyListOfRanks) {
  run_contexts(4, make_settings(GetParam()), [](Context& context) {
    const std::vector<uint32_t> list{3, 0, 2};
    const auto team = context.make_team(context.rank() == 1 ? std::vector<uint32_t>{} : list);
    ASSERT_TRUE(team);
    ASSERT_EQ(*team == nullptr, context.rank() == 1);
    if (*team != nullptr) {
      EXPECT_EQ((*team)->ranks(), list);
    }
    // Two lists at once.
    const auto pair = context.make_team(context.rank() < 2 ? count_from(0, 2, 1) : count_from(2, 2, 1));
    ASSERT_TRUE(pair && *pair != nullptr);
    EXPECT_EQ((*pair)->ranks().front(), context.rank() / 2 * 2);
  });
}

TEST_P(TeamTest, ListsThatDifferAreRefusedForAll) {
  run_contexts(3, make_settings(GetParam()), [](Context& context) {
    const auto team = context.make_team(context.rank() == 2 ? count_from(0, 3, 1) : count_from(0, 2, 1));
    EXPECT_EQ(team.error().status, Status::kInvalidArgument);
    EXPECT_TRUE(context.make_team(count_from(0, 3, 1)));
  });
}

TEST_P(TeamTest, HasWordsOfItsOwn) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    std::set<const uint64_t*> seen;
    for (int round = 0; round < 6; ++round) {
      const auto team = context.split_team(&context.world(), 0, 0);
      ASSERT_TRUE(team);
      const SymmContext& kernel = (*team)->context();
      EXPECT_TRUE(seen.insert(kernel.signals).second);
      EXPECT_EQ(kernel.remote_signals, kernel.signals + kSymmSignals);
      for (const uint64_t* word = kernel.signals; word < kernel.rounds + kSymmBarrierRows; ++word)
        ASSERT_EQ(*word, 0U);
      kernel.signals[5] = 1;
      EXPECT_EQ((*team)->device_context()->signals, kernel.signals) << "without a GPU its memory is ours";
    }
    EXPECT_EQ(context.split_team(&context.world(), 0, 0).error().status, Status::kInvalidUsage)
        << "all are taken";
  });
}

TEST_P(TeamTest, WordsAreUsedAgainAndClean) {
  run_contexts(2, make_settings(GetParam()), [](Context& context) {
    for (int round = 0; round < 20; ++round) {
      const auto team = context.split_team(&context.world(), 0, 0);
      ASSERT_TRUE(team) << round;
      EXPECT_EQ((*team)->context().signals[0], 0U);
      (*team)->context().signals[0] = 1;
      ASSERT_TRUE(context.barrier());
      context.free_team(**team);
    }
  });
}

// Rank 1 is in a team that rank 2 knows nothing of: what both have left is another place than rank 2's first.
TEST_P(TeamTest, WordsLieAtOnePlaceOfAllMembers) {
  std::array<uint64_t, 3> places{};
  run_contexts(3, make_settings(GetParam()), [&](Context& context) {
    const uint32_t rank = context.rank();
    ASSERT_TRUE(context.make_team(rank < 2 ? count_from(0, 2, 1) : std::vector<uint32_t>{}));
    const auto team = context.make_team(rank > 0 ? count_from(1, 2, 1) : std::vector<uint32_t>{});
    ASSERT_TRUE(team);
    if (rank == 0) return;
    const SymmContext& kernel = (*team)->context();
    places[rank] = reinterpret_cast<uint64_t>(kernel.signals) - kernel.heap_begin;
  });
  EXPECT_EQ(places[1], places[2]);
  EXPECT_NE(places[1], 0U);
}

// As kernels leave them that gave up a barrier: one rank ahead, signals somewhere, the failure told.
TEST_P(TeamTest, AResetMakesWordsNew) {
  run_contexts(3, make_settings(GetParam()), [](Context& context) {
    const uint32_t rank = context.rank();
    const auto pair = context.make_team(rank < 2 ? count_from(0, 2, 1) : std::vector<uint32_t>{});
    ASSERT_TRUE(pair);
    for (Team* team : {&context.world(), &context.in_reach(), *pair}) {
      if (team != nullptr) {
        const SymmContext& kernel = team->context();
        kernel.signals[5] = kernel.remote_signals[5] = rank + 1;
        kernel.arrivals[0] = kernel.rounds[kSymmBarrierRows - 1] = rank + 7;
        *kernel.failure = static_cast<uint64_t>(SymmWait::kBarrier) | uint64_t{9} << kSymmFailureNumber |
                          uint64_t{0} << kSymmFailurePeer | (team->ranks().size() - 1) << kSymmFailureRank;
        const auto failure = context.find_failures();
        ASSERT_TRUE(failure);
        EXPECT_NE(failure->text.find("rank " + std::to_string(team->ranks().back()) +
                                     " timed out waiting for rank " + std::to_string(team->ranks().front()) +
                                     " in barrier 9"),
                  std::string::npos)
            << failure->text;
      }
      ASSERT_TRUE(context.reset_team(team));
      EXPECT_EQ(context.find_failures()->text, "");
      if (team == nullptr) continue;
      const SymmContext& kernel = team->context();
      for (const uint64_t* word = kernel.signals; word <= kernel.failure; ++word) ASSERT_EQ(*word, 0U);
    }
    // Not everybody's the same: nobody's.
    EXPECT_EQ(context.reset_team(rank == 2 ? nullptr : &context.world()).status(), Status::kInvalidUsage);
    EXPECT_EQ(context.reset_team(rank < 2 ? *pair : &context.world()).status(), Status::kInvalidUsage);
    EXPECT_TRUE(context.reset_team(&context.world())) << "and it can be called again";
  });
}

TEST(TeamTest, NoResetOfAFailedContext) {
  run_contexts(2, make_settings(), [](Context& context) {
    if (context.rank() == 1) context.end_waits();
    EXPECT_EQ(context.reset_team(&context.world()).status(), Status::kInvalidUsage);
  });
}

// Freeing is not collective: a thread of its own frees while another one makes teams.
TEST_P(TeamTest, IsFreedWhileOthersAreMade) {
  run_contexts(1, make_settings(GetParam()), [](Context& context) {
    constexpr int kTeams = 200, kAtOnce = 4;
    std::array<std::atomic<Team*>, kTeams> made{};
    std::atomic<int> freed{0};
    std::thread freeing([&] {
      for (auto& team : made) {
        while (team == nullptr) std::this_thread::yield();
        context.free_team(*team);
        ++freed;
      }
    });
    for (int count = 0; count < kTeams; ++count) {
      while (count - freed >= kAtOnce) std::this_thread::yield();
      const auto team = context.split_team(&context.world(), 0, 0);
      ASSERT_TRUE(team);
      made[static_cast<size_t>(count)] = *team;
    }
    freeing.join();
    EXPECT_EQ(context.world().index(), 0U);
  });
}

TEST(TeamTest, ManyRanksStandBehindAPointer) {
  run_contexts(11, make_settings(), [](Context& context) {
    const SymmContext& kernel = context.world().context();
    ASSERT_NE(kernel.more_deltas, nullptr);
    EXPECT_EQ(kernel.more_deltas[context.rank()], 0);
    for (int32_t rank = 0; rank < 11; ++rank) EXPECT_EQ(kernel.more_world_ranks[rank], rank);
    EXPECT_EQ(kernel.more_deltas[10] - kernel.more_deltas[0], 10 * (16 << 20));
  });
}

}  // namespace
}  // namespace verbena::symm
