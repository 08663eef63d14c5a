// The functions with C names: every thread of a block calls, and what they ask for happens once.
#include "verbena/device/symm_c.cuh"

#include <gtest/gtest.h>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::World;

constexpr uint32_t kThreads = 64;

template <typename T>
int64_t number(T* pointer) {
  return static_cast<int64_t>(reinterpret_cast<uint64_t>(pointer));
}

int64_t context_of(Fleet& fleet, int32_t rank) {
  return number(&fleet.context(rank));
}

TEST(SymmC, ABlockDoesItOnce) {
  Fleet fleet(2);
  for (int32_t i = 0; i < 100; ++i) fleet.data<int32_t>(0, 4096)[i] = i * i;
  World world(3);
  world.add_grid(0, 2, kThreads, [&] {
    const int64_t mine = context_of(fleet, 0);
    const auto block = static_cast<int32_t>(device::block_index());
    require(symm_put_signal_async(mine, number(fleet.data<int32_t>(0) + 50 * block),
                                  number(fleet.data<int32_t>(0, 4096) + 50 * block), 50, 4, 1, 3, 5, 1) == 0,
            "put");
    require(symm_signal(mine, 4, 1, 7, 2) == 0, "increment");
    require(symm_barrier(mine) == 0, "barrier");
    require(symm_quiet(mine) == 0 && symm_quiet_peer(mine, 1) == 0 && symm_flush(mine) == 0, "quiet");
    require(symm_lsa_barrier(mine, block) == 0, "barrier in reach");
  });
  world.add_grid(1, 2, kThreads, [&] {
    const int64_t mine = context_of(fleet, 1);
    const auto block = static_cast<int32_t>(device::block_index());
    require(symm_signal_wait_until(mine, 3, 4, 10) == 10, "both blocks' signals, once each");
    require(symm_barrier_arrive(mine, block) == 0 && symm_barrier_wait(mine, block) == 0, "barrier");
    require(symm_signal_wait_until(mine, 4, 1, 2) == 2, "increments");
    int32_t got = 0;
    for (int32_t i = 0; i < 100; ++i) {
      got = device::load<device::Order::kWeak, device::Scope::kThreads>(fleet.data<int32_t>(1) + i);
      require(got == i * i, "data");
    }
    require(symm_lsa_barrier_arrive(mine, block) == 0 && symm_lsa_barrier_wait(mine, block) == 0, "halves");
    if (block == 0) require(symm_signal_reset(mine, 3) == 0, "reset");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(fleet.context(1).signals[3], 0U);
  EXPECT_EQ(fleet.context(1).signals[4], 2U);
}

// One program for each multiprocessor of a large GPU, and more: each has a barrier of its own number.
TEST(SymmC, ManyBlocksMeet) {
  constexpr uint32_t kBlocks = 160;
  Fleet fleet(2);
  emulator::run_on_ranks(1, 2, kBlocks, 1, [&](int32_t rank) {
    require(symm_barrier(context_of(fleet, rank)) == 0, "barrier of the block's number");
  });
}

TEST(SymmC, TellsWhereAndWho) {
  Fleet fleet(3, 2);
  emulator::run_kernel(0, 1, kThreads, [&] {
    const int64_t mine = context_of(fleet, 0);
    require(symm_lsa_ptr(mine, number(fleet.data(0, 8)), 1) == number(fleet.data(1, 8)), "pointer");
    require(symm_lsa_ptr(mine, number(fleet.data(0)), 2) == 0, "out of reach");
    require(symm_lsa_signal_ptr(mine, 1) == number(fleet.context(1).signals), "signals");
    require(symm_lsa_multicast_ptr(mine, number(fleet.data(0))) == 0, "no multicast");
    require(symm_team_size(mine) == 3 && symm_team_rank(mine) == 0 && symm_team_lsa_size(mine) == 2, "team");
    require(symm_team_lsa(mine, 1) == 1 && symm_team_lsa(mine, 2) == 0, "reach");
    require(symm_get(mine, number(fleet.data(0, 64)), number(fleet.data(0, 128)), 4, 4, 1) == 0, "get");
    for (int32_t scope = 0; scope < 3; ++scope) require(symm_fence(mine, scope) == 0, "fence");
  });
}

TEST(SymmC, SaysWhatCannotBe) {
  Fleet fleet(3, 2);
  fleet.context(0).timeout_ns = 5'000;
  const auto code = [](SymmStatus status) { return static_cast<int32_t>(status); };
  emulator::run_kernel(0, 1, kThreads, [&] {
    const int64_t mine = context_of(fleet, 0), place = number(fleet.data(0));
    require(
        symm_barrier(0) == code(SymmStatus::kInvalid) && symm_team_size(0) == 0 && symm_lsa_ptr(0, 1, 0) == 0,
        "no context");
    require(symm_put_async(mine, place, place, -1, 4, 1) == code(SymmStatus::kInvalid), "count");
    require(symm_put_async(mine, place, place, 1, 4, 2) == code(SymmStatus::kUnreachable), "far");
    require(symm_signal(mine, 0, 1, 1, 3) == code(SymmStatus::kInvalid), "operation");
    require(symm_signal(mine, -1, 1, 1, 1) == code(SymmStatus::kInvalid), "signal");
    require(symm_fence(mine, 3) == code(SymmStatus::kInvalid), "scope");
    require(symm_all_reduce(mine, place, 0, 4, 1, 0) == code(SymmStatus::kInvalid), "operation");
    require(symm_all_reduce(mine, place, 0, 4, 0, 0) == code(SymmStatus::kUnreachable), "far");
    for (int32_t compare = 1; compare <= 6; ++compare) {
      const int64_t seen = symm_signal_wait_until(mine, 999, compare, 5);
      require(!device::detail::holds(seen, static_cast<SymmCompare>(compare), int64_t{5}), "in vain");
    }
    require(symm_signal_wait_until(mine, 0, 3, 5) == 0, "as it was");
  });
}

TEST(SymmC, FarOperations) {
  Fleet fleet(2);
  std::vector<int32_t> skipped(4);
  for (int32_t i = 0; i < 64; ++i) fleet.data<int32_t>(0, 4096)[i] = i;
  World world(3);
  world.add_grid(0, 1, kThreads, [&] {
    const int64_t mine = context_of(fleet, 0);
    const auto word = [&](int i) { return number(fleet.data<uint64_t>(0) + i); };
    const int64_t source = number(fleet.data(0, 4096)), place = number(fleet.data(0, 1024));
    require(symm_put_value(mine, word(0), 5, 1) == 0 && symm_add(mine, word(0), 2, 1) == 0, "written");
    require(symm_fetch_add(mine, word(0), 3, 1) == 7, "fetched once for the block");
    require(symm_compare_swap(mine, word(0), 10, 11, 1) == 10, "swapped");
    require(symm_fetch_add(mine, 0, 3, 1) == INT64_MIN && symm_compare_swap(0, word(0), 1, 1, 1) == INT64_MIN,
            "failed");
    require(symm_put_rows(mine, place, 16, source, 8, 8, 4, 4, 1) == 0, "rows");
    require(symm_get_rows(mine, number(fleet.data(0, 2048)), 8, place, 16, 8, 4, 4, 1) == 0, "back");
    require(symm_get_rows(mine, place, -1, place, 16, 8, 4, 4, 1) < 0, "stride");
    const int64_t asked = symm_get_async(mine, number(fleet.data(0, 3072)), place, 8, 4, 1, -1);
    require(asked == 0 && symm_request_wait(mine, asked) == 0, "in reach it is there");
    require(symm_request_wait(mine, symm_get_async(mine, place, place, -1, 4, 1, 2)) < 0, "count");
    const SymmPiece pieces[] = {{fleet.data(0, 6144), fleet.data(0, 4096), 12},
                                {fleet.data(0, 6176), fleet.data(0, 4160), 20}};
    require(symm_put_pieces(mine, number(pieces), 1, 1) == 0, "a piece");
    require(symm_put_pieces_signal(mine, number(pieces), 2, 1, 8, 3, 1) == 0, "pieces and a signal");
    require(
        symm_put_pieces(mine, number(pieces), -1, 1) < 0 && symm_put_pieces(mine, number(pieces), 1, 2) < 0,
        "no pieces");
    require(symm_put_async_by(mine, place, source, 8, 4, 1, 2) == 0, "by a queue");
    require(symm_put_signal_async_by(mine, place, source, 8, 4, 1, 7, 1, 1, -1) == 0, "by its own");
    require(symm_signal_by(mine, 7, 1, 1, 1, 3) == 0 && symm_signal_after_puts(mine, 7, 1, 1, 1) == 0,
            "signals");
  });
  world.add_grid(1, 1, kThreads, [&] {
    const int64_t mine = context_of(fleet, 1), words = number(fleet.data(1));
    require(symm_signal_wait_until(mine, 7, 1, 3) == 3, "three signals");
    require(symm_signal_wait_until(mine, 8, 1, 3) == 3, "behind pieces");
    require(symm_wait_until(mine, words, 1, 11) == 11, "the word");
    require(symm_wait_until(0, words, 1, 11) != 11, "in vain");
    require(symm_wait_until_any(mine, words, 4, 1, 11, 0) == 0, "which");
    require(symm_wait_until_all(mine, words, 1, 4, 11) == 0, "all");
    require(symm_wait_until_any(mine, words, 0, 1, 11, number(skipped.data())) < 0, "of none");
  });
  EXPECT_EQ(world.run(), "");
  for (int32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(fleet.data<int32_t>(0, 2048)[i], i);
    EXPECT_EQ(fleet.data<int32_t>(1, 1024)[i / 8 * 16 + i % 8], i);
  }
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(fleet.data<int32_t>(1, 6144)[i], i);
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(fleet.data<int32_t>(1, 6176)[i], 16 + i);
}

// A request's number holds its place and its queue.
TEST(SymmC, RequestsAreNumbers) {
  const device::SymmRequest asked{uint64_t{1} << 58, 15};
  const device::SymmRequest back = device::detail::as_request(device::detail::as_number(asked));
  EXPECT_EQ(back.after, asked.after);
  EXPECT_EQ(back.queue, asked.queue);
}

TEST(SymmC, SumsUp) {
  Fleet fleet(2);
  for (int32_t rank = 0; rank < 2; ++rank)
    for (int32_t i = 0; i < 40; ++i) fleet.data<float>(rank)[i] = static_cast<float>(rank + i);
  emulator::run_on_ranks(1, 2, 1, kThreads, [&](int32_t rank) {
    require(symm_all_reduce(context_of(fleet, rank), number(fleet.data(rank)), 16, 36, 0, 0) == 0, "reduce");
  });
  for (int32_t i = 4; i < 40; ++i) EXPECT_EQ(fleet.data<float>(1)[i], static_cast<float>(2 * i + 1));
  EXPECT_EQ(fleet.data<float>(0)[3], 3.0F) << "not before the offset";
}

TEST(SymmC, ConvertsNumbers) {
  const int32_t patterns[] = {0x3e00, 0x3fc0, 0x3c, 0x3e}, one_and_a_half = 0x3fc00000;
  for (int32_t type = 1; type <= 4; ++type) {
    EXPECT_EQ(symm_widen(patterns[type - 1], type), one_and_a_half) << type;
    EXPECT_EQ(symm_narrow(one_and_a_half, type), patterns[type - 1]) << type;
  }
  EXPECT_EQ(symm_widen(1, 5), 0);
  EXPECT_EQ(symm_narrow(one_and_a_half, 0), 0);
}

}  // namespace
}  // namespace verbena::device_test
