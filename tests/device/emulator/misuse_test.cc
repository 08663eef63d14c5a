// Kernels that are wrong, and the words with which the emulator refuses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "verbena/device/emulation.h"

namespace verbena::emulator {
namespace {

using namespace device;             // NOLINT
using namespace device::emulation;  // NOLINT
using testing::AllOf;
using testing::HasSubstr;

std::string run_kernel(uint32_t threads, std::function<void()> kernel) {
  World world;
  world.add_grid(0, 1, threads, std::move(kernel));
  return world.run();
}

TEST(Misuse, DivergentBarrierIsADeadlockThatNamesTheThreads) {
  const std::string text = run_kernel(64, [] {
    if (index().thread != 31) sync_block();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("deadlock"), HasSubstr("threads 0-30,32-63: waits in barrier 0x0"),
                          HasSubstr("(63 of 64 came)"), HasSubstr("threads 31: ended")));
}

TEST(Misuse, LanesThatNameDifferentMasksNeverMeet) {
  const std::string text = run_kernel(32, [] { sync_warp(index().thread == 0 ? 0x1ffffu : kFullWarp); });
  EXPECT_THAT(text, AllOf(HasSubstr("deadlock"), HasSubstr("threads 0: waits in sync_warp 0x1ffff"),
                          HasSubstr("threads 1-31: waits in sync_warp 0xffffffff")));
}

TEST(Misuse, FlagThatNobodySetsIsALivelock) {
  uint32_t flag = 0;
  const std::string text = run_kernel(4, [&] {
    uint32_t seen = 0;
    while (seen == 0) load(&seen, &flag, 4, Order::kAcquire, Scope::kGpu);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("livelock"), HasSubstr("threads 0-3: load at 0x")));
}

TEST(Misuse, FlagThatNobodySetsIsALivelockForThoseWhoPauseToo) {
  uint32_t flag = 0;
  const std::string text = run_kernel(2, [&] {
    uint32_t seen = 0;
    while (seen == 0) {
      load(&seen, &flag, 4, Order::kAcquire, Scope::kGpu);
      pause(100);
    }
  });
  EXPECT_THAT(text, HasSubstr("livelock"));
}

TEST(Misuse, BarrierCountsMustAgree) {
  EXPECT_THAT(run_kernel(64, [] { sync_named(1, index().thread < 32 ? 32 * 2 : 32); }),
              HasSubstr("barrier 1"));
  EXPECT_THAT(run_kernel(64, [] { sync_named(1, 33); }), HasSubstr("multiple of 32"));
  EXPECT_THAT(run_kernel(64, [] { sync_named(16, 64); }), HasSubstr("no barrier 16"));
  EXPECT_THAT(run_kernel(64, [] { sync_named(1, 96); }), HasSubstr("96 threads in a block of 64"));
}

TEST(Misuse, WarpOperationsNameLanesThatTakePart) {
  EXPECT_THAT(run_kernel(32, [] { sync_warp(0xfffffffe); }), HasSubstr("not among the lanes"));
  EXPECT_THAT(run_kernel(40, [] { sync_warp(kFullWarp); }), HasSubstr("does not have"));
  EXPECT_THAT(run_kernel(32, [] { shuffle(kFullWarp, 1, 32); }), HasSubstr("lane 32"));
}

TEST(Misuse, AccessesAreAligned) {
  alignas(16) char bytes[64] = {};
  for (size_t length : {2, 4, 8, 16}) {
    const std::string text = run_kernel(1, [&] {
      char value[16] = {};
      load(value, bytes + 16, length, Order::kWeak, Scope::kThreads);
      store(bytes + 16 + length / 2, value, length, Order::kWeak, Scope::kThreads);
    });
    EXPECT_THAT(text, HasSubstr("misaligned store of " + std::to_string(length) + " bytes"));
  }
  EXPECT_THAT(run_kernel(1, [&] { load(bytes, bytes + 16, 3, Order::kWeak, Scope::kThreads); }),
              HasSubstr("load of 3 bytes"));
}

TEST(Misuse, OrdersThatPtxDoesNotHave) {
  uint32_t word = 0;
  uint32_t value = 0;
  EXPECT_THAT(run_kernel(1, [&] { load(&value, &word, 4, Order::kRelease, Scope::kGpu); }),
              HasSubstr("no load"));
  EXPECT_THAT(run_kernel(1, [&] { store(&word, &value, 4, Order::kAcquire, Scope::kGpu); }),
              HasSubstr("no store"));
  EXPECT_THAT(run_kernel(1, [&] { fence(Order::kRelaxed, Scope::kGpu); }), HasSubstr("no fence"));
}

TEST(Misuse, SharedMemoryHasEdges) {
  if (kThreadSanitizer) GTEST_SKIP() << "its threads write the same byte on purpose";
  static const char key = 0;
  EXPECT_THAT(run_kernel(32, [] { static_cast<volatile char*>(shared_memory(&key, 100, 16))[100] = 1; }),
              HasSubstr("beside a piece of shared memory of 100 bytes"));
  EXPECT_THAT(run_kernel(32, [] { shared_memory(&key, 1 << 20, 16); }), HasSubstr("bytes of shared memory"));
}

TEST(Misuse, HostFunctionsHaveNoBlock) {
  World world;
  world.add_host([] { sync_block(); });
  EXPECT_THAT(world.run(), HasSubstr("host 0: a host function calls sync_block"));
}

TEST(Misuse, RunThatNeverEndsIsStopped) {
  uint32_t word = 0;
  World world(0, {.stalled_steps = 200'000, .steps = 50'000});
  world.add_grid(0, 1, 1, [&] {
    for (;;) store(&word, &word, 4, Order::kRelaxed, Scope::kGpu);
  });
  EXPECT_THAT(world.run(), HasSubstr("still not done after 50001 steps"));
}

}  // namespace
}  // namespace verbena::emulator
