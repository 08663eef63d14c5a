// Which pages of an engine go to which receive queue.
#include "transport/datagram/page_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "transport/support/host.h"

namespace verbena::transport::datagram {
namespace {

using protocol::datagram::PageQueue;

class PagePoolTest : public testing::Test {
 protected:
  PagePool make(uint32_t pages, uint32_t short_pages = 0) {
    return take(
        PagePool::create(*host_.nic().rails[0], pages, PagePool::kLeastPageBytes, nullptr, short_pages),
        "pages");
  }

 private:
  Host host_;
};

TEST_F(PagePoolTest, PagesOfAQueueFollowEachOther) {
  PagePool pool = make(512);
  for (uint32_t round = 0; round < 3; ++round) {
    std::vector<uint32_t> granted, eager;
    for (uint32_t i = 0; i < 64; ++i) {
      granted.push_back(pool.take(0, PageQueue::kGranted));
      eager.push_back(pool.take(0, PageQueue::kEager));
    }
    for (uint32_t i = 1; i < 64; ++i) {
      EXPECT_EQ(granted[i], granted[i - 1] + 1);
      EXPECT_EQ(eager[i], eager[i - 1] + 1);
    }
    // They come back in another order.
    for (uint32_t i = 0; i < 64; ++i) {
      pool.put_back(granted[i ^ 5]);
      pool.put_back(eager[63 - i]);
    }
  }
}

TEST_F(PagePoolTest, EachPageIsTakenOnce) {
  constexpr uint32_t kPages = 150, kShort = 20;  // the last run is shorter
  PagePool pool = make(kPages, kShort);
  for (int round = 0; round < 2; ++round) {
    std::set<uint32_t> taken, taken_short;
    for (uint32_t i = 0; i < kPages; ++i)
      taken.insert(pool.take(i % 2, i % 3 == 0 ? PageQueue::kEager : PageQueue::kGranted));
    for (uint32_t i = 0; i < kShort; ++i) taken_short.insert(pool.take(0, PageQueue::kShort));
    EXPECT_EQ(taken.size(), kPages);
    EXPECT_EQ(*taken.rbegin(), kPages - 1);
    EXPECT_EQ(taken_short.size(), kShort);
    EXPECT_EQ(*taken_short.begin(), kPages);
    for (const uint32_t page : taken) pool.put_back(page);
    for (const uint32_t page : taken_short) pool.put_back(page);
  }
}

TEST_F(PagePoolTest, HeadersAndShortPagesAreSoftverbsOwnMemory) {
  PagePool pool = make(16, 4);
  const verbs::NearMemory own = verbs::take_near_memory(*Host().nic().rails[0], 64);
  EXPECT_NE(own.get_deleter().give_back, nullptr);
  // One mapping has all of softverbs' memory.
  constexpr std::ptrdiff_t kSegmentBytes = std::ptrdiff_t{1} << 30;
  EXPECT_LT(std::abs(pool.line(0) - own.get()), kSegmentBytes);
  EXPECT_LT(std::abs(pool.data(16) - own.get()), kSegmentBytes);
}

}  // namespace
}  // namespace verbena::transport::datagram
