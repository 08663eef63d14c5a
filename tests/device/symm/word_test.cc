// Words in windows: written, added to, fetched, exchanged; waits for one, any or all of them; where loads and
// stores reach.
#include <gtest/gtest.h>

#include <set>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::BlockGroup;
using device::Order;
using device::Scope;
using device::ThreadGroup;
using device::WarpGroup;
using emulator::require;
using emulator::require_done;
using emulator::World;
using enum SymmCompare;

void write(uint64_t* word, uint64_t value) {
  device::store<Order::kWeak, Scope::kThreads>(word, value);
}
uint64_t read(const uint64_t* word) {
  return device::load<Order::kWeak, Scope::kThreads>(word);
}
class SymmWordTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, SymmWordTest, testing::Range<uint64_t>(0, 5));

// Each block draws from one counter of rank 1: nobody gets a number twice, whatever its group.
TEST_P(SymmWordTest, FetchedNumbersAreDrawnOnce) {
  constexpr int32_t kRanks = 3;
  constexpr uint64_t kTimes = 4;
  Fleet fleet(kRanks);
  std::vector<uint64_t> drawn(kRanks * 3 * kTimes);
  emulator::run_on_ranks(GetParam(), kRanks, 3, 64, [&](int32_t rank) {
    uint64_t* const counter = fleet.data<uint64_t>(rank);
    const uint32_t block = device::block_index(), thread = device::thread_index();
    if (block == 0 && thread != 7) return;
    if (block == 1 && thread >= 32) return;
    uint64_t* const mine = drawn.data() + (3 * static_cast<uint32_t>(rank) + block) * kTimes;
    for (uint64_t i = 0; i < kTimes; ++i) {
      uint64_t before = ~uint64_t{0};
      const auto draw = [&](const auto& group) {
        require_done(device::symm_fetch_add(fleet.context(rank), counter, 1, 1, &before, group), "draw");
        if (group.elect()) write(mine + i, before);
        const uint64_t first = group.share(before, group.elect());
        require(first == before, "the same for all of the group");
      };
      if (block == 0) draw(ThreadGroup{});
      if (block == 1) draw(WarpGroup{});
      if (block == 2) draw(BlockGroup{});
    }
  });
  EXPECT_EQ(std::set<uint64_t>(drawn.begin(), drawn.end()).size(), drawn.size());
  EXPECT_EQ(*fleet.data<uint64_t>(1), drawn.size());
  EXPECT_EQ(*fleet.data<uint64_t>(0), 0U);
}

// A lock of a word: what its holder did is there for the next one.
TEST_P(SymmWordTest, AnExchangedWordIsALock) {
  constexpr int32_t kRanks = 3;
  Fleet fleet(kRanks);
  emulator::run_on_ranks(GetParam(), kRanks, 1, 32, [&](int32_t rank) {
    const SymmContext& mine = fleet.context(rank);
    uint64_t* const lock = fleet.data<uint64_t>(rank);
    const uint64_t name = 1 + static_cast<uint64_t>(rank);
    uint64_t* const sum = device::symm_lsa_ptr(mine, fleet.data<uint64_t>(rank, 128), 2);
    for (int i = 0; i < 3; ++i) {
      for (uint64_t before = name; before != 0;)
        require_done(device::symm_compare_swap(mine, lock, 0, name, 2, &before, BlockGroup{}), "take");
      const uint64_t neighbour = read(sum + (device::thread_index() + 1) % 32);
      device::sync_block();
      write(sum + device::thread_index(), neighbour + name);
      device::sync_block();
      require(read(sum + device::thread_index()) >= name, "its own");
      require_done(device::symm_put_value(mine, lock, 0, 2, BlockGroup{}), "give back");
    }
  });
  EXPECT_EQ(*fleet.data<uint64_t>(2, 0), 0U);
}

// What a block wrote is there for who sees the word that it wrote or added to.
TEST_P(SymmWordTest, AWordIsBehindWhatTheBlockDid) {
  for (const int way : {0, 1, 2, 3}) {
    Fleet fleet(2);
    World world(GetParam());
    world.add_grid(0, 1, 64, [&] {
      const SymmContext& mine = fleet.context(0);
      uint64_t* const word = fleet.data<uint64_t>(0, 8192);
      write(device::symm_lsa_ptr(mine, fleet.data<uint64_t>(0), 1) + device::thread_index(), 7);
      uint64_t before = 1;
      if (way == 0) require_done(device::symm_put_value(mine, word, 5, 1, BlockGroup{}), "write");
      if (way == 1) require_done(device::symm_add(mine, word, 5, 1, BlockGroup{}), "add");
      if (way == 2) require_done(device::symm_fetch_add(mine, word, 5, 1, &before, BlockGroup{}), "fetch");
      if (way == 3)
        require_done(device::symm_compare_swap(mine, word, 0, 5, 1, &before, BlockGroup{}), "exchange");
      require(way < 2 || before == 0, "before");
    });
    world.add_grid(1, 1, 64, [&] {
      const SymmContext& mine = fleet.context(1);
      const uint64_t* const words = fleet.data<uint64_t>(1, 8192);
      int32_t seen = 0;
      uint32_t which = 9;
      if (way == 0)
        require_done(device::symm_wait_until<int32_t>(mine, words, kEqual, 5, &seen, BlockGroup{}), "one");
      if (way == 1)
        require_done(device::symm_wait_until_all(mine, words, 1, kGreater, 4, BlockGroup{}), "all");
      if (way >= 2)
        require_done(
            device::symm_wait_until_any(mine, words - 2, 4, kNotEqual, 0, nullptr, &which, BlockGroup{}),
            "any");
      require(way != 0 || seen == 5, "seen");
      require(way < 2 || which == 2, "which");
      require(read(fleet.data<uint64_t>(1) + (device::thread_index() + 17) % 64) == 7, "what was written");
    });
    EXPECT_EQ(world.run(), "") << way;
  }
}

// One after the other, by all threads of a block and of a warp, until none is left.
template <typename Group>
void take_each(const SymmContext& mine, const uint64_t* words, uint32_t first_signal, uint32_t count,
               uint32_t* skipped, const Group& group) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t which = ~0U;
    require_done(words != nullptr ? device::symm_wait_until_any(mine, words, count, kGreaterEqual, 1, skipped,
                                                                &which, group)
                                  : device::symm_signal_wait_until_any(
                                        mine, first_signal, count, kGreaterEqual, 1, skipped, &which, group),
                 "any");
    require(which < count && skipped[which] == 0, "one that is left");
    sum += which;
    group.sync();
    if (group.elect()) device::store<Order::kWeak, Scope::kThreads>(skipped + which, 1U);
    group.sync();
  }
  require(sum == uint64_t{count} * (count - 1) / 2, "each once");
  uint32_t which = 0;
  require(
      (words != nullptr ? device::symm_wait_until_any(mine, words, count, kEqual, 1, skipped, &which, group)
                        : device::symm_signal_wait_until_any(mine, first_signal, count, kEqual, 1, skipped,
                                                             &which, group)) == SymmStatus::kInvalid,
      "none is left");
}

TEST_P(SymmWordTest, AnyOfSeveralAndAll) {
  constexpr uint32_t kCount = 70;
  Fleet fleet(2);
  std::vector<uint32_t> skipped(4 * kCount);
  World world(GetParam());
  world.add_grid(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t at = i * 37 % kCount;
      require_done(device::symm_put_value(mine, fleet.data<uint64_t>(0) + at, 1 + i, 1), "write");
      require_done(device::symm_signal(mine, 100 + at, 1, 1, SymmSignalOperation::kAdd), "signal");
    }
  });
  world.add_grid(1, 1, 64, [&] {
    take_each(fleet.context(1), fleet.data<uint64_t>(1), 0, kCount, skipped.data(), BlockGroup{});
  });
  world.add_grid(1, 1, 32, [&] {
    take_each(fleet.context(1), nullptr, 100, kCount, skipped.data() + kCount, WarpGroup{});
  });
  world.add_grid(1, 1, 64, [&] {
    const SymmContext& mine = fleet.context(1);
    require_done(
        device::symm_wait_until_all(mine, fleet.data<uint64_t>(1), kCount, kGreaterEqual, 1, BlockGroup{}),
        "all");
    require_done(device::symm_signal_wait_until_all(mine, 100, kCount, kEqual, 1, BlockGroup{}), "all");
  });
  EXPECT_EQ(world.run(), "");
}

TEST(SymmWord, WaitsInVainEnd) {
  Fleet fleet(1);
  SymmContext& mine = fleet.context(0);
  mine.timeout_ns = 5'000;
  const auto require_late = [&](SymmStatus status, SymmWait wait) {
    require(status == SymmStatus::kTimedOut, "time");
    require((*mine.failure & 0xff) == static_cast<uint64_t>(wait), "what was waited for");
    *mine.failure = 0;
  };
  uint32_t which = 0;
  int64_t seen = -1;
  emulator::run_kernel(0, 1, 1, [&] {
    uint64_t* const words = fleet.data<uint64_t>(0);
    require_late(device::symm_wait_until<int64_t>(mine, words, kEqual, 1, &seen), SymmWait::kWord);
    require(seen == 0, "as it was");
    require_late(device::symm_wait_until_all(mine, words, 3, kNotEqual, 0), SymmWait::kWord);
    require_late(device::symm_wait_until_any(mine, words, 3, kNotEqual, 0, nullptr, &which), SymmWait::kWord);
    require_late(device::symm_signal_wait_until_all(mine, 4, 3, kNotEqual, 0), SymmWait::kSignal);
    require_late(device::symm_signal_wait_until_any(mine, 4, 3, kNotEqual, 0, nullptr, &which),
                 SymmWait::kSignal);
  });
}

TEST(SymmWord, RefusesWhatThereIsNot) {
  Fleet fleet(3, 2);
  uint64_t other = 0, before = 0;
  uint32_t which = 0;
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    uint64_t* const word = fleet.data<uint64_t>(0);
    auto* const odd = reinterpret_cast<uint64_t*>(fleet.data(0, 4));
    for (uint64_t* const bad : {&other, odd, fleet.data<uint64_t>(0, Fleet::kDataBytes)}) {
      require(device::symm_put_value(mine, bad, 1, 1) == SymmStatus::kInvalid, "write");
      require(device::symm_add(mine, bad, 1, 1) == SymmStatus::kInvalid, "add");
      require(device::symm_fetch_add(mine, bad, 1, 1, &before) == SymmStatus::kInvalid, "fetch");
      require(device::symm_compare_swap(mine, bad, 1, 1, 1, &before) == SymmStatus::kInvalid, "swap");
      require(device::symm_wait_until<int64_t>(mine, bad, kEqual, 0) == SymmStatus::kInvalid, "wait");
      require(device::symm_wait_until_all(mine, bad, 1, kEqual, 0) == SymmStatus::kInvalid, "all");
      require(device::symm_wait_until_any(mine, bad, 1, kEqual, 0, nullptr, &which) == SymmStatus::kInvalid,
              "any");
    }
    require(device::symm_put_value(mine, word, 1, 3) == SymmStatus::kInvalid, "rank");
    require(device::symm_wait_until_all(mine, word, 1 << 20, kEqual, 0) == SymmStatus::kInvalid, "many");
    require(device::symm_signal_wait_until_all(mine, 250, 7, kEqual, 0) == SymmStatus::kInvalid, "signals");
    require(
        device::symm_signal_wait_until_any(mine, 256, 0, kEqual, 0, nullptr, &which) == SymmStatus::kInvalid,
        "signals");
    require(device::symm_put_value(mine, word, 1, 2) == SymmStatus::kUnreachable, "no network");
    require_done(device::symm_put_value(mine, word, 1, 1), "in reach none is needed");
    // Members are out of reach: a network would have to update for all of them.
    require(device::symm_add(mine, word, 1, 1) == SymmStatus::kUnreachable, "add");
    require(device::symm_fetch_add(mine, word, 1, 0, &before) == SymmStatus::kUnreachable, "fetch");
    require(device::symm_compare_swap(mine, word, 1, 1, 1, &before) == SymmStatus::kUnreachable, "swap");
  });
}

// Every alignment, rows longer and shorter than the group, close and far.
TEST(SymmRows, AreCopiedBothWays) {
  constexpr uint64_t kRows = 7;
  for (const uint64_t row_bytes : {1, 3, 4, 16, 100, 5000}) {
    for (const uint64_t gap : {0, 1, 12, 16}) {
      for (const uint64_t shift : {0, 4, 5}) {
        const uint64_t near = row_bytes + gap, far = row_bytes + 2 * gap;
        Fleet fleet(2);
        std::vector<uint8_t> source(kRows * near + 8), back(kRows * near + 8);
        for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(1 + i * 7 % 251);
        emulator::run_kernel(row_bytes, 1, 64, [&] {
          const SymmContext& mine = fleet.context(0);
          uint8_t* const place = fleet.data(0, 64 + shift);
          require_done(device::symm_put_rows(mine, place, far, source.data() + shift, near, row_bytes, kRows,
                                             1, BlockGroup{}),
                       "put");
          require_done(device::symm_get_rows(mine, back.data() + shift, near, place, far, row_bytes, kRows, 1,
                                             BlockGroup{}),
                       "get");
        });
        for (uint64_t i = 0; i < kRows * near; ++i) {
          const bool is_row = i % near < row_bytes;
          ASSERT_EQ(back[shift + i], is_row ? source[shift + i] : 0) << row_bytes << " " << gap << " " << i;
        }
        for (uint64_t i = 0; i < (kRows - 1) * far; ++i) {
          const bool is_between = i % far >= row_bytes;
          ASSERT_TRUE(!is_between || *fleet.data(1, 64 + shift + i) == 0) << "between rows";
        }
      }
    }
  }
}

TEST(SymmRows, RefusesRowsThatDoNotFit) {
  Fleet fleet(3, 2);
  uint8_t other[64] = {};
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    uint8_t* const place = fleet.data(0);
    const auto put = [&](uint64_t stride, uint64_t row_bytes, uint64_t rows) {
      return device::symm_put_rows(mine, place, stride, other, 0, row_bytes, rows, 1);
    };
    require(put(Fleet::kDataBytes / 2, 8, 3) == SymmStatus::kInvalid, "past the heap");
    require(put(uint64_t{1} << 63, 8, 3) == SymmStatus::kInvalid, "wraps");
    require(put(8, uint64_t{1} << 62, 1) == SymmStatus::kInvalid, "long");
    require_done(put(~uint64_t{0}, 8, 0), "nothing");
    require(device::symm_get_rows(mine, other, 0, place, Fleet::kDataBytes, 8, 2, 1) == SymmStatus::kInvalid,
            "get");
    require(device::symm_put_rows(mine, place, 8, place, 8, 8, 2, 2) == SymmStatus::kUnreachable, "far");
  });
  EXPECT_EQ(*fleet.data(1), 0) << "nothing was written";
}

}  // namespace
}  // namespace verbena::device_test
