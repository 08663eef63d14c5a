// Producers of the put queues before a host that takes, gives room and completes as the test says: nothing is
// lost, doubled or torn, and no wait is without an end.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/run_kernel.h"
#include "device/symm/host_proxy.h"
#include "verbena/device/barrier.cuh"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::Order;
using device::Scope;
using emulator::require;
using emulator::require_done;
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
  std::vector<uint64_t> seen(kThreads * kBlocks);
  const auto host = [&] {
    serve(proxy, kTimes * kThreads * kBlocks, [&](const PutDescriptor& one, uint64_t) {
      const uint64_t thread = (one.place - HostProxy::kWordsBytes) / 8;
      require(operation_of(one) == PutOperation::kPut && peer_of(one) == 41,
              "a put to the peer's world rank");
      require(one.extent == 1 + seen[thread] && one.operand == HostProxy::kWordsBytes + 8 * seen[thread]++,
              "in order, not torn");
    });
  };
  emulator::run_beside(host, GetParam(), kBlocks, kThreads, [&] {
    const uint64_t me = device::block_index() * kThreads + device::thread_index();
    for (uint64_t i = 0; i < kTimes; ++i)
      require_done(device::symm_put_async(proxy.context(), proxy.data(me * 8), proxy.data(i * 8), 1 + i, 1),
                   "put");
  });
}

TEST_P(SymmQueueTest, NothingComesBetweenAPutAndItsSignal) {
  constexpr uint64_t kTimes = 5, kThreads = 48;
  for (const uint32_t depth_shift : {1U, 3U}) {
    HostProxy proxy(1, depth_shift);
    const auto host = [&] {
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
    };
    emulator::run_beside(host, GetParam(), 1, kThreads, [&] {
      const uint64_t me = device::thread_index();
      for (uint64_t i = 0; i < kTimes; ++i)
        require_done(device::symm_put_signal_async(proxy.context(), proxy.data(me * 8), proxy.data(), 8, 1,
                                                   static_cast<uint32_t>(me), i, kAdd),
                     "put");
    });
  }
}

// Data that a block wrote is visible to the reader of the descriptor; data of a get is visible to the block.
TEST_P(SymmQueueTest, DataIsOrderedBothWays) {
  constexpr uint32_t kThreads = 64;
  HostProxy proxy(1, 1);
  auto* const there = proxy.data<uint32_t>();
  auto* const here = proxy.data<uint32_t>(4096);
  const auto host = [&] {
    serve(proxy, 8, [&](const PutDescriptor& one, uint64_t position) {
      if (operation_of(one) == PutOperation::kPut) {
        for (uint32_t i = 0; i < kThreads; ++i)
          require(there[i] == i * (1 + position / 2), "what was written");
      } else {
        for (uint32_t i = 0; i < kThreads; ++i) here[i] = there[i] + 1;
      }
    });
  };
  emulator::run_beside(host, GetParam(), 1, kThreads, [&] {
    const uint32_t me = device::thread_index();
    for (uint32_t round = 1; round < 5; ++round) {
      device::store<Order::kWeak, Scope::kThreads>(there + me, me * round);
      require_done(device::symm_put_async(proxy.context(), proxy.data(8192), there, 4 * kThreads, 1,
                                          device::BlockGroup{}),
                   "put");
      require_done(
          device::symm_get(proxy.context(), here, proxy.data(8192), 4 * kThreads, 1, device::BlockGroup{}),
          "get");
      require(device::load<Order::kWeak, Scope::kThreads>(here + (me + 1) % kThreads) ==
                  (me + 1) % kThreads * round + 1,
              "what was got");
    }
  });
}

// Quiet by a block also waits for another block's earlier put in another queue, even if another quiet has
// already waited for it.
TEST_P(SymmQueueTest, QuietCoversAllQueues) {
  for (const bool is_of_one_peer : {false, true}) {
    HostProxy proxy(2, 2);
    uint32_t flag = 0, has_seen = 0;
    uint64_t complete = 0;
    const auto host = [&] {
      while (!proxy.take(1)) emulator::yield();
      for (int i = 0; i < 300; ++i) emulator::yield();
      complete = 1;
      proxy.complete(1);
      proxy.consume(1);
    };
    emulator::run_beside(host, GetParam(), 3, 2, [&] {
      const uint64_t* const seen = &proxy.context().queues.cursors[1].completed_seen;
      const uint32_t block = device::block_index();
      // It tells of what it has seen, and nothing more: the call itself has to acquire.
      if (device::thread_index() == 1) {
        while (block == 2 && device::load_relaxed<Scope::kGpu>(seen) == 0) {
        }
        if (block == 2) device::store_relaxed<Scope::kBlock>(&has_seen, 1);
        return;
      }
      if (block == 1) {
        require_done(device::symm_put_async(proxy.context(), proxy.data(), proxy.data(), 8, 1), "put");
        device::store_release<Scope::kGpu>(&flag, 1);
        return;
      }
      while (device::load_acquire<Scope::kGpu>(&flag) == 0) {
      }
      while (block == 2 && device::load_relaxed<Scope::kBlock>(&has_seen) == 0) {
      }
      const SymmStatus status = block == 0       ? device::symm_quiet(proxy.context())
                                : is_of_one_peer ? device::symm_quiet(proxy.context(), 1)
                                                 : device::symm_flush(proxy.context());
      require(status == SymmStatus::kDone, "quiet");
      require(complete == 1, "complete");
    });
  }
}

// Contexts that begin with another queue.
TEST(SymmQueue, BlocksBeginWithTheContextsQueue) {
  HostProxy proxy(2, 3);
  proxy.context().first_queue = 3;
  emulator::run_kernel(1, 2, 1, [&] {
    require_done(
        device::symm_put_async(proxy.context(), proxy.data(64 * device::block_index()), proxy.data(), 8, 1),
        "put");
  });
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
  const auto host = [&] {
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
  };
  emulator::run_beside(host, GetParam(), 2, 32, [&] {
    const SymmContext& context = proxy.context();
    const device::BlockGroup block;
    const device::GridBarrier grid{&arrived, 2};
    if (device::block_index() == 0)
      require_done(device::symm_put_async(context, proxy.data(), proxy.data(), 64, 1, block), "put");
    require(grid.sync(device::WaitLimits::within(context.timeout_ns)) == device::WaitResult::kReached,
            "grid");
    if (device::block_index() == 0) return;
    for (int round = 0; round < 2; ++round) {
      require_done(device::symm_signal_after_puts(context, 7, 1, 3, SymmSignalOperation::kIncrement, block),
                   "signal");
      if (round == 0) require_done(device::symm_quiet(context, block), "quiet");
    }
    require(device::symm_signal_after_puts(context, 7, 2, 3, kAdd, block) == SymmStatus::kInvalid, "member");
  });
}

// The word's value before goes to all threads of the group, and the reply's place back to the proxy; for a
// member of whatever kind, as the team has some out of reach.
TEST_P(SymmQueueTest, AnUpdateHasAReply) {
  constexpr uint32_t kThreads = 64;
  HostProxy proxy(1, 2);
  SymmContext& context = proxy.context();
  auto* const word = proxy.data<uint64_t>(64);
  auto* const data = proxy.data<uint64_t>(4096);
  const auto host = [&] {
    serve(proxy, 10, [&](const PutDescriptor& one, uint64_t position) {
      const uint64_t round = 1 + position / 2;
      require(one.place == proxy.offset_of(word), "the word");
      if (position % 2 == 0) {
        require(operation_of(one) == PutOperation::kFetchAdd && one.operand == round &&
                    peer_of(one) == 40 + round % 2,
                "add");
        for (uint32_t i = 0; i < kThreads; ++i) require(data[i] == round, "released");
        data[kThreads] = round;
      } else {
        require(operation_of(one) == PutOperation::kCompareSwap && one.extent == round && one.operand == 7,
                "swap");
      }
      proxy.reply(0, 100 * round + position % 2);
      while (proxy.told(0, position) != ((position + 1) | kPutReplyLeft)) emulator::yield();
    });
  };
  emulator::run_beside(host, GetParam(), 1, kThreads, [&] {
    const device::BlockGroup block;
    for (uint64_t round = 1; round < 6; ++round) {
      uint64_t before = 0;
      device::store<Order::kWeak, Scope::kThreads>(data + device::thread_index(), round);
      require_done(device::symm_fetch_add(context, word, round, round % 2, &before, block), "fetch");
      require(before == 100 * round, "what it was");
      require(device::load<Order::kWeak, Scope::kThreads>(data + kThreads) == round, "acquired");
      require(device::symm_compare_swap(context, word, round, 7, 1, &before, block) == SymmStatus::kDone &&
                  before == 100 * round + 1,
              "swap");
    }
  });
}

// Threads that know nothing of each other use one reply's place in turn.
TEST_P(SymmQueueTest, RepliesAreUsedAgain) {
  constexpr uint64_t kThreads = 6, kTimes = 3;
  HostProxy proxy(1, 1);
  const auto host = [&] {
    for (uint64_t position = 0; position < kThreads * kTimes; emulator::yield()) {
      const auto one = proxy.take(0);
      if (!one) continue;
      proxy.reply(0, 10 * one->operand);
      while (proxy.told(0, position) != ((position + 1) | kPutReplyLeft)) emulator::yield();
      ++position;
      proxy.consume(0);
    }
  };
  emulator::run_beside(host, GetParam(), kThreads, 1, [&] {
    for (uint64_t i = 0; i < kTimes; ++i) {
      uint64_t before = 0;
      const uint64_t mine = 1 + device::block_index();
      require(device::symm_fetch_add(proxy.context(), proxy.data<uint64_t>(), mine, 1, &before) ==
                      SymmStatus::kDone &&
                  before == 10 * mine,
              "its own");
    }
  });
}

TEST(SymmQueue, WhoGivesUpLeavesTheReply) {
  HostProxy proxy(1, 2);
  proxy.context().timeout_ns = 20'000;
  emulator::run_kernel(3, 1, 32, [&] {
    uint64_t before = 77;
    require(device::symm_fetch_add(proxy.context(), proxy.data<uint64_t>(), 1, 1, &before,
                                   device::BlockGroup{}) == SymmStatus::kTimedOut,
            "time");
    require(before == 77, "nothing came");
  });
  EXPECT_EQ(proxy.told(0, 0), 1 | kPutReplyLeft);
  proxy.context().queues.swaps_words = 0;
  emulator::run_kernel(4, 1, 32, [&] {
    uint64_t before = 77;
    require(device::symm_compare_swap(proxy.context(), proxy.data<uint64_t>(), 1, 1, 1, &before,
                                      device::BlockGroup{}) == SymmStatus::kUnreachable,
            "the NIC has none");
  });
}

// Whatever is before it in the queue; and where a later position has taken its reply's place, with all of it.
TEST_P(SymmQueueTest, AGetIsToldOfByItself) {
  for (const bool is_overwritten : {false, true}) {
    constexpr uint32_t kThreads = 32;
    HostProxy proxy(1, 2, 3);
    const SymmContext& context = proxy.context();
    auto* const here = proxy.data<uint32_t>(4096);
    uint32_t is_asked = 0;
    const auto host = [&] {
      while (proxy.count_taken(0) < 2) {
        if (const auto one = proxy.take(0))
          require(((one->action & kPutReports) != 0) == (operation_of(*one) == PutOperation::kGet), "asks");
        emulator::yield();
      }
      while (__atomic_load_n(&is_asked, __ATOMIC_ACQUIRE) == 0) emulator::yield();
      for (uint32_t i = 0; i < kThreads; ++i) here[i] = 9;
      if (is_overwritten) {
        proxy.reply_to(0, 5);
        proxy.complete(0);
      } else {
        proxy.reply_to(0, 1);
      }
    };
    emulator::run_beside(host, GetParam(), 1, kThreads, [&] {
      const device::BlockGroup block;
      require_done(device::symm_put_async(context, proxy.data(), proxy.data(), 8, 2, block), "put");
      device::SymmRequest asked;
      require_done(device::symm_get_async(context, here, proxy.data(8192), 4 * kThreads, 1, &asked, block),
                   "ask");
      require(asked.after == 2 && asked.queue == 0, "the same for all");
      require(!device::symm_request_test(context, asked), "not yet");
      block.sync();
      if (block.elect()) device::store_release<Scope::kSystem>(&is_asked, 1);
      require_done(device::symm_request_wait(context, asked, block), "wait");
      require(device::symm_request_test(context, asked), "is there");
      require(
          device::load<Order::kWeak, Scope::kThreads>(here + (device::thread_index() + 5) % kThreads) == 9,
          "what was got");
      require_done(device::symm_request_wait(context, {}, block), "nothing was asked for");
    });
  }
}

// Blocks that put and wait while others look how far all queues are, without knowing of each other.
TEST_P(SymmQueueTest, OthersGoOnMeanwhile) {
  constexpr uint32_t kBlocks = 4, kTimes = 6;
  HostProxy proxy(2, 3, 3);
  const SymmContext& context = proxy.context();
  uint32_t left = kBlocks;
  const auto host = [&] {
    while (__atomic_load_n(&left, __ATOMIC_RELAXED) != 0) {
      for (const uint32_t queue : {0U, 1U}) {
        const auto one = proxy.take(queue);
        if (!one) continue;
        if ((one->action & kPutReports) != 0) proxy.reply(queue);
        proxy.consume(queue);
        proxy.complete(queue);
      }
      emulator::yield();
    }
  };
  emulator::run_beside(host, GetParam(), kBlocks, 1, [&] {
    const uint32_t block = device::block_index();
    for (uint32_t i = 0; i < kTimes; ++i) {
      if (block < 2) {
        require_done(device::symm_put_async(context, proxy.data(), proxy.data(), 8, 1), "put");
        require_done(device::symm_quiet(context), "quiet");
      } else if (block == 2) {
        require_done(device::symm_signal_after_puts(context, 0, 1, 1, kAdd), "signal");
      } else {
        require_done(device::symm_quiet(context, 1), "quiet of one");
      }
    }
    device::fetch_add<Order::kRelaxed, Scope::kSystem>(&left, ~0U);
  });
}

// Each queue with something under way is asked for what it has for that peer.
TEST_P(SymmQueueTest, QuietOfOnePeerWaitsForNoOther) {
  HostProxy proxy(3, 2, 3);
  const SymmContext& context = proxy.context();
  const auto host = [&] {
    for (const uint32_t queue : {0U, 2U}) {
      while (proxy.count_taken(queue) < 2) {
        const auto one = proxy.take(queue);
        if (one && proxy.count_taken(queue) == 2)
          require(operation_of(*one) == PutOperation::kPut && one->extent == 0 && peer_of(*one) == 41 &&
                      (one->action & kPutReports) != 0,
                  "asks");
        emulator::yield();
      }
      proxy.reply(queue);
    }
    require(!proxy.take(1), "it had nothing");
  };
  emulator::run_beside(host, GetParam(), 1, 32, [&] {
    const device::BlockGroup block;
    for (const uint32_t queue : {0U, 2U})
      require(device::symm_put_async(context, proxy.data(), proxy.data(), 8, queue == 0 ? 2 : 1, block,
                                     device::SymmQueue{queue}) == SymmStatus::kDone,
              "put");
    require_done(device::symm_quiet(context, 1, block), "quiet");
    require(device::load_relaxed<Scope::kSystem>(&context.queues.progress[0].completed) == 0, "not all");
  });
}

// Pieces are requests behind each other, and the signal comes last; a piece of no bytes is none. A list that
// cannot be leaves nothing in the queue.
TEST(SymmQueue, PiecesAreRequestsBeforeTheirSignal) {
  constexpr uint32_t kPieces = 11;  // more than the queue has positions
  HostProxy proxy(1, 3);
  const SymmContext& context = proxy.context();
  const auto host = [&] {
    const uint64_t base = HostProxy::kWordsBytes;
    serve(proxy, kPieces, [&](const PutDescriptor& one, uint64_t position) {
      if (position == kPieces - 1)
        return require(operation_of(one) == PutOperation::kAddWord && one.operand == 9, "the signal is last");
      const uint64_t i = position < 4 ? position : position + 1;
      require(operation_of(one) == PutOperation::kPut && one.extent == i + 1 && one.place == base + 8 * i &&
                  one.operand == base + 128 + 8 * i,
              "a piece");
    });
  };
  emulator::run_beside(host, 1, 1, 32, [&] {
    const device::BlockGroup block;
    SymmPiece pieces[kPieces];
    for (uint32_t i = 0; i < kPieces; ++i)
      pieces[i] = {proxy.data(8 * i), proxy.data(128 + 8 * i), i == 4 ? uint64_t{0} : uint64_t{i + 1}};
    uint8_t other = 0;
    SymmPiece outside[] = {pieces[0], {proxy.data(0), &other, 1}};
    require(device::symm_put_pieces(context, outside, 2, 1, block) == SymmStatus::kInvalid,
            "not in the heap");
    require(device::symm_put_pieces_signal(context, pieces, kPieces, 1, kSymmSignals, 1,
                                           SymmSignalOperation::kAdd, block) == SymmStatus::kInvalid,
            "no such signal");
    require_done(
        device::symm_put_pieces_signal(context, pieces, kPieces, 1, 3, 9, SymmSignalOperation::kAdd, block),
        "pieces");
  });
}

TEST(SymmQueue, RowsAreOneRequest) {
  HostProxy proxy(1, 3);
  const SymmContext& context = proxy.context();
  const auto host = [&] {
    const uint64_t base = HostProxy::kWordsBytes;
    serve(proxy, 4, [&](const PutDescriptor& one, uint64_t position) {
      const bool gets = position >= 2;
      if (position % 2 == 0) {
        require(operation_of(one) == PutOperation::kRows && one.place == 5 &&
                    one.operand == (gets ? 200 : 100) && one.extent == (gets ? 100 : 200),
                "rows");
      } else {
        require(operation_of(one) == (gets ? PutOperation::kGet : PutOperation::kPut) && one.extent == 24 &&
                    one.operand == base + (gets ? 64 : 128) && one.place == base + (gets ? 128 : 64),
                "copy");
      }
    });
  };
  emulator::run_beside(host, 1, 1, 32, [&] {
    const device::BlockGroup block;
    require_done(device::symm_put_rows(context, proxy.data(64), 200, proxy.data(128), 100, 24, 5, 1, block),
                 "put");
    require_done(device::symm_get_rows(context, proxy.data(64), 200, proxy.data(128), 100, 24, 5, 1, block),
                 "get");
    uint8_t other = 0;
    require(device::symm_put_rows(context, proxy.data(64), 200, &other, 0, 1, 5, 1, block) ==
                SymmStatus::kInvalid,
            "not in the heap");
    require(device::symm_get_rows(context, proxy.data(64), 1 << 20, proxy.data(128), 1, 1, 5, 1, block) ==
                SymmStatus::kInvalid,
            "past it");
  });
}

TEST(SymmQueue, TheCallerNamesAQueue) {
  HostProxy proxy(3, 4);
  const SymmContext& context = proxy.context();
  auto* const word = proxy.data<uint64_t>(64);
  const device::SymmQueue third{5};  // modulo 3
  emulator::run_kernel(1, 1, 1, [&] {
    const device::ThreadGroup alone;
    device::SymmRequest asked;
    bool is_right = device::symm_put_async(context, word, word, 8, 1, alone, third) == SymmStatus::kDone;
    is_right &= device::symm_put_signal_async(context, word, word, 8, 1, 0, 1, kAdd, alone, third) ==
                SymmStatus::kDone;
    is_right &= device::symm_signal(context, 0, 1, 1, kAdd, alone, third) == SymmStatus::kDone;
    is_right &= device::symm_get_async(context, word, word, 8, 1, &asked, alone, third) == SymmStatus::kDone;
    is_right &= device::symm_put_value(context, word, 1, 1, alone, third) == SymmStatus::kDone;
    is_right &= device::symm_add(context, word, 1, 1, alone, third) == SymmStatus::kDone;
    is_right &= device::symm_put_rows(context, word, 8, word, 8, 8, 2, 1, alone, third) == SymmStatus::kDone;
    is_right &= device::symm_signal_after_puts(context, 0, 1, 1, kAdd, alone, third) == SymmStatus::kDone;
    require(is_right, "all of them");
  });
  EXPECT_FALSE(proxy.take(0));
  EXPECT_FALSE(proxy.take(1));
  std::vector<PutOperation> asked;
  while (const auto one = proxy.take(2)) asked.push_back(operation_of(*one));
  using enum PutOperation;
  EXPECT_EQ(asked,
            (std::vector{kPut, kPut, kAddWord, kAddWord, kGet, kWriteWord, kAddWord, kRows, kPut, kAddWord}));
}

TEST_P(SymmQueueTest, ABarrierCompletesWhatWasPut) {
  HostProxy proxy(1, 3, 3);
  SymmContext& context = proxy.context();
  const auto host = [&] {
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
  };
  emulator::run_beside(host, GetParam(), 1, 32, [&] {
    require_done(device::symm_put_async(context, proxy.data(), proxy.data(), 8, 2, device::BlockGroup{}),
                 "put");
    require_done(device::symm_barrier(context, 7, device::BlockGroup{}), "barrier");
  });
}

// The peer is told and heard of while the put before is still under way.
TEST(SymmQueue, SymmSyncCompletesNothing) {
  HostProxy proxy(1, 3);
  SymmContext& mine = proxy.context();
  const auto host = [&] {
    uint64_t* const arrivals = mine.arrivals + 2 * (kSymmBarriers + 2);
    for (uint32_t taken = 0; taken < 2;) {
      const auto one = proxy.take(0);
      if (!one) {
        emulator::yield();
        continue;
      }
      proxy.consume(0);
      if (++taken == 2) {
        require(one->place == proxy.offset_of(arrivals), "the peer is told");
        __atomic_store_n(arrivals + 1, 1, __ATOMIC_RELEASE);
      }
    }
  };
  emulator::run_beside(host, 3, 1, 32, [&] {
    const device::BlockGroup block;
    require_done(device::symm_put_async(mine, proxy.data(), proxy.data(), 8, 1, block), "put");
    require_done(device::symm_sync(mine, 2, block), "sync");
    require(device::symm_sync(mine, kSymmBarriers, block) == SymmStatus::kInvalid, "number");
  });
}

TEST(SymmQueue, GivingUpLeavesNoHole) {
  HostProxy proxy(1, 2);
  proxy.context().timeout_ns = 20'000;
  std::atomic<int> put{0}, gave_up{0};
  emulator::run_kernel(5, 1, 32, [&] {
    const SymmStatus status =
        device::symm_put_signal_async(proxy.context(), proxy.data(), proxy.data(), 8, 1, 0, 1);
    require(status == SymmStatus::kDone || status == SymmStatus::kTimedOut, "one or the other");
    (status == SymmStatus::kDone ? put : gave_up).fetch_add(1, std::memory_order_relaxed);
  });
  EXPECT_EQ(put, 2) << "what there are slots for";
  EXPECT_EQ(gave_up, 30);
  World second(6);
  proxy.context().timeout_ns = 1'000'000'000;
  second.add_grid(0, 1, 32, [&] {
    require_done(device::symm_put_async(proxy.context(), proxy.data(), proxy.data(), 16, 1), "put");
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
        return device::symm_put_value(p.context(), p.data<uint64_t>(), 1, 1, device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_add(p.context(), p.data<uint64_t>(), 1, 0, device::BlockGroup{});
      },
      [](HostProxy& p) {
        uint64_t before = 0;
        return device::symm_fetch_add(p.context(), p.data<uint64_t>(), 1, 1, &before, device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_put_rows(p.context(), p.data(), 8, p.data(), 8, 8, 2, 1, device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_request_wait(p.context(), {2, 0}, device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_wait_until<int64_t>(p.context(), p.data<uint64_t>(), SymmCompare::kEqual, 1,
                                                nullptr, device::BlockGroup{});
      },
      [](HostProxy& p) {
        return device::symm_wait_until_all(p.context(), p.data<uint64_t>(), 2, SymmCompare::kEqual, 1,
                                           device::BlockGroup{});
      },
      [](HostProxy& p) {
        uint32_t which = 0;
        return device::symm_wait_until_any(p.context(), p.data<uint64_t>(), 2, SymmCompare::kEqual, 1,
                                           nullptr, &which, device::BlockGroup{});
      },
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
    const auto host = [&] {
      emulator::wait_until_step(20'000);
      __atomic_store_n(&abort_word, static_cast<uint32_t>(GetParam().reason), __ATOMIC_RELEASE);
    };
    emulator::run_beside(host, i, 1, 64, [&] {
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
  }
}

TEST(SymmQueue, RefusesWhatIsNotInTheHeap) {
  HostProxy proxy(1, 2);
  SymmContext& context = proxy.context();
  uint8_t other[16] = {};
  emulator::run_kernel(0, 1, 1, [&] {
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
    require_done(device::symm_put_async(context, proxy.data(), proxy.data(), 0, 1), "nothing");
    require_done(device::symm_get(context, proxy.data(), proxy.data(), 0, 1), "nothing");
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
  EXPECT_FALSE(proxy.take(0)) << "nothing was asked for";
}

}  // namespace
}  // namespace verbena::device_test
