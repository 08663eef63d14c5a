#include "verbena/device/group.cuh"

#include <array>

#include "device/support/run_kernel.h"
#include "schedules.h"
#include "verbena/device/atomic.cuh"

namespace verbena::device {
namespace {

class Groups : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(Seeds, Groups, kSchedules);

// In each round every member increments the counter of its rank, one is elected, one vote decides any(), and
// sync() makes weak data visible.
template <typename Group>
void check_group(const Group& group, uint32_t* ranks, uint32_t* elected, uint32_t* cells) {
  reduce_add<Order::kRelaxed, Scope::kBlock>(ranks + group.rank(), 1);
  if (group.elect()) reduce_add<Order::kRelaxed, Scope::kBlock>(elected, 1);
  for (uint32_t round = 0; round < 6; ++round) {
    cells[group.rank()] = round;
    group.sync();
    require(cells[(group.rank() + 1) % group.size()] == round, "the neighbour's cell after sync");
    const uint32_t voter = round * 37 % (2 * group.size());
    require(group.any(group.rank() == voter) == (voter < group.size()), "the vote");
    require(!group.any(false), "no vote");
    require(group.any(group.rank() == round % group.size()), "a vote right after it");
    const bool is_giver = group.rank() == round * 5 % group.size();
    const uint64_t value = uint64_t{1} << 40 | round;
    require(group.share(is_giver ? value : 0, is_giver) == value, "what one has is everybody's");
    const bool is_next = group.rank() == (round * 5 + 1) % group.size();
    require(group.share(is_next ? ~value : 0, is_next) == ~value, "what another one has, right after it");
  }
}

struct Board {
  std::array<uint32_t, 128> ranks{}, cells{};
  uint32_t elected = 0;

  void expect(uint32_t size) const {
    EXPECT_EQ(elected, 1u);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(ranks[rank], rank < size ? 1u : 0u) << rank;
  }
};

TEST_P(Groups, AThreadIsAGroupOfItsOwn) {
  Board board;
  emulator::run_kernel(GetParam(), 1, 1, [&] {
    check_group(ThreadGroup{}, board.ranks.data(), &board.elected, board.cells.data());
  });
  board.expect(1);
}

TEST_P(Groups, WarpsMeetByThemselves) {
  std::array<Board, 3> boards;
  emulator::run_kernel(GetParam(), 1, 96, [&] {
    Board& board = boards[thread_index() / 32];
    check_group(WarpGroup{}, board.ranks.data(), &board.elected, board.cells.data());
  });
  for (const Board& board : boards) board.expect(32);
}

// 72 threads: the last warp is not whole.
TEST_P(Groups, ABlockOfAnySizeMeets) {
  Board board;
  emulator::run_kernel(GetParam(), 1, 72, [&] {
    check_group(BlockGroup{}, board.ranks.data(), &board.elected, board.cells.data());
  });
  board.expect(72);
}

TEST_P(Groups, WarpsOfABlockMeetOnBarriersOfTheirOwn) {
  Board small, large;
  emulator::run_kernel(GetParam(), 1, 128, [&] {
    if (thread_index() < 32) {
      check_group(WarpsGroup{0, 32, 1}, small.ranks.data(), &small.elected, small.cells.data());
    } else {
      check_group(WarpsGroup{32, 96, 15}, large.ranks.data(), &large.elected, large.cells.data());
    }
  });
  small.expect(32);
  large.expect(96);
}

// The counters and cells are in the memory of the GPU, which the blocks share.
TEST_P(Groups, ClustersMeetByThemselves) {
  for (const uint32_t blocks : {1U, 2U, 3U}) {
    std::array<Board, 2> boards;
    emulator::World world(GetParam());
    const auto check = [&] {
      Board& board = boards[block_index() / blocks];
      check_group(ClusterGroup{}, board.ranks.data(), &board.elected, board.cells.data());
    };
    world.add_grid(0, 2 * blocks, 32, check, blocks);
    ASSERT_EQ(world.run(), "") << blocks;
    for (const Board& board : boards) board.expect(blocks * 32);
  }
}

TEST(Machine, ShiftsAndPermutesTwoWords) {
  const uint32_t low = 0x33221100, high = 0x77665544;
  EXPECT_EQ(shift_right_wrap(low, high, 0), low);
  EXPECT_EQ(shift_right_wrap(low, high, 8), 0x44332211u);
  EXPECT_EQ(shift_right_wrap(low, high, 24), 0x66554433u);
  EXPECT_EQ(shift_right_wrap(low, high, 40), 0x44332211u);
  EXPECT_EQ(permute_bytes(low, high, 0x3210), low);
  EXPECT_EQ(permute_bytes(low, high, 0x7654), high);
  EXPECT_EQ(permute_bytes(low, high, 0x0617), 0x00661177u);
}

}  // namespace
}  // namespace verbena::device
