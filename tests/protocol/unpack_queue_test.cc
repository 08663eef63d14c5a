#include "protocol/unpack_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/cpu_unpack.h"
#include "common/pattern.h"
#include "protocol/random.h"

namespace verbena::protocol {
namespace {

constexpr uint32_t kSlots = kUnpackQueueDepthSlots;

class UnpackQueueTest : public testing::Test {
 protected:
  void expect_only_published(uint32_t slot, uint64_t count) {
    for (uint32_t s = 0; s < kSlots; ++s) EXPECT_EQ(meta_->cnt[s], s == slot ? count : 0U) << "slot " << s;
  }

  std::unique_ptr<NetUnpackMeta> meta_ = std::make_unique<NetUnpackMeta>();
  UnpackQueue queue_{meta_.get()};
};

TEST_F(UnpackQueueTest, SlotsComeInOrderUntilAllAreTaken) {
  for (uint32_t i = 0; i < kSlots; ++i) {
    ASSERT_TRUE(queue_.has_free_slot());
    EXPECT_EQ(queue_.take_slot(), i);
  }
  EXPECT_FALSE(queue_.has_free_slot());
}

// The kernel uses slots in order: a later one that is free already does not help.
TEST_F(UnpackQueueTest, OnlyTheNextSlotCounts) {
  for (uint32_t i = 0; i < kSlots; ++i) queue_.take_slot();
  queue_.clear(1);
  EXPECT_FALSE(queue_.has_free_slot());
  queue_.clear(0);
  ASSERT_TRUE(queue_.has_free_slot());
  EXPECT_EQ(queue_.take_slot(), 0U);
  ASSERT_TRUE(queue_.has_free_slot());
  EXPECT_EQ(queue_.take_slot(), 1U);
  EXPECT_FALSE(queue_.has_free_slot());
}

TEST_F(UnpackQueueTest, SlotsFollowTheKernelsHeadForManyTurns) {
  for (uint64_t k = 0; k < 1000; ++k) {
    ASSERT_TRUE(queue_.has_free_slot());
    const uint32_t slot = queue_.take_slot();
    ASSERT_EQ(slot, tools::compute_slot(kUnpackFreshHead, k));
    ASSERT_EQ(queue_.pending(slot), 0U) << "nothing of the message before is left";
    ASSERT_TRUE(queue_.append(slot, 0, 0, 1, 4096));
    queue_.publish(slot);
    queue_.clear(slot);
  }
}

TEST_F(UnpackQueueTest, TheCountIsZeroExceptBetweenPublishAndClear) {
  for (uint32_t i = 0; i < 2 * kSlots; ++i) {
    const uint32_t slot = queue_.take_slot();
    expect_only_published(slot, 0);
    ASSERT_TRUE(queue_.append(slot, 4096 * i, 0, 4096, 4096));
    ASSERT_TRUE(queue_.append(slot, 4096 * i + 4096, 4096, 10, 4096));
    expect_only_published(slot, 0);
    queue_.publish(slot);
    expect_only_published(slot, 2);
    queue_.clear(slot);
    expect_only_published(slot, 0);
  }
}

TEST_F(UnpackQueueTest, AnEmptyOrDirectMessagePublishesNothing) {
  const uint32_t slot = queue_.take_slot();
  ASSERT_TRUE(queue_.append(slot, 0, 0, 0, 4096));
  queue_.publish(slot);
  expect_only_published(slot, 0);
}

TEST_F(UnpackQueueTest, ASlotHoldsAsManyDescriptorsAsTheKernelReads) {
  const uint32_t slot = queue_.take_slot();
  for (int i = 0; i < kUnpackMaxDescriptors; ++i) {
    ASSERT_TRUE(queue_.append(slot, 0, static_cast<uint64_t>(i) * 4096, 4096, 4096));
  }
  EXPECT_FALSE(queue_.append(slot, 0, 0, 1, 4096));
  EXPECT_TRUE(queue_.append(slot, 0, 0, 0, 4096)) << "nothing needs no descriptor";
  EXPECT_EQ(queue_.pending(slot), static_cast<uint32_t>(kUnpackMaxDescriptors));
  const uint32_t other = queue_.take_slot();
  EXPECT_FALSE(queue_.append(other, 0, 0, kUnpackMaxDescriptors * 16U + 1, 16)) << "one piece too many";
  queue_.publish(slot);
  expect_only_published(slot, kUnpackMaxDescriptors);
}

// Pages anywhere in the bounce region, pieces of any length and alignment: what the kernel would place is the
// message, and nothing beside it.
TEST_F(UnpackQueueTest, TheDescribedPiecesAreTheMessage) {
  std::vector<std::byte> bounce(1 << 20);
  const UnpackDeviceHandle handle{meta_.get(), bounce.data(), kUnpackFreshHead};
  Random random(7);
  for (uint64_t k = 0; k < 400; ++k) {
    const uint32_t page = 1U << random.between(6, 14), piece = random.between(1, 2 * page);
    const uint32_t length = random.between(0, 8 * page), shift = random.between(0, 15);
    std::vector<std::byte> message(length), target(length + 2 * tools::kGuardLengthBytes);
    tools::fill_pattern(message, k);
    tools::fill_guard(target);
    const uint32_t slot = queue_.take_slot();
    bool fits = true;
    for (uint32_t chunk = 0; chunk * page < length && fits; ++chunk) {
      const uint32_t bytes = std::min(page, length - chunk * page);
      const uint32_t source = chunk * 2 * page + shift;  // distinct places
      std::copy_n(message.data() + chunk * page, bytes, bounce.data() + source);
      fits = queue_.append(slot, source, uint64_t{chunk} * page, bytes, piece);
    }
    if (fits) {
      queue_.publish(slot);
      const auto data = std::span(target).subspan(tools::kGuardLengthBytes, length);
      ASSERT_EQ(tools::unpack_slot(handle, slot, data).bytes, length);
      ASSERT_EQ(tools::check_pattern(data, k).wrong_bytes, 0U) << "page " << page << " piece " << piece;
      ASSERT_EQ(tools::count_wrong_guard_bytes(std::span(target).first(tools::kGuardLengthBytes)), 0U);
      ASSERT_EQ(tools::count_wrong_guard_bytes(std::span(target).last(tools::kGuardLengthBytes)), 0U);
    } else {
      ASSERT_GT(length, static_cast<uint32_t>(kUnpackMaxDescriptors)) << "piece " << piece;
    }
    queue_.clear(slot);
  }
}

}  // namespace
}  // namespace verbena::protocol
