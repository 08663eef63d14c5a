#include "verbena/device/barrier.cuh"

#include "device/support/run_kernel.h"
#include "schedules.h"

namespace verbena::device {
namespace {

constexpr uint64_t kLongEnough_ns = 3'600'000'000'000;
using BackOff = PauseLongerAndLonger<>;

class Barriers : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(Seeds, Barriers, kSchedules);

// Every thread of the grid writes its cell and reads another block's, `rounds` times.
void meet_grid(const GridBarrier& barrier, std::vector<uint32_t>& cells, uint32_t rounds, uint32_t first) {
  const auto limits = WaitLimits::within(kLongEnough_ns);
  const uint32_t rank = block_index() * threads_per_block() + thread_index();
  const auto size = static_cast<uint32_t>(cells.size());
  for (uint32_t round = first; round < first + rounds; ++round) {
    store<Order::kWeak, Scope::kThreads>(&cells[rank], round);
    require(barrier.sync<BackOff>(limits) == WaitResult::kReached, "reached");
    for (const uint32_t step : {threads_per_block(), size / 2, size - 1})
      require(load<Order::kWeak, Scope::kThreads>(&cells[(rank + step) % size]) == round, "another's cell");
    require(barrier.sync<BackOff>(limits) == WaitResult::kReached, "reached again");
  }
}

TEST_P(Barriers, AGridMeetsAgainAndAgainAndInTheNextKernel) {
  uint64_t arrived = 0;
  std::vector<uint32_t> cells(3 * 64);
  for (uint32_t kernel = 0; kernel < 2; ++kernel) {
    emulator::run_kernel(GetParam(), 3, 64, [&] { meet_grid({&arrived, 3}, cells, 8, 1 + 8 * kernel); });
  }
  EXPECT_EQ(arrived, 2u * 8 * 2 * 3);
}

TEST_P(Barriers, WorkBetweenArrivalAndWaitIsAllowed) {
  uint64_t arrived = 0;
  uint32_t cells[4] = {};
  emulator::run_kernel(GetParam(), 4, 1, [&] {
    const GridBarrier barrier{&arrived, 4};
    const auto limits = WaitLimits::within(kLongEnough_ns);
    for (uint32_t round = 1; round < 10; ++round) {
      cells[block_index()] = round;
      const uint64_t reached = barrier.arrive();
      pause(block_index() * 300);
      require(barrier.wait<BackOff>(reached, limits) == WaitResult::kReached, "reached");
      require(cells[(block_index() + 1) % 4] == round, "the neighbour's cell");
      require(barrier.wait<BackOff>(barrier.arrive(), limits) == WaitResult::kReached, "reached again");
    }
  });
}

TEST_P(Barriers, ABlockThatNeverComesIsGivenUp) {
  uint64_t arrived = 0;
  uint32_t abort_word = 0;
  std::vector<WaitResult> timed(64), aborted(64);
  emulator::run_kernel(GetParam(), 2, 32, [&] {
    const GridBarrier barrier{&arrived, 3};
    const uint32_t rank = block_index() * 32 + thread_index();
    timed[rank] = barrier.sync<BackOff, 4>(WaitLimits::within(3000));
    if (rank == 0) store_relaxed<Scope::kSystem>(&abort_word, 1);
    aborted[rank] = barrier.sync<BackOff, 4>(WaitLimits::within(kLongEnough_ns, &abort_word));
  });
  EXPECT_EQ(timed, std::vector<WaitResult>(64, WaitResult::kTimedOut));
  // The second round's four arrivals complete the count of three that the first left open: out of step.
  arrived = 0;
  std::vector<uint32_t> cells(64);
  emulator::run_kernel(GetParam(), 2, 32, [&] { meet_grid({&arrived, 2}, cells, 2, 1); });
}

// As check_group() of group_test.cc: who votes is heard by all, in this round and in no other one.
TEST_P(Barriers, TheBlocksOfAGridAreAGroup) {
  constexpr uint32_t kBlocks = 3, kThreads = 32;
  uint64_t arrived = 0, words[GridGroup::kWords] = {};
  std::vector<uint32_t> cells(kBlocks * kThreads);
  uint32_t elected = 0;
  emulator::run_kernel(GetParam(), kBlocks, kThreads, [&] {
    const GridGroup group{{&arrived, kBlocks}, words, WaitLimits::within(kLongEnough_ns)};
    if (group.elect()) reduce_add<Order::kRelaxed, Scope::kGpu>(&elected, 1);
    for (uint32_t round = 0; round < 6; ++round) {
      cells[group.rank()] = round;
      group.sync();
      require(cells[(group.rank() + kThreads + 1) % group.size()] == round, "another block's cell");
      const uint32_t voter = round * 37 % (2 * group.size());
      require(group.any(group.rank() == voter) == (voter < group.size()), "the vote");
      require(!group.any(false), "no vote");
      require(group.any(group.rank() == round % group.size()), "a vote right after it");
      const bool is_giver = group.rank() == (round * 41) % group.size();
      require(group.share(is_giver ? 70 + round : 0, is_giver) == 70 + round, "what one has");
    }
  });
  EXPECT_EQ(elected, 1u);
}

TEST_P(Barriers, AGroupOfBlocksRemembersThatItBroke) {
  uint64_t arrived = 0, words[GridGroup::kWords] = {};
  emulator::run_kernel(GetParam(), 2, 32, [&] {
    GridGroup group{{&arrived, 2}, words, WaitLimits::within(kLongEnough_ns)};
    require(group.size() == 64 && group.rank() == block_index() * 32 + thread_index(), "places");
    group.sync();
    require(!group.is_broken(), "it met");
    group.limits = WaitLimits::within(2000);
    if (block_index() == 0) return;
    group.sync();
    require(group.is_broken() && group.result == WaitResult::kTimedOut, "the other block is gone");
    require(group.any(false), "at once, and no wait has reached its end");
  });
  EXPECT_EQ(arrived, 3u);
}

// The words of every rank, as the host lays them out.
class Ranks {
 public:
  explicit Ranks(uint32_t count)
      : count_(count), words_(count, std::vector<uint64_t>(count)), rounds_(count) {
    for (auto& own : words_) rows_.push_back(own.data());
  }
  SystemBarrier barrier(uint32_t rank) { return {rows_.data(), &rounds_[rank], rank, count_}; }
  uint64_t rounds(uint32_t rank) const { return rounds_[rank]; }

 private:
  uint32_t count_;
  std::vector<std::vector<uint64_t>> words_;
  std::vector<uint64_t*> rows_;
  std::vector<uint64_t> rounds_;
};

void meet_ranks(uint64_t seed, uint32_t count_ranks, uint32_t threads, uint32_t rounds) {
  Ranks ranks(count_ranks);
  std::vector<uint32_t> cells(count_ranks);
  World world(seed);
  for (uint32_t gpu = 0; gpu < count_ranks; ++gpu) {
    world.add_grid(gpu, 1, threads, [&, gpu] {
      const SystemBarrier barrier = ranks.barrier(gpu);
      const auto limits = WaitLimits::within(kLongEnough_ns);
      for (uint32_t round = 1; round <= rounds; ++round) {
        if (thread_index() == threads - 1) cells[gpu] = round;
        require(barrier.sync<BackOff>(limits) == WaitResult::kReached, "reached");
        require(cells[(gpu + thread_index() + 1) % count_ranks] == round, "a peer's cell");
        require(barrier.sync<BackOff>(limits) == WaitResult::kReached, "reached again");
      }
    });
  }
  EXPECT_EQ(world.run(), "");
  for (uint32_t rank = 0; rank < count_ranks; ++rank) EXPECT_EQ(ranks.rounds(rank), 2 * rounds);
}

TEST_P(Barriers, RanksMeetAgainAndAgain) {
  meet_ranks(GetParam(), 4, 32, 6);
}
TEST_P(Barriers, OneRankMeetsItself) {
  meet_ranks(GetParam(), 1, 64, 3);
}
// Few threads for many peers: each of them serves several.
TEST_P(Barriers, MoreRanksThanThreadsMeet) {
  meet_ranks(GetParam(), 9, 4, 3);
}

TEST_P(Barriers, AMissingRankIsGivenUpByAll) {
  Ranks ranks(3);
  std::vector<WaitResult> results(2 * 32);
  World world(GetParam());
  for (uint32_t gpu = 0; gpu < 2; ++gpu) {
    world.add_grid(gpu, 1, 32, [&, gpu] {
      results[gpu * 32 + thread_index()] = ranks.barrier(gpu).sync<BackOff, 4>(WaitLimits::within(5000));
    });
  }
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(results, std::vector<WaitResult>(64, WaitResult::kTimedOut));
}

TEST_P(Barriers, AllBlocksOfAllRanksMeet) {
  constexpr uint32_t kRanks = 2, kBlocks = 2, kThreads = 32;
  Ranks ranks(kRanks);
  uint64_t arrived[kRanks] = {};
  std::vector<uint32_t> cells(kRanks * kBlocks * kThreads);
  World world(GetParam());
  for (uint32_t gpu = 0; gpu < kRanks; ++gpu) {
    world.add_grid(gpu, kBlocks, kThreads, [&, gpu] {
      const auto limits = WaitLimits::within(kLongEnough_ns);
      const auto size = static_cast<uint32_t>(cells.size());
      const uint32_t rank = (gpu * kBlocks + block_index()) * kThreads + thread_index();
      const GridBarrier grid{&arrived[gpu], kBlocks};
      for (uint32_t round = 1; round < 5; ++round) {
        cells[rank] = round;
        require(sync_all_ranks<BackOff>(grid, ranks.barrier(gpu), limits) == WaitResult::kReached, "reached");
        for (uint32_t step = kThreads; step < size; step += kThreads)
          require(cells[(rank + step) % size] == round, "a cell of another block");
        require(sync_all_ranks<BackOff>(grid, ranks.barrier(gpu), limits) == WaitResult::kReached, "again");
      }
    });
  }
  EXPECT_EQ(world.run(), "");
}

}  // namespace
}  // namespace verbena::device
