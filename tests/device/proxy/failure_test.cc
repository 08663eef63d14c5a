// NICs that fail while kernels wait: every affected rank gets the error, the host knows the cause, and no
// kernel hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "device/proxy/support/rdma_fleet.h"
#include "transport/support/processes.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::BlockGroup;
using emulator::require;
using emulator::require_done;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kAdd = SymmSignalOperation::kAdd;
constexpr uint32_t kThreads = 32;

// Rank 0's kernel in a process whose plan of faults is its own, and for whom the first failure is the last.
template <typename Kernel, typename Look>
void run_with_faults(const char* plan, const Kernel& kernel, const Look& look,
                     uint64_t timeout_ns = 60'000'000'000, int64_t proxy_timeout_ms = -1,
                     const char* failover = "0") {
  transport::run_process([&] {
    setenv("SOFTVERBS_FAULTS", plan, 1);
    setenv("VERBENA_FAILOVER", failover, 1);
    FleetShape shape = make_shape(2);
    shape.proxy_timeout_ms = proxy_timeout_ms;
    RdmaFleet fleet(shape);
    fleet.context(0).timeout_ns = timeout_ns;
    run_on_all(fleet, 1, 1, kThreads, [&](int32_t rank) {
      if (rank == 0) kernel(fleet);
    });
    look(fleet);
  });
}

void put_many(RdmaFleet& fleet, int count) {
  const SymmContext& mine = fleet.context(0);
  for (int i = 0; i < count; ++i) {
    const SymmStatus status =
        device::symm_put_async(mine, fleet.data(0), fleet.data(0, 65536), 10'000, 1, BlockGroup{});
    require(status == SymmStatus::kDone || status == SymmStatus::kNetworkFailed, "put");
  }
}

void expect_network_failed(RdmaFleet& fleet, const char* cause) {
  EXPECT_EQ(fleet.abort(0).value(), SymmAbort::kNetworkFailed);
  EXPECT_THAT(fleet.proxy(0).error(), HasSubstr("rank 1, rail softverbs0:1"));
  EXPECT_THAT(fleet.proxy(0).error(), HasSubstr(cause));
  EXPECT_THAT(fleet.proxy(1).error(), AnyOf(IsEmpty(), HasSubstr("closed its connection to this rank")));
}

TEST(ProxyFailureTest, APutThatFailsEndsQuiet) {
  run_with_faults(
      "fail nth=40 opcode=RDMA_WRITE status=RETRY_EXC",
      [](RdmaFleet& fleet) {
        put_many(fleet, 100);
        require(device::symm_quiet(fleet.context(0), BlockGroup{}) == SymmStatus::kNetworkFailed, "quiet");
        require(device::symm_quiet(fleet.context(0), BlockGroup{}) == SymmStatus::kNetworkFailed,
                "and again");
      },
      [](RdmaFleet& fleet) { expect_network_failed(fleet, "retries exhausted"); });
}

TEST(ProxyFailureTest, WithFailoverAPutThatFailsAndAnAddWhoseAnswerIsLostGoOn) {
  run_with_faults(
      "fail nth=40 opcode=RDMA_WRITE status=RETRY_EXC; "
      "fail nth=3 work=done opcode=ATOMIC_FETCH_AND_ADD status=RETRY_EXC",
      [](RdmaFleet& fleet) {
        const SymmContext& mine = fleet.context(0);
        put_many(fleet, 100);
        for (int i = 0; i < 5; ++i)
          require_done(device::symm_signal(mine, 0, 1, 1, kAdd, BlockGroup{}), "signal");
        require_done(device::symm_quiet(mine, BlockGroup{}), "quiet");
      },
      [](RdmaFleet& fleet) {
        EXPECT_EQ(fleet.abort(0).value(), SymmAbort::kNone);
        EXPECT_EQ(fleet.proxy(0).error(), "");
      },
      60'000'000'000, -1, "1");
}

// In the middle of a list of pieces: all of them arrive, and the signal behind them once.
TEST(ProxyFailureTest, WithFailoverPiecesArriveBeforeTheirSignal) {
  constexpr uint32_t kPieces = 60;
  constexpr uint64_t kPieceBytes = 640;
  run_with_faults(
      "fail nth=20 opcode=RDMA_WRITE status=RETRY_EXC; fail nth=50 work=done opcode=RDMA_WRITE "
      "status=RETRY_EXC",
      [](RdmaFleet& fleet) {
        const SymmContext& mine = fleet.context(0);
        const BlockGroup block;
        for (uint64_t i = device::thread_index(); i < kPieces * kPieceBytes; i += kThreads)
          device::store<device::Order::kWeak, device::Scope::kThreads>(fleet.data(0, 65536 + i),
                                                                       static_cast<uint8_t>(i * 7 + 1));
        block.sync();
        SymmPiece pieces[kPieces];
        for (uint32_t i = 0; i < kPieces; ++i)
          pieces[i] = {fleet.data(0, i * kPieceBytes), fleet.data(0, 65536 + i * kPieceBytes), kPieceBytes};
        require_done(device::symm_put_pieces_signal(mine, pieces, kPieces, 1, 0, 1, kAdd, block), "pieces");
        require_done(device::symm_quiet(mine, block), "quiet");
      },
      [](RdmaFleet& fleet) {
        EXPECT_EQ(fleet.abort(0).value(), SymmAbort::kNone);
        EXPECT_EQ(fleet.proxy(0).error(), "");
        for (uint64_t i = 0; i < kPieces * kPieceBytes; ++i)
          ASSERT_EQ(*fleet.data(1, i), static_cast<uint8_t>(i * 7 + 1)) << i;
        EXPECT_EQ(fleet.context(1).remote_signals[0], 1U);
      },
      60'000'000'000, -1, "1");
}

TEST(ProxyFailureTest, ASignalThatFailsEndsABarrier) {
  run_with_faults(
      "fail nth=3 opcode=ATOMIC_FETCH_AND_ADD status=REM_ACCESS",
      [](RdmaFleet& fleet) {
        const SymmContext& mine = fleet.context(0);
        for (int i = 0; i < 3; ++i)
          require_done(device::symm_signal(mine, 0, 1, 1, kAdd, BlockGroup{}), "signal");
        require(device::symm_barrier(mine, 0) == SymmStatus::kNetworkFailed, "barrier");
      },
      [](RdmaFleet& fleet) { expect_network_failed(fleet, "remote access error"); });
}

TEST(ProxyFailureTest, AGetThatFailsIsNotThere) {
  run_with_faults(
      "fail nth=1 opcode=RDMA_READ status=RETRY_EXC",
      [](RdmaFleet& fleet) {
        require(device::symm_get(fleet.context(0), fleet.data(0), fleet.data(0), 64, 1, BlockGroup{}) ==
                    SymmStatus::kNetworkFailed,
                "get");
      },
      [](RdmaFleet& fleet) { expect_network_failed(fleet, "retries exhausted"); });
}

TEST(ProxyFailureTest, ASignalThatCannotBeReadToBeSetEndsAWait) {
  run_with_faults(
      "fail nth=1 opcode=RDMA_READ status=RETRY_EXC",
      [](RdmaFleet& fleet) {
        const SymmContext& mine = fleet.context(0);
        require_done(device::symm_signal(mine, 0, 1, 1, SymmSignalOperation::kSet, BlockGroup{}), "set");
        require(device::symm_signal_wait_until<int64_t>(mine, 1, SymmCompare::kEqual, 1, nullptr,
                                                        BlockGroup{}) == SymmStatus::kNetworkFailed,
                "wait");
      },
      [](RdmaFleet& fleet) { expect_network_failed(fleet, "retries exhausted"); });
}

// If the NIC never reports a completion, waits end at the context's timeout, or from outside.
TEST(ProxyFailureTest, ACompletionThatNeverComesIsTimedOut) {
  run_with_faults(
      "drop nth=1 opcode=RDMA_WRITE",
      [](RdmaFleet& fleet) {
        put_many(fleet, 1);
        require(device::symm_quiet(fleet.context(0), BlockGroup{}) == SymmStatus::kTimedOut, "quiet");
        if (device::thread_index() == 0) fleet.proxy(0).fail("rank 1 does not answer");
        require(device::symm_barrier(fleet.context(0), 0) == SymmStatus::kNetworkFailed, "barrier");
      },
      [](RdmaFleet& fleet) { EXPECT_EQ(fleet.proxy(0).error(), "rank 1 does not answer"); }, 100'000'000);
}

// The proxy's patience ends before the kernel's: the cause is known, and the context ends.
TEST(ProxyFailureTest, ACompletionThatNeverComesEndsTheContext) {
  run_with_faults(
      "drop nth=1 opcode=RDMA_WRITE",
      [](RdmaFleet& fleet) {
        put_many(fleet, 1);
        require(device::symm_quiet(fleet.context(0), BlockGroup{}) == SymmStatus::kNetworkFailed, "quiet");
      },
      [](RdmaFleet& fleet) { expect_network_failed(fleet, "put queue 0: descriptor 0 did not complete"); },
      60'000'000'000, 100);
}

// Between two ranks of one process: a kernel that continues to post gets the error, and so do waiting
// kernels.
TEST(ProxyFailureTest, AWrongDescriptorEndsAllWaits) {
  RdmaFleet fleet(make_shape(2));
  fleet.context(0).heap_end += 4096;  // so that the kernel asks for what is in no window
  run_on_all(fleet, 2, 2, kThreads, [&](int32_t rank) {
    if (rank != 0) return;
    const SymmContext& mine = fleet.context(0);
    if (device::block_index() == 0) {
      require(device::symm_barrier(mine, 0) == SymmStatus::kRefused, "the other block");
      return;
    }
    require_done(device::symm_put_async(mine, fleet.heap(0) + RdmaFleet::kHeapBytes, fleet.data(0), 8, 1,
                                        BlockGroup{}),
                 "asked for");
    require(device::symm_quiet(mine, BlockGroup{}) == SymmStatus::kRefused, "refused");
  });
  EXPECT_THAT(fleet.proxy(0).error(), HasSubstr("the remote address is outside every window"));
  EXPECT_EQ(fleet.abort(0).value(), SymmAbort::kRefused);
}

TEST(ProxyFailureTest, AUserEndsWhatWaits) {
  RdmaFleet fleet(make_shape(2));
  run_on_all(fleet, 3, 2, kThreads, [&](int32_t rank) {
    if (rank != 0) return;
    if (device::block_index() == 1) {
      if (device::thread_index() == 0) fleet.abort(0).raise(SymmAbort::kByUser);
      return;
    }
    require(device::symm_barrier(fleet.context(0), 0) == SymmStatus::kAborted, "barrier");
  });
  EXPECT_EQ(fleet.proxy(0).error(), "");
}

// Windows come and go while the proxy works for others.
TEST(ProxyFailureTest, WindowsChangeBesideTheProxy) {
  RdmaFleet fleet(make_shape(2));
  std::atomic<bool> is_over{false};
  std::thread host([&] {
    while (!is_over.load(std::memory_order_relaxed)) {
      EXPECT_TRUE(fleet.proxy(0).add_window(RdmaFleet::kHeapBytes + 4096, 4096, 9));
      fleet.proxy(0).remove_window(RdmaFleet::kHeapBytes + 4096);
    }
  });
  run_on_all(fleet, 4, 1, kThreads, [&](int32_t rank) {
    for (int i = 0; i < 30; ++i)
      require(device::symm_signal(fleet.context(rank), 0, 1 - rank, 1, kAdd) == SymmStatus::kDone &&
                  device::symm_quiet(fleet.context(rank)) == SymmStatus::kDone,
              "signal");
  });
  is_over.store(true);
  host.join();
  EXPECT_EQ(fleet.proxy(0).error(), "");
}

// Without requests the proxy sleeps; the next request wakes it.
TEST(ProxyFailureTest, AnIdleProxySleeps) {
  RdmaFleet fleet(make_shape(2));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (fleet.proxy(0).counts().sleeps < 20 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_GE(fleet.proxy(0).counts().sleeps, 20U);
  run_on_all(fleet, 5, 1, 1, [&](int32_t rank) {
    require(device::symm_signal(fleet.context(rank), 0, 1 - rank, 1, kAdd) == SymmStatus::kDone &&
                device::symm_quiet(fleet.context(rank)) == SymmStatus::kDone,
            "signal");
  });
  EXPECT_EQ(fleet.proxy(0).counts().descriptors, 1U);
}

}  // namespace
}  // namespace verbena::device_test
