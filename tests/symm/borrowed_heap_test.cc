// Contexts over a heap that another library has allocated and mapped.
#include "device/symm/borrowed_heap.h"

#include <gmock/gmock.h>

#include <set>

#include "base/log.h"
#include "symm/support/contexts.h"
#include "symm/support/lender.h"

namespace verbena::symm {
namespace {

using base::Status;

constexpr int32_t kType = kSymmFirstOther + 7;
constexpr uint64_t kRoomBytes = 64 << 10;  // for windows

// A backend's context; nothing stands between SymmContext and its first member.
struct WideContext : SymmContext {
  struct alignas(16) Pair {
    uint64_t first, second;
  } pair;
  uint32_t last;
};
static_assert(sizeof(WideContext) == sizeof(SymmContext) + 32);
static_assert(std::is_trivially_copyable_v<WideContext> && std::is_standard_layout_v<SymmContext>);
struct NarrowContext : SymmContext {
  uint8_t first;
};
static_assert(sizeof(NarrowContext) == sizeof(SymmContext) + alignof(SymmContext),
              "no padding is used again");

std::vector<std::byte> extend(uint32_t rank) {
  WideContext whole{};
  whole.pair = {100 + rank, 200 + rank};
  whole.last = 300 + rank;
  const auto* const begin = reinterpret_cast<const std::byte*>(static_cast<const SymmContext*>(&whole) + 1);
  return {begin, begin + sizeof(whole) - sizeof(SymmContext)};
}

Lender make_lender(uint32_t count_ranks, uint32_t domain) {
  return Lender(count_ranks, domain, make_settings().measure_words(count_ranks) + kRoomBytes);
}

BorrowedHeap borrow(Lender& lender, uint32_t rank) {
  BorrowedHeap heap;
  heap.backend = {.type = kType, .is_world_only = false, .multicast_delta = 0, .extension = extend(rank)};
  heap.begin = lender.begin(rank);
  heap.length_bytes = lender.length_bytes();
  heap.deltas = lender.find_deltas(rank);
  heap.lease = HeapLease(&Lender::take_back, lender.argument(rank));
  return heap;
}

// What one rank's heap is, besides what the lender says.
using Change = std::function<void(uint32_t rank, BorrowedHeap& heap)>;
// Of each rank: its context, or why there is none.
using Body = std::function<void(const base::Result<std::unique_ptr<Context>>& made, uint32_t rank)>;

void try_over(Lender& lender, const Change& change, const Body& body) {
  run_ranks(lender.count_ranks(), [&](bootstrap::Bootstrap joined, uint32_t rank) {
    BorrowedHeap heap = borrow(lender, rank);
    if (change) change(rank, heap);
    {
      const auto made = Context::create(std::move(joined), make_settings(), std::move(heap));
      EXPECT_EQ(lender.count_returns(rank), made ? 0 : 1);
      body(made, rank);
      if (made) {
        EXPECT_TRUE((*made)->leave()) << "rank " << rank;
        EXPECT_EQ(lender.count_returns(rank), 0);
      }
    }
    EXPECT_EQ(lender.count_returns(rank), 1);
  });
}

void run_over(Lender& lender, const std::function<void(Context&)>& body, const Change& change = {}) {
  try_over(lender, change, [&](const auto& made, uint32_t rank) {
    ASSERT_TRUE(made) << "rank " << rank;
    body(**made);
  });
}

void expect_refused(Lender& lender, const Change& change, Status status, const std::string& text) {
  try_over(lender, change, [&](const auto& made, uint32_t rank) {
    ASSERT_FALSE(made) << "rank " << rank << ": " << text;
    EXPECT_EQ(made.error().status, status);
    EXPECT_THAT(base::last_failure(), testing::HasSubstr(text)) << "rank " << rank;
  });
}

struct Shape {
  uint32_t count_ranks, domain;
};
class BorrowedHeapTest : public testing::TestWithParam<Shape> {
 protected:
  Lender lender_ = make_lender(GetParam().count_ranks, GetParam().domain);
};
INSTANTIATE_TEST_SUITE_P(Shapes, BorrowedHeapTest,
                         testing::Values(Shape{2, 2}, Shape{4, 4}, Shape{4, 2}, Shape{2, 1}),
                         [](const auto& tested) {
                           return std::to_string(tested.param.count_ranks) + "By" +
                                  std::to_string(tested.param.domain);
                         });

TEST_P(BorrowedHeapTest, WindowsAreItsParts) {
  run_over(lender_, [&](Context& context) {
    const uint32_t rank = context.rank(), count_ranks = context.count_ranks();
    const auto first = context.allocate_window(100), second = context.allocate_window(5000);
    ASSERT_TRUE(first && second);
    const uint64_t words_bytes = make_settings().measure_words(count_ranks);
    EXPECT_EQ((*first)->address, lender_.begin(rank) + words_bytes);
    EXPECT_EQ((*second)->address, (*first)->address + kBorrowedUnitBytes);
    for (size_t i = 0; i < 5120; ++i) ASSERT_EQ((*second)->address[i], std::byte{0});
    EXPECT_EQ((*second)->address[5120], Lender::kRubbish) << "nothing else is touched";
    ASSERT_TRUE(context.barrier());
    const uint32_t peer = (rank + 1) % count_ranks;
    std::byte* const there = context.find_peer(**second, peer);
    EXPECT_EQ(there,
              lender_.reaches(rank, peer) ? (*second)->address + lender_.distance(rank, peer) : nullptr);
    if (there != nullptr) there[4999] = std::byte(rank + 1);
    ASSERT_TRUE(context.barrier());
    const uint32_t before = (rank + count_ranks - 1) % count_ranks;
    EXPECT_EQ((*second)->address[4999], std::byte(lender_.reaches(rank, before) ? before + 1 : 0));
  });
}

TEST_P(BorrowedHeapTest, PlacesAreUsedAgainAndClean) {
  run_over(lender_, [](Context& context) {
    std::byte* place = nullptr;
    for (int round = 0; round < 5; ++round) {
      const auto window = context.allocate_window(kRoomBytes);
      ASSERT_TRUE(window);
      if (round == 0) place = (*window)->address;
      EXPECT_EQ((*window)->address, place);
      EXPECT_EQ(place[12345], std::byte{0});
      place[12345] = std::byte{1};
      EXPECT_EQ(context.allocate_window(1).error().status, Status::kInvalidUsage) << "all is taken";
      EXPECT_EQ(context.find_window(place + 12345), *window);
      ASSERT_TRUE(context.free_window(**window));
      EXPECT_EQ(context.find_window(place + 12345), nullptr);
    }
    EXPECT_EQ(context.allocate_window(1 << 30).error().status, Status::kInvalidArgument);
  });
}

TEST_P(BorrowedHeapTest, KernelsAreToldOfIt) {
  run_over(lender_, [&](Context& context) {
    const uint32_t rank = context.rank(), count_ranks = context.count_ranks();
    const SymmContext& kernel = context.world().context();
    const uint32_t domain = GetParam().domain;
    EXPECT_EQ(kernel.type, kType);
    EXPECT_EQ(kernel.heap_begin, reinterpret_cast<uint64_t>(lender_.begin(rank)));
    EXPECT_EQ(kernel.heap_end - kernel.heap_begin, lender_.length_bytes());
    EXPECT_EQ(kernel.lsa_size, static_cast<int32_t>(domain));
    EXPECT_EQ(kernel.has_remote, domain < count_ranks);
    EXPECT_EQ(kernel.queues.count, 0U) << "the way there is the backend's";
    for (uint32_t peer = 0; peer < count_ranks; ++peer)
      EXPECT_EQ(kernel.inline_deltas[peer],
                lender_.reaches(rank, peer) ? lender_.distance(rank, peer) : kSymmOutOfReach);
    EXPECT_EQ(context.in_reach().ranks().size(), domain);
    EXPECT_EQ(context.in_reach().ranks().front(), rank / domain * domain);
    EXPECT_EQ(context.in_reach().context().has_remote, 0);
  });
}

TEST_P(BorrowedHeapTest, TeamsHaveWordsOfTheirOwn) {
  run_over(lender_, [&](Context& context) {
    std::set<const uint64_t*> seen;
    for (Team* team : {&context.world(), &context.in_reach()}) seen.insert(team->context().signals);
    EXPECT_EQ(*seen.begin(), reinterpret_cast<uint64_t*>(lender_.begin(context.rank())));
    for (int round = 0; round < 3; ++round) {
      const auto team = context.split_team(&context.world(), context.rank() % 2, 0);
      ASSERT_TRUE(team && *team != nullptr);
      const SymmContext& kernel = (*team)->context();
      EXPECT_EQ(kernel.team_size, static_cast<int32_t>(context.count_ranks() / 2));
      EXPECT_TRUE(seen.insert(kernel.signals).second);
      for (const uint64_t* word = kernel.signals; word < kernel.rounds + kSymmBarrierRows; ++word)
        ASSERT_EQ(*word, 0U);
      std::fill(kernel.signals, kernel.rounds + kSymmBarrierRows, 1);
      if (round == 1) continue;  // one stays
      seen.erase(kernel.signals);
      context.free_team(**team);
    }
  });
}

TEST_P(BorrowedHeapTest, TheExtensionIsBehindEachTeam) {
  run_over(lender_, [](Context& context) {
    const auto split = context.split_team(&context.world(), context.rank(), 0);
    ASSERT_TRUE(split);
    for (Team* team : {&context.world(), &context.in_reach(), *split}) {
      for (const SymmContext* base : {&team->context(), team->device_context()}) {
        const auto& whole = *static_cast<const WideContext*>(base);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(&whole) % alignof(WideContext), 0U);
        EXPECT_EQ(whole.pair.first, 100 + context.rank());
        EXPECT_EQ(whole.pair.second, 200 + context.rank());
        EXPECT_EQ(whole.last, 300 + context.rank());
        EXPECT_EQ(whole.team_size, static_cast<int32_t>(team->ranks().size()));
      }
    }
  });
}

TEST_P(BorrowedHeapTest, MulticastIsForTeamsOfAllInReach) {
  const auto change = [](uint32_t rank, BorrowedHeap& heap) { heap.backend.multicast_delta = 1000 + rank; };
  run_over(
      lender_,
      [](Context& context) {
        const uint64_t delta = 1000 + context.rank();
        EXPECT_EQ(context.world().context().multicast_delta, delta);
        EXPECT_EQ(context.in_reach().context().multicast_delta, delta);
        const auto alone = context.split_team(&context.world(), context.rank(), 0);
        ASSERT_TRUE(alone);
        EXPECT_EQ((*alone)->context().multicast_delta, GetParam().domain == 1 ? delta : 0);
      },
      change);
}

TEST_P(BorrowedHeapTest, TheCallersMemoryIsNotRegistered) {
  run_over(lender_, [](Context& context) {
    std::vector<std::byte> mine(4096);
    EXPECT_EQ(context.register_window(mine.data(), mine.size()).error().status, Status::kInvalidUsage);
    EXPECT_THAT(base::last_failure(), testing::HasSubstr("cannot be registered"));
    EXPECT_TRUE(context.allocate_window(4096)) << "the context goes on";
  });
}

TEST_P(BorrowedHeapTest, ANetworkOfTheWorldServesNoOtherTeam) {
  run_over(
      lender_,
      [](Context& context) {
        const auto neighbours = context.split_team(&context.world(), context.rank() / GetParam().domain, 0);
        EXPECT_TRUE(neighbours) << "all are in reach";
        // Rank 0 by itself, all others together: refused for rank 0 too.
        const auto most = context.split_team(&context.world(), context.rank() == 0 ? 0 : 1, 0);
        const bool is_remote = GetParam().count_ranks == 4 && GetParam().domain == 2;
        EXPECT_EQ(static_cast<bool>(most), !is_remote);
        if (is_remote) {
          EXPECT_EQ(most.error().status, Status::kInvalidUsage);
        }
        EXPECT_TRUE(context.split_team(&context.world(), context.rank(), 0)) << "the context goes on";
      },
      [](uint32_t, BorrowedHeap& heap) { heap.backend.is_world_only = true; });
}

TEST(BorrowedHeap, ManyRanksStandBehindTheExtension) {
  Lender lender = make_lender(11, 11);
  const auto change = [](uint32_t, BorrowedHeap& heap) { heap.backend.extension.resize(21); };
  run_over(
      lender,
      [&](Context& context) {
        const SymmContext& kernel = context.world().context();
        ASSERT_NE(kernel.more_deltas, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(kernel.more_deltas) % 8, 0U);
        const auto* const extension =
            reinterpret_cast<const std::byte*>(context.world().device_context() + 1);
        EXPECT_EQ(std::memcmp(extension, extend(context.rank()).data(), 21), 0);
        for (uint32_t peer = 0; peer < 11; ++peer) {
          EXPECT_EQ(kernel.more_deltas[peer], lender.distance(context.rank(), peer));
          EXPECT_EQ(kernel.more_world_ranks[peer], static_cast<int32_t>(peer));
        }
      },
      change);
}

// All ranks get the error of one rank, with its number.
TEST(BorrowedHeap, WhatCannotBeIsRefusedForAll) {
  const auto refuse = [](const std::function<void(BorrowedHeap&)>& spoil, const std::string& text) {
    Lender lender = make_lender(2, 2);
    const auto change = [&](uint32_t rank, BorrowedHeap& heap) {
      if (rank == 1) spoil(heap);
    };
    expect_refused(lender, change, Status::kInvalidArgument, text);
  };
  refuse([](BorrowedHeap& heap) { heap.begin = nullptr; }, "begin is NULL");
  refuse([](BorrowedHeap& heap) { heap.begin += 64; }, "not aligned to 128 bytes");
  refuse([](BorrowedHeap& heap) { heap.deltas.pop_back(); },
         "has 1 deltas, but must have one for each of the 2 ranks");
  refuse([](BorrowedHeap& heap) { heap.deltas[1] = 8; }, "delta 8 for this rank itself");
  refuse([](BorrowedHeap& heap) { heap.deltas[1] = kSymmOutOfReach; },
         "delta -9223372036854775808 for this rank itself");
  refuse([](BorrowedHeap& heap) { heap.deltas[0] = kSymmOutOfReach; }, "unlike other ranks of its group");
}

TEST(BorrowedHeap, NoRoomForTheWords) {
  Lender lender = make_lender(2, 2);
  const uint64_t words_bytes = make_settings().measure_words(2);
  expect_refused(
      lender, [&](uint32_t, BorrowedHeap& heap) { heap.length_bytes = words_bytes - 1; },
      Status::kInvalidArgument, "is too small. The signals and barriers alone need");
  Lender other = make_lender(2, 2);
  run_over(
      other,
      [](Context& context) { EXPECT_EQ(context.allocate_window(1).error().status, Status::kInvalidUsage); },
      [&](uint32_t, BorrowedHeap& heap) { heap.length_bytes = words_bytes; });
}

TEST(BorrowedHeap, RanksThatDifferAreTold) {
  const auto differ = [](const std::function<void(BorrowedHeap&)>& spoil) {
    Lender lender = make_lender(3, 3);
    const auto change = [&](uint32_t rank, BorrowedHeap& heap) {
      if (rank == 2) spoil(heap);
    };
    expect_refused(lender, change, Status::kInvalidUsage, "ranks 0 and 2 have different settings or heaps");
  };
  differ([](BorrowedHeap& heap) { heap.backend.type = kSymmNccl; });
  differ([](BorrowedHeap& heap) { heap.length_bytes -= 1; });
  differ([](BorrowedHeap& heap) { heap.backend.extension.push_back({}); });
  differ([](BorrowedHeap& heap) { heap.backend.is_world_only = true; });
}

// 0 and 1 reach each other, as do 1 and 2: no two ranks disagree about each other, and still there is no
// domain.
TEST(BorrowedHeap, ReachIsAllInAll) {
  Lender lender = make_lender(3, 3);
  expect_refused(
      lender,
      [](uint32_t rank, BorrowedHeap& heap) {
        if (rank != 1) heap.deltas[2 - rank] = kSymmOutOfReach;
      },
      Status::kInvalidArgument, "unlike other ranks of its group");
}

}  // namespace
}  // namespace verbena::symm
