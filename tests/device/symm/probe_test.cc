// What symm_* calls count, note in a trace, and pretend to fail at.
#define VERBENA_DEVICE_FAULTS
#define VERBENA_DEVICE_PROBES
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "device/symm/host_proxy.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::BlockGroup;
using device::TraceEvent;
using emulator::require;
using emulator::require_done;
using emulator::World;

class Ring {
 public:
  static constexpr uint64_t kEntries = 64;

  device::TraceRing* get() { return new (memory_) device::TraceRing{0, kEntries}; }
  // Of all entries, in their order.
  std::vector<device::TraceEntry> read(device::TraceRing* ring) const {
    return {ring->slots(), ring->slots() + ring->tail};
  }

 private:
  alignas(16) unsigned char memory_[sizeof(device::TraceRing) + kEntries * sizeof(device::TraceEntry)] = {};
};

// Rank 0 by blocks of 64 threads, rank 1 by a thread; the calls of a group count once.
TEST(SymmProbe, CountsAndNotesCalls) {
  Fleet fleet(2);
  Ring ring;
  SymmProbes probes{};
  probes.trace = ring.get();
  fleet.context(0).probes = &probes;
  World world(1);
  world.add_grid(0, 1, 64, [&] {
    const SymmContext& mine = fleet.context(0);
    const BlockGroup block;
    auto* const data = fleet.data(0);
    auto* const words = fleet.data<uint64_t>(0, 4096);
    device::symm_put_async(mine, data, data, 100, 1, block);
    device::symm_put_signal_async(mine, data, data, 8, 1, 7, 3, SymmSignalOperation::kAdd, block);
    device::symm_put_rows(mine, data + 1024, 64, data, 64, 10, 4, 1, block);
    device::symm_get(mine, data + 512, data, 30, 1, block);
    device::SymmRequest request;
    device::symm_get_async(mine, data + 512, data, 20, 1, &request, block);
    require_done(device::symm_request_wait(mine, request, block), "request");
    device::symm_signal(mine, 5, 1, 9, SymmSignalOperation::kSet, block);
    device::symm_put_value(mine, words, 4, 1, block);
    device::symm_add(mine, words, 4, 1, block);
    uint64_t before = 0;
    require(device::symm_fetch_add(mine, words, 4, 1, &before, block) == SymmStatus::kDone && before == 8,
            "before");
    require_done(device::symm_compare_swap(mine, words, 12, 1, 1, &before, block), "swap");
    require_done(device::symm_signal_wait_until<int64_t>(mine, 2, SymmCompare::kEqual, 1, nullptr, block),
                 "signal");
    require_done(device::symm_barrier(mine, 3, block), "barrier");
    require_done(device::symm_wait_until<int64_t>(mine, words + 1, SymmCompare::kEqual, 0, nullptr, block),
                 "word");
    require_done(device::symm_wait_until_all(mine, words + 1, 2, SymmCompare::kEqual, 0, block), "all");
    uint32_t which = 0;
    require_done(
        device::symm_wait_until_any(mine, words + 1, 2, SymmCompare::kEqual, 0, nullptr, &which, block),
        "any");
    require_done(device::symm_quiet(mine, block), "quiet");
    require_done(device::symm_flush(mine, block), "flush");
    // What is refused is no call.
    device::symm_put_async(mine, data, data, 100, 2, block);
    device::symm_signal(mine, kSymmSignals, 1, 9, SymmSignalOperation::kSet, block);
  });
  world.add_grid(1, 1, 64, [&] {
    if (device::thread_index() == 0)
      device::symm_signal(fleet.context(1), 2, 0, 1, SymmSignalOperation::kAdd);
    require_done(device::symm_barrier(fleet.context(1), 3, BlockGroup{}), "barrier");
  });
  ASSERT_EQ(world.run(), "");
  EXPECT_EQ(probes.puts, 3u);
  EXPECT_EQ(probes.put_bytes, 100u + 8 + 40);
  EXPECT_EQ(probes.gets, 2u);
  EXPECT_EQ(probes.get_bytes, 50u);
  EXPECT_EQ(probes.signals, 2u);
  EXPECT_EQ(probes.updates, 4u);
  EXPECT_EQ(probes.waits, 8u);
  EXPECT_GT(probes.wait_ns, 0u);
  EXPECT_EQ(probes.late_waits, 0u);
  const auto entries = ring.read(probes.trace);
  ASSERT_EQ(entries.size(), 3u + 2 + 2 + 4 + 8);
  EXPECT_EQ(entries[0].event, static_cast<uint16_t>(TraceEvent::kSymmPut));
  EXPECT_EQ(entries[0].data[0], 1u) << "the peer";
  EXPECT_EQ(entries[0].data[1], 100u);
  EXPECT_EQ(entries[2].event, static_cast<uint16_t>(TraceEvent::kSymmSignal));
  EXPECT_EQ(entries[2].group, 7u);
  EXPECT_EQ(entries[2].data[1], 3u);
  EXPECT_EQ(entries.back().event, static_cast<uint16_t>(TraceEvent::kSymmWaited));
}

TEST(SymmProbe, AWaitThatEndsByTimeIsLate) {
  Fleet fleet(2);
  Ring ring;
  SymmProbes probes{};
  probes.trace = ring.get();
  fleet.context(0).probes = &probes;
  fleet.context(0).timeout_ns = 10'000;
  emulator::run_kernel(0, 1, 32, [&] {
    require(device::symm_signal_wait_until<int64_t>(fleet.context(0), 9, SymmCompare::kEqual, 1, nullptr,
                                                    device::WarpGroup{}) == SymmStatus::kTimedOut,
            "late");
  });
  EXPECT_EQ(probes.waits, 1u);
  EXPECT_EQ(probes.late_waits, 1u);
  EXPECT_GE(probes.wait_ns, 10'000u);
  const auto entries = ring.read(probes.trace);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].event, static_cast<uint16_t>(TraceEvent::kSymmLate));
  EXPECT_EQ(entries[0].group, 9u);
}

// While a kernel runs: a host sees what has been counted, and plants a fault.
TEST(SymmProbe, AHostReadsAndWritesMeanwhile) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    constexpr auto kDrop = static_cast<uint64_t>(SymmFault::kDropSignal);
    constexpr auto kDelay = static_cast<uint64_t>(SymmFault::kDelayPuts);
    Fleet fleet(2);
    SymmProbes probes{};
    fleet.context(0).probes = &probes;
    const auto host = [&] {
      while (__atomic_load_n(&probes.puts, __ATOMIC_RELAXED) == 0) emulator::yield();
      __atomic_store_n(&probes.faults, kDrop | kDelay, __ATOMIC_RELAXED);
    };
    emulator::run_beside(host, seed, 1, 1, [&] {
      const SymmContext& mine = fleet.context(0);
      device::symm_put_async(mine, fleet.data(0), fleet.data(0), 8, 1);
      // Until a signal is lost.
      for (uint64_t sent = 1;; ++sent) {
        device::symm_signal(mine, 0, 1, 1, SymmSignalOperation::kAdd);
        device::symm_put_async(mine, fleet.data(0), fleet.data(0), 8, 1);
        if (device::symm_signal_read(fleet.context(1), 0) != sent) break;
      }
    });
    EXPECT_EQ(probes.faults, kDelay);
  }
}

// ---- Faults ----

// The first signal is lost, its receiver's time is over and tells so; the next one comes.
TEST(SymmProbe, ADroppedSignalIsMissed) {
  Fleet fleet(2);
  SymmProbes probes{};
  probes.faults = static_cast<uint64_t>(SymmFault::kDropSignal);
  fleet.context(0).probes = &probes;
  fleet.context(1).timeout_ns = 100'000;
  World world;
  world.add_grid(0, 1, 64, [&] {
    for (uint32_t signal = 0; signal < 2; ++signal)
      require_done(device::symm_put_signal_async(fleet.context(0), fleet.data(0), fleet.data(0), 8, 1, signal,
                                                 1, SymmSignalOperation::kAdd, BlockGroup{}),
                   "its sender is told that it was sent");
  });
  world.add_grid(1, 1, 1, [&] {
    require_done(device::symm_signal_wait_until<int64_t>(fleet.context(1), 1, SymmCompare::kEqual, 1),
                 "the second one");
    require(device::symm_signal_wait_until<int64_t>(fleet.context(1), 0, SymmCompare::kEqual, 1) ==
                SymmStatus::kTimedOut,
            "the first one");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(probes.faults, 0u) << "it happens once";
  EXPECT_NE(*fleet.context(0).failure, 0u);
}

// Towards a NIC: the data goes, the signal does not.
TEST(SymmProbe, ADroppedSignalIsNotAskedFor) {
  HostProxy proxy(1, 3);
  SymmProbes probes{};
  proxy.context().probes = &probes;
  emulator::run_kernel(0, 1, 1, [&] {
    probes.faults = static_cast<uint64_t>(SymmFault::kDropSignal);
    device::symm_put_signal_async(proxy.context(), proxy.data(), proxy.data(), 8, 1, 3, 1);
    probes.faults = static_cast<uint64_t>(SymmFault::kDropSignal);
    device::symm_signal(proxy.context(), 4, 1, 1, SymmSignalOperation::kAdd);
    probes.faults = static_cast<uint64_t>(SymmFault::kDropSignal);
    device::symm_signal_after_puts(proxy.context(), 4, 1, 1, SymmSignalOperation::kAdd);
    device::symm_signal(proxy.context(), 5, 1, 1, SymmSignalOperation::kAdd);
  });
  const auto put = proxy.take(0), signal = proxy.take(0);
  ASSERT_TRUE(put && signal);
  EXPECT_EQ(signal->place, proxy.offset_of(proxy.context().remote_signals + 5));
  EXPECT_FALSE(proxy.take(0));
  EXPECT_EQ(probes.signals, 4u) << "what was asked for";
}

// A wait that would be done at once; the group's threads agree, and all of the team are told.
TEST(SymmProbe, AWaitIsLateOrAborted) {
  Fleet fleet(2);
  SymmProbes probes{};
  const uint32_t abort_word = 0;
  fleet.context(0).probes = &probes;
  emulator::run_kernel(0, 1, 64, [&] {
    SymmContext& mine = fleet.context(0);
    const BlockGroup block;
    const auto wait = [&] {
      return device::symm_wait_until<int64_t>(mine, fleet.data<uint64_t>(0), SymmCompare::kEqual, 0, nullptr,
                                              block);
    };
    const auto plant = [&](SymmFault fault) {
      block.sync();
      if (block.rank() == 0) probes.faults = static_cast<uint64_t>(fault);
      block.sync();
    };
    plant(SymmFault::kForceAbort);
    require_done(wait(), "without an abort word nothing is aborted");
    block.sync();
    if (block.rank() == 0) mine.abort_word = &abort_word;
    block.sync();
    require(wait() == SymmStatus::kAborted, "aborted");
    require_done(wait(), "once");
    plant(SymmFault::kLateWait);
    require(wait() == SymmStatus::kTimedOut, "late");
  });
  EXPECT_EQ(probes.faults, 0u);
  EXPECT_NE(*fleet.context(1).failure, 0u) << "the peer is told";
}

// Puts that are slow are whole all the same.
TEST(SymmProbe, PutsAreDelayed) {
  const auto measure = [](uint64_t faults) {
    Fleet fleet(2);
    SymmProbes probes{};
    probes.faults = faults;
    fleet.context(0).probes = &probes;
    std::atomic<uint64_t> took_ns = 0;
    emulator::run_kernel(0, 1, 1, [&] {
      const uint64_t begun_ns = device::clock_ns();
      for (int i = 0; i < 4; ++i)
        device::symm_put_async(fleet.context(0), fleet.data(0, 64), fleet.data(0), 8, 1);
      took_ns = device::clock_ns() - begun_ns;
    });
    EXPECT_EQ(probes.faults, faults) << "it stays";
    return took_ns.load();
  };
  EXPECT_GE(measure(static_cast<uint64_t>(SymmFault::kDelayPuts)), measure(0) + 4000);
}

}  // namespace
}  // namespace verbena::device_test
