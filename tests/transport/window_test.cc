// What connections get of the landing pages, and of the unpack queues' memory, as they become many.
#include <gtest/gtest.h>

#include <set>

#include "base/log_capture.h"
#include "transport/setup/page_choice.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

constexpr uint32_t kPages = 512;

Settings make_settings() {
  return {{"VERBENA_PAGE_BYTES", "16k"}, {"VERBENA_BOUNCE_BYTES", std::to_string(kPages * 16384)}};
}

class WindowTest : public testing::Test {
 protected:
  uint32_t reserve(const BouncePool::WindowRequest& request) {
    const auto reservation = take(pool_->reserve(*nic_.rails[0], request), "entries");
    queue_ = reservation.queue;
    total_ += reservation.entries;
    return reservation.entries;
  }

  Host host_{make_settings()};
  const Nic& nic_ = host_.nic();
  std::shared_ptr<BouncePool> pool_ = take(BouncePool::acquire(BouncePool::Kind::kHostPages), "a pool");
  BouncePool::Queue* queue_ = nullptr;
  uint32_t total_ = 0;
};

TEST_F(WindowTest, ShrinksToTheModestAndNothingIsReservedTwice) {
  const BouncePool::WindowRequest request{.wanted = 16, .modest = 4, .least = 4};
  EXPECT_EQ(pool_->usable_bytes(), 0U);
  uint32_t last = reserve(request), connections = 1;
  EXPECT_EQ(last, 16U);
  EXPECT_EQ(pool_->usable_bytes(), 1U << 20) << "one step";
  for (uint32_t entries = 0; (entries = reserve(request)) != 0; last = entries, ++connections) {
    ASSERT_LE(entries, last);
    ASSERT_GE(entries, 4U);
  }
  EXPECT_LE(total_, kPages);
  EXPECT_GT(total_, kPages - 4);
  EXPECT_GT(connections, kPages / 4 * 5 / 6) << "most of the pool is for the modest";
  EXPECT_EQ(pool_->usable_bytes(), kPages * 16384U);
  pool_->release(*queue_, 4);
  EXPECT_EQ(reserve(request), 4U) << "what is given back";
}

TEST_F(WindowTest, WhoIsNotModestGetsWhatIsLeft) {
  EXPECT_EQ(reserve({.wanted = 500, .modest = 500, .least = 4}), 500U);
  EXPECT_EQ(reserve({.wanted = 500, .modest = 500, .least = 4}), 12U);
  EXPECT_EQ(reserve({.wanted = 500, .modest = 500, .least = 4}), 0U);
}

TEST_F(WindowTest, AFullPoolPlacesEverythingDirectly) {
  EXPECT_EQ(reserve({.wanted = kPages - 3, .modest = kPages, .least = 4}), kPages - 3);
  const base::LogCapture log;
  ConnectedPair connection = connect_here(nic_, nic_, true);
  EXPECT_EQ(log.lines_of(base::LogLevel::kInfo).size(), 1U) << "which is said";
  ASSERT_NE(connection.receiving.handle, nullptr) << "its kernels advance a head all the same";
  EXPECT_EQ(connection.receiving.handle->bounce_buf, pool_->device_base());
  Transfer transfer;
  for (int i = 0; i < 40; ++i) transfer.messages.push_back({.length_bytes = i % 3 == 0 ? 100'000U : 9U});
  expect_transfer_here(connection, nic_, nic_, transfer);
  EXPECT_EQ(connection.sender->statistics().sent_staged().bytes, 0U);
}

TEST_F(WindowTest, SeveralQueuePairsShareAQueue) {
  const auto reservation =
      take(pool_->reserve(*nic_.rails[0], {.wanted = 100, .modest = 12, .least = 12}, 4), "entries");
  EXPECT_EQ(reservation.entries, 12U) << "each: together they are not generous any more";
  EXPECT_EQ(take(pool_->reserve(*nic_.rails[0], {500, 500, 12}), "entries").entries, kPages - 4 * 12);
}

// Bare entries: as many as the device has, for every rail by itself.
class BareEntriesTest : public testing::Test {
 protected:
  static constexpr BouncePool::WindowRequest kWish{.wanted = 32, .modest = 32, .least = 12};
  static constexpr uint32_t kInOneQueue = BouncePool::kBareQueueEntries / 32;

  Host host_;
  const Nic& nic_ = host_.nic(2);
  std::shared_ptr<BouncePool> pool_ = take(BouncePool::acquire(BouncePool::Kind::kBareEntries), "a pool");
};

TEST_F(BareEntriesTest, AFullQueueIsFollowedByAnother) {
  std::set<BouncePool::Queue*> queues;
  std::vector<BouncePool::Queue*> reserved;
  for (uint32_t i = 0; i < 5 * kInOneQueue / 2; ++i) {
    const auto reservation = take(pool_->reserve(*nic_.rails[0], kWish), "entries");
    ASSERT_EQ(reservation.entries, 32U) << "after " << i;
    queues.insert(reservation.queue);
    reserved.push_back(reservation.queue);
  }
  EXPECT_EQ(queues.size(), 3U);
  const auto other = take(pool_->reserve(*nic_.rails[1], kWish), "entries of the other rail");
  EXPECT_FALSE(queues.contains(other.queue));
  EXPECT_NE(pool_->describe().find("softverbs0:1: 81920 posted, 81920 reserved, in 3 queues"),
            std::string::npos)
      << pool_->describe();
  for (BouncePool::Queue* queue : reserved) pool_->release(*queue, 32);
  EXPECT_TRUE(queues.contains(take(pool_->reserve(*nic_.rails[0], kWish), "entries").queue));
  EXPECT_NE(pool_->describe().find("81920 posted, 32 reserved"), std::string::npos) << "used again";
}

TEST_F(BareEntriesTest, SeveralQueuePairsShareAQueue) {
  EXPECT_EQ(take(pool_->reserve(*nic_.rails[0], kWish, kInOneQueue - 1), "entries").entries, 32U);
  const auto first = take(pool_->reserve(*nic_.rails[0], kWish, 1), "the rest");
  const auto next = take(pool_->reserve(*nic_.rails[0], kWish, 8), "entries");
  EXPECT_EQ(next.entries, 32U);
  EXPECT_NE(next.queue, first.queue);
}

TEST(DirectWindow, FollowsTheConnectionsToCome) {
  EXPECT_EQ(choose_direct_window(0).wanted, 32U);
  EXPECT_EQ(choose_direct_window(1000).wanted, 32U);
  EXPECT_EQ(choose_direct_window(2000).wanted, 16U);
  EXPECT_EQ(choose_direct_window(20'000).wanted, 12U) << "NCCL keeps 8 open";
  EXPECT_EQ(choose_direct_window(20'000).least, 12U);
}

// Whatever else is set: never fewer than NCCL can use, unless the user says so.
TEST_F(WindowTest, NoQueuePairGetsFewerPagesThanNcclCanUse) {
  for (const uint32_t pairs : {1U, 2U, 8U}) {
    const auto request = choose_window(pairs, 16384);
    EXPECT_GE(request.wanted, 12U);
    EXPECT_GE(request.modest, 12U);
    EXPECT_EQ(request.least, 12U);
  }
  apply_settings({{"VERBENA_WINDOW_PAGES", "8"}});
  EXPECT_EQ(choose_window(2, 16384).wanted, 4U);
  EXPECT_EQ(choose_window(2, 16384).least, 4U);
  apply_settings({{"VERBENA_WINDOW_PAGES", ""}});
}

TEST_F(WindowTest, PagesOfAGpuNeedADeviceThatTakesItsAddresses) {
  apply_settings({{"VERBENA_BOUNCE", "gpu"}});
  Nic nic = nic_;
  nic.supports_gpu_pointers = true;
  EXPECT_EQ(choose_pages(nic).kind, BouncePool::Kind::kGpuPages);
  nic.supports_gpu_pointers = false;
  EXPECT_EQ(choose_pages(nic).kind, BouncePool::Kind::kHostPages) << "dma-bufs are not enough";
  apply_settings({{"VERBENA_BOUNCE", ""}});
}

TEST(UnpackMemories, LieSideBySideAndDoNotMeet) {
  UnpackMemories memories;
  constexpr uint32_t kDescriptors = 8;
  char bounce = 0;
  std::vector<std::unique_ptr<UnpackMemory>> queues;
  std::set<const void*> bytes;
  for (uint32_t i = 0; i < 2 * kUnpackMaxDescriptors / kDescriptors; ++i) {
    queues.push_back(take(memories.take(kDescriptors - 1, &bounce), "a queue"));
    const UnpackMemory& queue = *queues.back();
    ASSERT_EQ(queue.descriptors(), kDescriptors);
    const auto& handle = *static_cast<const UnpackDeviceHandle*>(queue.device_handle());
    EXPECT_EQ(handle.meta, queue.host_meta());
    EXPECT_EQ(handle.bounce_buf, &bounce);
    EXPECT_EQ(handle.head, kUnpackFreshHead);
    NetUnpackMeta& meta = *queue.host_meta();
    ASSERT_EQ(reinterpret_cast<uintptr_t>(&meta) % alignof(NetUnpackMeta), 0U);
    for (int slot = 0; slot < kUnpackQueueDepthSlots; ++slot) {
      for (uint32_t d = 0; d < kDescriptors; ++d)
        ASSERT_TRUE(bytes.insert(&meta.mem[slot][d]).second) << "queue " << i << " slot " << slot;
      ASSERT_TRUE(bytes.insert(&meta.cnt[slot]).second) << "queue " << i << " slot " << slot;
      meta.cnt[slot] = i;
      meta.mem[slot][kDescriptors - 1].len = i;
    }
  }
  for (uint32_t i = 0; i < queues.size(); ++i) {
    EXPECT_EQ(queues[i]->host_meta()->cnt[15], i);
    EXPECT_EQ(queues[i]->host_meta()->mem[0][kDescriptors - 1].len, i);
  }
  NetUnpackMeta* const meta = queues.back()->host_meta();
  memories.give_back(std::move(queues.back()));
  const auto again = take(memories.take(kDescriptors, &bounce), "a queue");
  EXPECT_EQ(again->host_meta(), meta);
  EXPECT_EQ(meta->cnt[3], 0U) << "a stale count hangs an aborting kernel";
}

TEST(UnpackMemories, GiveTheWholeLayoutToWhoNeedsIt) {
  UnpackMemories memories;
  const auto queue = take(memories.take(kUnpackMaxDescriptors, nullptr), "a queue");
  queue->host_meta()->mem[15][kUnpackMaxDescriptors - 1].len = 1;
  queue->host_meta()->cnt[15] = 1;
  EXPECT_EQ(queue->descriptors(), static_cast<uint32_t>(kUnpackMaxDescriptors));
}

}  // namespace
}  // namespace verbena::transport
