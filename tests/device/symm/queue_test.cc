// Producers of the put queues before a host that takes, gives room and completes as the test says: nothing is
// lost, doubled or torn, and no wait is without an end.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <vector>

#include "device/emulator/world.h"
#include "device/symm/host_proxy.h"
#include "verbena/device/barrier.cuh"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::Order;
using device::Scope;
using emulator::require;
using emulator::World;

constexpr auto kAdd = SymmSignalOperation::kAdd;

// Takes `count` descriptors of queue 0, and gives room and completes after each.
template <typename Look>
void serve(HostProxy& proxy, uint64_t count, const Look& look) {
  for (uint64_t taken = 0; taken < count;) {
    if (const auto descriptor = proxy.take(0)) {
      look(*descriptor, taken++);
      proxy.consume(0);
      proxy.complete(0);
    }
    emulator::yield();
  }
}

class SymmQueueTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, SymmQueueTest, testing::Range<uint64_t>(0, 9));

// 128 threads for 4 slots, around the ring many times: each put once, a thread's in its order.
TEST_P(SymmQueueTest, MoreThreadsThanSlots) {
  constexpr uint64_t kTimes = 6, kThreads = 64, kBlocks = 2;
  HostProxy proxy(1, 2);
  World world(GetParam());
  world.add_grid(0, kBlocks, kThreads, [&] {
    const uint64_t me = device::block_index() * kThreads + device::thread_index();
    for (uint64_t i = 0; i < kTimes; ++i)
      require(device::symm_put_async(proxy.context(), proxy.data(me * 8), proxy.data(i * 8), 1 + i, 1) ==
                  SymmStatus::kDone,
              "put");
  });
  std::vector<uint64_t> seen(kThreads * kBlocks);
  world.add_host([&] {
    serve(proxy, kTimes * kThreads * kBlocks, [&](const PutDescriptor& one, uint64_t) {
      const uint64_t thread = (one.place - HostProxy::kWordsBytes) / 8;
      require(operation_of(one) == PutOperation::kPut && peer_of(one) == 41,
              "a put to the peer's world rank");
      require(one.extent == 1 + seen[thread] && one.operand == HostProxy::kWordsBytes + 8 * seen[thread]++,
              "in order, not torn");
    });
  });
  EXPECT_EQ(world.run(), "");
}

TEST_P(SymmQueueTest, NothingComesBetweenAPutAndItsSignal) {
  constexpr uint64_t kTimes = 5, kThreads = 48;
  for (const uint32_t depth_shift : {1U, 3U}) {
    HostProxy proxy(1, depth_shift);
    World world(GetParam());
    world.add_grid(0, 1, kThreads, [&] {
      const uint64_t me = device::thread_index();
      for (uint64_t i = 0; i < kTimes; ++i)
        require(device::symm_put_signal_async(proxy.context(), proxy.data(me * 8), proxy.data(), 8, 1,
                                              static_cast<uint32_t>(me), i, kAdd) == SymmStatus::kDone,
                "put");
    });
    world.add_host([&] {
      uint64_t thread = 0;
      serve(proxy, 2 * kTimes * kThreads, [&](const PutDescriptor& one, uint64_t position) {
        if (position % 2 == 0) {
          require(operation_of(one) == PutOperation::kPut, "a put");
          thread = (one.place - HostProxy::kWordsBytes) / 8;
        } else {
          require(operation_of(one) == PutOperation::kAddWord &&
                      one.place == proxy.offset_of(proxy.context().remote_signals + thread),
                  "its signal");
        }
      });
    });
    EXPECT_EQ(world.run(), "");
  }
}

// Data that a block wrote is visible to the reader of the descriptor; data of a get is visible to the block.
TEST_P(SymmQueueTest, DataIsOrderedBothWays) {
  constexpr uint32_t kThreads = 64;
  HostProxy proxy(1, 1);
  auto* const there = proxy.data<uint32_t>();
  auto* const here = proxy.data<uint32_t>(4096);
  World world(GetParam());
  world.add_grid(0, 1, kThreads, [&] {
    const uint32_t me = device::thread_index();
    for (uint32_t round = 1; round < 5; ++round) {
      device::store<Order::kWeak, Scope::kThreads>(there + me, me * round);
      require(device::symm_put_async(proxy.context(), proxy.data(8192), there, 4 * kThreads, 1,
                                     device::BlockGroup{}) == SymmStatus::kDone,
              "put");
      require(device::symm_get(proxy.context(), here, proxy.data(8192), 4 * kThreads, 1,
                               device::BlockGroup{}) == SymmStatus::kDone,
              "get");
      require(device::load<Order::kWeak, Scope::kThreads>(here + (me + 1) % kThreads) ==
                  (me + 1) % kThreads * round + 1,
              "what was got");
    }
  });
  world.add_host([&] {
    serve(proxy, 8, [&](const PutDescriptor& one, uint64_t position) {
      if (operation_of(one) == PutOperation::kPut) {
        for (uint32_t i = 0; i < kThreads; ++i)
          require(there[i] == i * (1 + position / 2), "what was written");
      } else {
        for (uint32_t i = 0; i < kThreads; ++i) here[i] = there[i] + 1;
      }
    });
  });
  EXPECT_EQ(world.run(), "");
}

// Quiet by a block also waits for another block's earlier put in another queue, even if another quiet has
// already waited for it.
TEST_P(SymmQueueTest, QuietCoversAllQueues) {
  HostProxy proxy(2, 2);
  uint32_t flag = 0;
  uint64_t complete = 0;
  World world(GetParam());
  world.add_grid(0, 3, 1, [&] {
    if (device::block_index() == 1) {
      require(device::symm_put_async(proxy.context(), proxy.data(), proxy.data(), 8, 1) == SymmStatus::kDone,
              "put");
      device::store_release<Scope::kGpu>(&flag, 1);
      return;
    }
    const uint64_t* const seen = &proxy.context().queues.cursors[1].completed_seen;
    while (device::load_acquire<Scope::kGpu>(&flag) == 0) {
    }
    while (device::block_index() == 2 && device::load_relaxed<Scope::kGpu>(seen) == 0) {
    }
    const bool flushes = device::block_index() == 2;  // this block has no fence
    require((flushes ? device::symm_flush(proxy.context()) : device::symm_quiet(proxy.context())) ==
                SymmStatus::kDone,
            "quiet");
    require(complete == 1, "complete");
  });
  world.add_host([&] {
    while (!proxy.take(1)) emulator::yield();
    for (int i = 0; i < 300; ++i) emulator::yield();
    complete = 1;
    proxy.complete(1);
    proxy.consume(1);
  });
  EXPECT_EQ(world.run(), "");
}

// A rank tells others of a barrier only when what it put is complete.
// Contexts that begin with another queue.
TEST(SymmQueue, BlocksBeginWithTheContextsQueue) {
  HostProxy proxy(2, 3);
  proxy.context().first_queue = 3;
  World world(1);
  world.add_grid(0, 2, 1, [&] {
    require(device::symm_put_async(proxy.context(), proxy.data(64 * device::block_index()), proxy.data(), 8,
                                   1) == SymmStatus::kDone,
            "put");
  });
  EXPECT_EQ(world.run(), "");
  for (const uint32_t queue : {0U, 1U}) {
    const auto one = proxy.take(queue);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->place, HostProxy::kWordsBytes + 64 * (1 - queue)) << "block 0 by queue 1";
    EXPECT_FALSE(proxy.take(queue));
  }
}

// Block 1's signal is behind block 0's put, which went through another queue, and block 1 does not wait.
TEST_P(SymmQueueTest, OneSignalBehindTheBlocksPuts) {
  HostProxy proxy(2, 3);
  uint64_t arrived = 0;
  World world(GetParam());
  world.add_grid(0, 2, 32, [&] {
    const SymmContext& context = proxy.context();
    const device::BlockGroup block;
    const device::GridBarrier grid{&arrived, 2};
    if (device::block_index() == 0)
      require(device::symm_put_async(context, proxy.data(), proxy.data(), 64, 1, block) == SymmStatus::kDone,
              "put");
    require(grid.sync(device::WaitLimits::within(context.timeout_ns)) == device::WaitResult::kReached,
            "grid");
    if (device::block_index() == 0) return;
    for (int round = 0; round < 2; ++round) {
      require(device::symm_signal_behind_all(context, 7, 1, 3, SymmSignalOperation::kIncrement, block) ==
                  SymmStatus::kDone,
              "signal");
      if (round == 0) require(device::symm_quiet(context, block) == SymmStatus::kDone, "quiet");
    }
    require(device::symm_signal_behind_all(context, 7, 2, 3, kAdd, block) == SymmStatus::kInvalid, "member");
  });
  world.add_host([&] {
    std::vector<PutDescriptor> asked;
    const auto take = [&] {
      const auto one = proxy.take(1);
      if (one) asked.push_back(*one);
      return one.has_value();
    };
    while (!proxy.take(0)) emulator::yield();
    while (asked.size() < 2)
      if (!take()) emulator::yield();
    for (const uint32_t queue : {0U, 1U}) proxy.consume(queue), proxy.complete(queue);
    require(operation_of(asked[0]) == PutOperation::kAwaitQueue && asked[0].operand == 1 &&
                asked[0].extent == 0 && peer_of(asked[0]) == 41,
            "queue 0's put first");
    require(operation_of(asked[1]) == PutOperation::kAddWord && asked[1].operand == 1, "the signal");
    while (asked.size() < 3)
      if (!take()) emulator::yield();
    require(operation_of(asked[2]) == PutOperation::kAddWord, "nothing is left to wait for");
  });
  EXPECT_EQ(world.run(), "");
}

TEST_P(SymmQueueTest, ABarrierCompletesWhatWasPut) {
  HostProxy proxy(1, 3, 3);
  SymmContext& context = proxy.context();
  World world(GetParam());
  world.add_grid(0, 1, 32, [&] {
    require(device::symm_put_async(context, proxy.data(), proxy.data(), 8, 2, device::BlockGroup{}) ==
                SymmStatus::kDone,
            "put");
    require(device::symm_barrier(context, 7, device::BlockGroup{}) == SymmStatus::kDone, "barrier");
  });
  world.add_host([&] {
    while (!proxy.take(0)) emulator::yield();
    for (int i = 0; i < 300; ++i) {
      require(!proxy.take(0), "it waits");
      emulator::yield();
    }
    proxy.complete(0);
    uint64_t* const arrivals = context.arrivals + (kSymmBarriers + 7) * 3;
    for (int told = 0; told < 2;) {
      if (const auto one = proxy.take(0)) {
        require(operation_of(*one) == PutOperation::kWriteWord && one->operand == 1 &&
                    one->place == proxy.offset_of(arrivals),
                "its word at the others");
        ++told;
      }
      emulator::yield();
    }
    for (int peer = 1; peer < 3; ++peer) __atomic_store_n(arrivals + peer, 1, __ATOMIC_RELEASE);
  });
  EXPECT_EQ(world.run(), "");
}

TEST(SymmQueue, GivingUpLeavesNoHole) {
  HostProxy proxy(1, 2);
  proxy.context().timeout_ns = 20'000;
  std::atomic<int> put{0}, gave_up{0};
  World first(5);
  first.add_grid(0, 1, 32, [&] {
    const SymmStatus status =
        device::symm_put_signal_async(proxy.context(), proxy.data(), proxy.data(), 8, 1, 0, 1);
    require(status == SymmStatus::kDone || status == SymmStatus::kTimedOut, "one or the other");
    (status == SymmStatus::kDone ? put : gave_up).fetch_add(1, std::memory_order_relaxed);
  });
  EXPECT_EQ(first.run(), "");
  EXPECT_EQ(put, 2) << "what there are slots for";
  EXPECT_EQ(gave_up, 30);
  World second(6);
  proxy.context().timeout_ns = 1'000'000'000;
  second.add_grid(0, 1, 32, [&] {
    require(device::symm_put_async(proxy.context(), proxy.data(), proxy.data(), 16, 1) == SymmStatus::kDone,
            "put");
  });
  second.add_host([&] { serve(proxy, 2 * 2 + 32, [](const PutDescriptor&, uint64_t) {}); });
  EXPECT_EQ(second.run(), "");
  EXPECT_FALSE(proxy.take(0)) << "and no more";
}

struct Ending {
  const char* name;
  SymmAbort reason;
  SymmStatus status;
};
class SymmEndTest : public testing::TestWithParam<Ending> {};
INSTANTIATE_TEST_SUITE_P(Reasons, SymmEndTest,
                         testing::Values(Ending{"ByUser", SymmAbort::kByUser, SymmStatus::kAborted},
                                         Ending{"ForAnUnknownReason", SymmAbort{77}, SymmStatus::kAborted},
                                         Ending{"NetworkFailed", SymmAbort::kNetworkFailed,
                                                SymmStatus::kNetworkFailed},
                                         Ending{"Refused", SymmAbort::kRefused, SymmStatus::kRefused}),
                         [](const auto& ending) { return std::string(ending.param.name); });

// Every call of a block that waits is interrupted: all threads get the same result.
TEST_P(SymmEndTest, EndsEveryWait) {
  const std::vector<std::function<SymmStatus(HostProxy&)>> waits = {
      [](HostProxy& p) { return device::symm_quiet(p.context(), device::BlockGroup{}); },
      [](HostProxy& p) { return device::symm_quiet(p.context(), 1, device::BlockGroup{}); },
      [](HostProxy& p) { return device::symm_flush(p.context(), device::BlockGroup{}); },
      [](HostProxy& p) { return device::symm_barrier(p.context(), 0, device::BlockGroup{}); },
      [](HostProxy& p) { return device::symm_barrier_arrive(p.context(), 0, device::BlockGroup{}); },
      [](HostProxy& p) { return device::symm_barrier_wait(p.context(), 0, device::BlockGroup{}); },
      [](HostProxy& p) {
        return device::symm_get(p.context(), p.data(), p.data(), 8, 1, device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_put_async(p.context(), p.data(), p.data(), 8, 1, device::BlockGroup{});
      },
      [](HostProxy& p) { return device::symm_signal(p.context(), 0, 1, 1, kAdd, device::BlockGroup{}); },
      [](HostProxy& p) {
        return device::symm_put_signal_async(p.context(), p.data(), p.data(), 8, 1, 0, 1, kAdd,
                                             device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_signal_wait_until<int64_t>(p.context(), 0, SymmCompare::kEqual, 1, nullptr,
                                                       device::BlockGroup{});
      }};
  for (size_t i = 0; i < waits.size(); ++i) {
    HostProxy proxy(1, 1);
    uint32_t abort_word = 0;
    proxy.context().abort_word = &abort_word;
    World world(i);
    world.add_grid(0, 1, 64, [&] {
      // The queue is full and not served.
      for (int slot = 0; slot < 2; ++slot) {
        const SymmStatus status =
            device::thread_index() == 0
                ? device::symm_put_async(proxy.context(), proxy.data(), proxy.data(), 8, 1)
                : SymmStatus::kDone;
        require(status == SymmStatus::kDone, "there is room");
      }
      require(waits[i](proxy) == GetParam().status, "how it ended");
    });
    world.add_host([&] {
      emulator::wait_until_step(20'000);
      __atomic_store_n(&abort_word, static_cast<uint32_t>(GetParam().reason), __ATOMIC_RELEASE);
    });
    EXPECT_EQ(world.run(), "") << "wait " << i;
  }
}

TEST(SymmQueue, RefusesWhatIsNotInTheHeap) {
  HostProxy proxy(1, 2);
  SymmContext& context = proxy.context();
  uint8_t other[16] = {};
  World world;
  world.add_grid(0, 1, 1, [&] {
    require(device::symm_put_async(context, proxy.data(), other, 8, 1) == SymmStatus::kInvalid, "source");
    require(device::symm_put_async(context, other, proxy.data(), 8, 1) == SymmStatus::kInvalid,
            "destination");
    require(device::symm_put_signal_async(context, proxy.data(), other, 8, 1, 0, 1) == SymmStatus::kInvalid,
            "both");
    require(device::symm_put_signal_async(context, other, proxy.data(), 8, 1, 0, 1) == SymmStatus::kInvalid,
            "both");
    require(device::symm_get(context, other, proxy.data(), 8, 1) == SymmStatus::kInvalid, "get");
    require(device::symm_put_async(context, proxy.data(), proxy.data(), HostProxy::kHeapBytes, 1) ==
                SymmStatus::kInvalid,
            "length");
    require(device::symm_put_async(context, proxy.data(), proxy.data(), 0, 1) == SymmStatus::kDone,
            "nothing");
    require(device::symm_get(context, proxy.data(), proxy.data(), 0, 1) == SymmStatus::kDone, "nothing");
    require(device::symm_quiet(context, 2) == SymmStatus::kInvalid, "no such rank");
    float sums[4] = {};
    require(device::symm_all_reduce_two_shot(context, 0, proxy.data<float>(), 4, device::ThreadGroup{}) ==
                SymmStatus::kUnreachable,
            "sums are for ranks in reach");
    require(device::symm_all_reduce_one_shot(context, 0, sums, proxy.data<float>(), 4,
                                             device::ThreadGroup{}) == SymmStatus::kUnreachable,
            "sums");
    context.queues.count = 0;
    require(device::symm_get(context, proxy.data(), proxy.data(), 8, 1) == SymmStatus::kUnreachable,
            "no queues");
    require(device::symm_put_signal_async(context, proxy.data(), proxy.data(), 8, 1, 0, 1) ==
                SymmStatus::kUnreachable,
            "no queues");
    require(device::symm_barrier(context, 0, device::ThreadGroup{}) == SymmStatus::kUnreachable, "no queues");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_FALSE(proxy.take(0)) << "nothing was asked for";
}

}  // namespace
}  // namespace verbena::device_test
