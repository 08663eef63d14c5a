// verbena.h over another library's symmetric memory, as a backend's makers use it: ranks are threads, the
// backend is the stub of docs/add-a-backend.md, and all ranks' kernels run in one world of emulated GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <thread>

#include "device/emulator/world.h"
#include "device/symm/stub_backend.cuh"
#include "symm/support/lender.h"
#include "verbena/verbena.hpp"

namespace verbena {
namespace {

using emulator::require;
using symm::Lender;
using testing::HasSubstr;

constexpr uint64_t kRoomBytes = 64 << 10;  // for windows

// The application's all-gather, among threads.
class Meeting {
 public:
  explicit Meeting(uint32_t count_ranks) : count_ranks_(count_ranks), barrier_(count_ranks) {}

  struct Seat {
    Meeting* meeting;
    uint32_t rank;
  };
  static int all_gather(void* argument, const void* mine, void* all, size_t bytes_each) {
    const Seat& seat = *static_cast<const Seat*>(argument);
    return seat.meeting->gather(seat.rank, static_cast<const std::byte*>(mine), static_cast<std::byte*>(all),
                                bytes_each);
  }

 private:
  int gather(uint32_t rank, const std::byte* mine, std::byte* all, size_t bytes_each) {
    if (rank == 0) table_.resize(count_ranks_ * bytes_each);
    barrier_.arrive_and_wait();
    std::copy_n(mine, bytes_each, table_.data() + rank * bytes_each);
    barrier_.arrive_and_wait();
    std::copy_n(table_.data(), table_.size(), all);
    barrier_.arrive_and_wait();
    return 0;
  }

  const uint32_t count_ranks_;
  std::barrier<> barrier_;
  std::vector<std::byte> table_;
};

// What a library that lends its heap to the stub says of one rank.
class StubHeap {
 public:
  StubHeap(Lender& lender, uint32_t rank) : deltas_(lender.find_deltas(rank)) {
    for (uint32_t peer = 0; peer < lender.count_ranks(); ++peer)
      far_deltas_.push_back(lender.distance(rank, peer));
    whole_.far_deltas = far_deltas_.data();
    whole_.arrival_counts = reinterpret_cast<uint64_t*>(lender.begin(rank) + lender.length_bytes());
    heap_ = {.type = kSymmStub,
             .begin = lender.begin(rank),
             .length_bytes = lender.length_bytes(),
             .deltas = deltas_.data(),
             .multicast_delta = 0,
             .extension = static_cast<const SymmContext*>(&whole_) + 1,
             .extension_bytes = sizeof(whole_) - sizeof(SymmContext),
             .is_world_only = 1,
             .release = &Lender::take_back,
             .argument = lender.argument(rank),
             .reach_bytes = 0,
             .aliases = nullptr,
             .count_aliases = 0};
  }
  StubHeap(const StubHeap&) = delete;

  verbena_heap& heap() { return heap_; }

 private:
  std::vector<int64_t> deltas_, far_deltas_;
  StubSymmContext whole_{};
  verbena_heap heap_{};
};

// `body` in each rank's thread.
void run_ranks(Lender& lender, const std::function<void(StubHeap& stub, Meeting::Seat& seat)>& body) {
  Meeting meeting(lender.count_ranks());
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < lender.count_ranks(); ++rank) {
    ranks.emplace_back([&, rank] {
      StubHeap stub(lender, rank);
      Meeting::Seat seat{&meeting, rank};
      body(stub, seat);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

SymmetricContext make_context(const Lender& lender, StubHeap& stub, Meeting::Seat& seat) {
  return SymmetricContext::over_heap(stub.heap(), &Meeting::all_gather, &seat, seat.rank,
                                     lender.count_ranks());
}

Lender make_lender(uint32_t count_ranks, uint32_t domain) {
  return Lender(count_ranks, domain, verbena_heap_words(count_ranks) + kRoomBytes);
}

// A number to the next rank with a signal, then to all ranks behind a barrier, by whichever way leads there.
void pass_around(const StubSymmContext& context, uint64_t* place, uint64_t round) {
  const device::BlockGroup block;
  const auto done = [](SymmStatus status) { return status == SymmStatus::kDone; };
  const int32_t size = context.team_size, next = (context.team_rank + 1) % size;
  const auto number = [&](int32_t rank) { return 1000 * round + static_cast<uint64_t>(rank); };
  uint64_t* const own = place + size;
  if (block.elect()) *own = number(context.team_rank);
  block.sync();
  require(done(device::symm_put_signal_async(context, place + size + 1, own, 8, next, 3, 1,
                                             SymmSignalOperation::kAdd, block)),
          "put and signal");
  require(done(device::symm_signal_wait_until<int64_t>(context, 3, SymmCompare::kGreaterEqual,
                                                       static_cast<int64_t>(round), nullptr, block)),
          "signaled");
  require(place[size + 1] == number((context.team_rank + size - 1) % size),
          "the number came before its signal");
  for (int32_t peer = 0; peer < size; ++peer)
    require(done(device::symm_put_async(context, place + context.team_rank, own, 8, peer, block)), "put");
  require(done(device::symm_barrier(context, 1, block)), "barrier");
  for (int32_t peer = 0; peer < size; ++peer)
    require(place[peer] == number(peer), "everybody's number is here");
  require(done(device::symm_barrier(context, 1, block)), "barrier");
}

class OverHeapTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Domains, OverHeapTest, testing::Values(4, 2, 1), testing::PrintToStringParamName());

TEST_P(OverHeapTest, KernelsRunOnABackendsContext) {
  constexpr uint32_t kRanks = 4, kRounds = 3;
  Lender lender = make_lender(kRanks, GetParam());
  const StubSymmContext* contexts[kRanks] = {};
  uint64_t* places[kRanks] = {};
  run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
    auto context = make_context(lender, stub, seat);
    const auto window = context.allocate((kRanks + 2) * sizeof(uint64_t));
    const auto world = context.world();
    // One rank's from the host, another's from the GPU's memory.
    contexts[seat.rank] =
        seat.rank % 2 == 0 ? &world.context<StubSymmContext>() : world.device_context<StubSymmContext>();
    places[seat.rank] = window.address<uint64_t>();
    context.barrier();
    if (seat.rank == 0) {
      emulator::World gpus(7);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        gpus.add_grid(rank, 1, 64, [&, rank] {
          for (uint64_t round = 1; round <= kRounds; ++round)
            pass_around(*contexts[rank], places[rank], round);
        });
      }
      EXPECT_EQ(gpus.run(), "");
    }
    context.barrier();
    context.check_error();
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(lender.count_returns(rank), 1);
}

TEST(OverHeap, WordsAreCounted) {
  const size_t two = verbena_heap_words(2), three = verbena_heap_words(3);
  EXPECT_GT(two, 0U);
  EXPECT_GT(three, two);
  EXPECT_EQ(two % 512, 0U);
  // With nothing but the words' bytes there is room for no window.
  Lender lender(2, 2, two);
  run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
    auto context = make_context(lender, stub, seat);
    EXPECT_THROW(context.allocate(1), Failure);
  });
}

// Behind what the backend adds to the context. Its network knows the world's words alone.
TEST(OverHeap, AWorkspaceWhereLoadsAndStoresReach) {
  for (const uint32_t domain : {2U, 1U}) {
    Lender lender = make_lender(2, domain);
    run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
      auto context = make_context(lender, stub, seat);
      verbena_workspace* made = nullptr;
      const auto world = context.world();
      const auto result = verbena_workspace_create(context.handle(), world.handle(), 4096, 2, &made);
      EXPECT_EQ(result, domain == 2 ? VERBENA_SUCCESS : VERBENA_INVALID_USAGE);
      if (result != VERBENA_SUCCESS) return;
      const SymmetricWorkspace workspace(made);
      const auto& kernel = workspace.workspace<StubSymmContext>();
      EXPECT_EQ(kernel.blocks.count, 2U);
      EXPECT_EQ(kernel.blocks.slot_bytes, 4096 / (2 * kSymmTurns * 2));
      EXPECT_EQ(kernel.context.far_deltas, world.context<StubSymmContext>().far_deltas);
    });
  }
}

// A buffer of the application's behind the heap, which kernels are given by its own address.
TEST(OverHeap, ABufferBehindTheHeap) {
  constexpr uint64_t kBufferBytes = 4096;
  static uint64_t own[2][kBufferBytes / 8];
  Lender lender = make_lender(2, 2);
  run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
    verbena_heap& heap = stub.heap();
    std::byte* const there = lender.begin(seat.rank) + lender.length_bytes() - kBufferBytes;
    const verbena_alias alias{own[seat.rank], kBufferBytes, there};
    heap.reach_bytes = heap.length_bytes;
    heap.length_bytes -= kBufferBytes;
    heap.count_aliases = 1;
    EXPECT_THROW(make_context(lender, stub, seat), Failure) << "without its aliases";
    heap.aliases = &alias;
    auto context = make_context(lender, stub, seat);
    const auto world = context.world();
    const StubSymmContext& kernel = world.context<StubSymmContext>();
    EXPECT_EQ(kernel.heap_end - kernel.heap_begin, heap.reach_bytes);
    EXPECT_THROW(context.allocate(kRoomBytes), Failure) << "windows are of the heap";
    context.barrier();
    emulator::World gpu(1);
    const uint64_t value = 500 + seat.rank;
    gpu.add_grid(0, 1, 1, [&] {
      require(device::symm_put_async(kernel, own[seat.rank] + 3, &value, 8,
                                     1 - static_cast<int32_t>(seat.rank)) == SymmStatus::kDone,
              "by its own address");
      require(device::symm_put_async(kernel, own[seat.rank] + kBufferBytes / 8, &value, 8, 0) ==
                  SymmStatus::kInvalid,
              "behind it");
    });
    EXPECT_EQ(gpu.run(), "");
    context.barrier();
    EXPECT_EQ(reinterpret_cast<uint64_t*>(there)[3], 501 - seat.rank);
    context.barrier();
  });
}

TEST(OverHeap, APlaceIsGivenBackAndTakenAgain) {
  Lender lender = make_lender(2, 1);
  run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
    for (int round = 0; round < 3; ++round) {
      {
        auto context = make_context(lender, stub, seat);
        const auto window = context.allocate(kRoomBytes);
        EXPECT_EQ(window.address(), lender.begin(seat.rank) + verbena_heap_words(2));
        EXPECT_EQ(verbena_window_find(context.handle(), window.address() + 77), window.handle());
        EXPECT_EQ(window.peer_address(1 - seat.rank), nullptr);
        EXPECT_EQ(lender.count_returns(seat.rank), round);
      }
      EXPECT_EQ(lender.count_returns(seat.rank), round + 1);
    }
  });
}

// Whatever is wrong with rank 1's is refused for both, and both heaps go back.
TEST(OverHeap, WhatIsNotThereIsRefused) {
  const auto refuse = [](const std::function<void(verbena_heap&)>& spoil, const char* text) {
    Lender lender = make_lender(2, 2);
    run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
      if (seat.rank == 1) spoil(stub.heap());
      verbena_context* context = nullptr;
      EXPECT_EQ(
          verbena_context_create_over_heap(&stub.heap(), &Meeting::all_gather, &seat, seat.rank, 2, &context),
          VERBENA_INVALID_ARGUMENT);
      EXPECT_THAT(verbena_last_error(), HasSubstr(text)) << "rank " << seat.rank;
      EXPECT_EQ(context, nullptr);
      EXPECT_EQ(lender.count_returns(seat.rank), 1);
    });
  };
  refuse([](verbena_heap& heap) { heap.deltas = nullptr; }, "deltas is NULL");
  refuse([](verbena_heap& heap) { heap.extension = nullptr; },
         "extension is NULL, but extension_bytes is 16");
  refuse([](verbena_heap& heap) { heap.begin = nullptr; }, "begin is NULL");
}

TEST(OverHeap, TheHeapGoesBackIfThereIsNobodyToAsk) {
  Lender lender = make_lender(1, 1);
  run_ranks(lender, [&](StubHeap& stub, Meeting::Seat& seat) {
    verbena_context* context = nullptr;
    const verbena_heap& heap = stub.heap();
    EXPECT_EQ(verbena_context_create_over_heap(&heap, &Meeting::all_gather, &seat, 0, 1, nullptr),
              VERBENA_INVALID_ARGUMENT);
    EXPECT_EQ(lender.count_returns(0), 1);
    EXPECT_EQ(verbena_context_create_over_heap(&heap, nullptr, nullptr, 0, 1, &context),
              VERBENA_INVALID_ARGUMENT);
    EXPECT_EQ(lender.count_returns(0), 2);
    EXPECT_EQ(verbena_context_create_over_heap(&heap, &Meeting::all_gather, &seat, 1, 1, &context),
              VERBENA_INVALID_ARGUMENT);
    EXPECT_EQ(lender.count_returns(0), 3);
    EXPECT_EQ(verbena_context_create_over_heap(nullptr, &Meeting::all_gather, &seat, 0, 1, &context),
              VERBENA_INVALID_ARGUMENT);
    EXPECT_EQ(lender.count_returns(0), 3);
    // A heap that is never returned.
    stub.heap().release = nullptr;
    EXPECT_EQ(verbena_context_create_over_heap(&heap, &Meeting::all_gather, &seat, 0, 1, &context),
              VERBENA_SUCCESS);
    EXPECT_EQ(verbena_context_destroy(context), VERBENA_SUCCESS);
  });
}

}  // namespace
}  // namespace verbena
