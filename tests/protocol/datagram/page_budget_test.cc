#include "protocol/datagram/page_budget.h"

#include <gtest/gtest.h>

#include "protocol/random.h"

namespace verbena::protocol::datagram {
namespace {

// Posts idle pages as an engine does.
void post(PageBudget& budget, uint32_t& idle) {
  while (idle != 0) {
    const auto target = budget.choose_target();
    if (!target) return;
    const uint32_t count = std::min(idle, target->count);
    budget.note_posted(target->rail, target->queue, count);
    idle -= count;
  }
}

// Whatever the GPU keeps and whoever parks, within the rules: once nothing is held, a grant is allowed, and
// eager packets have a page. For every size of pool.
TEST(PageBudgetTest, AnEmptyHandLeavesRoomForAGrant) {
  Random random(11);
  for (const uint32_t rails : {1U, 2U, 4U, 8U}) {
    for (const uint32_t credits : {32U, 512U, 4096U}) {
      for (uint32_t pages = PageBudget::kLeastPages; pages <= 16'384; pages += pages / 3 + 1) {
        PageBudget budget({.pages = pages * rails, .rails = rails, .credits = credits, .quantum = 16});
        const uint32_t live = (1U << rails) - 1;
        uint32_t idle = pages * rails, outstanding = 0;
        post(budget, idle);
        for (int step = 0; step < 4'000; ++step) {
          const uint32_t rail = random.between(0, rails - 1);
          switch (random.between(0, 4)) {
            case 0:  // a grant, whose packet takes any rail
              if (budget.count_grantable(outstanding, live) != 0) ++outstanding;
              break;
            case 1:
              if (outstanding == 0) break;
              ASSERT_NE(budget.posted(rail, PageQueue::kGranted), 0U) << "a granted packet finds no page";
              budget.note_taken(rail, PageQueue::kGranted);
              budget.note_held(1);
              --outstanding;
              break;
            case 2:
              if (budget.posted(rail, PageQueue::kEager) == 0) break;
              budget.note_taken(rail, PageQueue::kEager);
              budget.may_park() && random.happens(50) ? budget.note_parked(1) : budget.note_held(1);
              break;
            case 3:  // the GPU keeps whatever it may
              if (budget.held() != 0 && budget.may_lend(1)) budget.lend(1);
              break;
            default:
              post(budget, idle);
          }
        }
        // What is granted arrives; what is held is copied.
        while (outstanding != 0) {
          const uint32_t rail = random.between(0, rails - 1);
          ASSERT_NE(budget.posted(rail, PageQueue::kGranted), 0U);
          budget.note_taken(rail, PageQueue::kGranted);
          budget.note_held(1);
          --outstanding;
        }
        const uint32_t moving = budget.held();
        budget.move(moving);
        EXPECT_EQ(budget.moving(), moving);
        budget.note_moved(moving);
        idle += moving;
        post(budget, idle);
        ASSERT_GT(budget.count_grantable(0, live), 0U)
            << pages << " pages on each of " << rails << " rails, " << credits << " credits: lent "
            << budget.lent() << ", parked " << budget.parked();
        for (uint32_t rail = 0; rail < rails; ++rail)
          ASSERT_GT(budget.posted(rail, PageQueue::kEager), 0U) << pages << " pages, " << rails << " rails";
      }
    }
  }
}

TEST(PageBudgetTest, LendsAndParksUpToItsLimits) {
  PageBudget budget({.pages = 1'000, .rails = 1, .credits = 64, .quantum = 16});
  uint32_t parked = 0, lent = 0;
  for (; budget.may_park(); ++parked) budget.note_parked(1);
  EXPECT_EQ(parked, 125U);
  budget.note_held(1'000);
  for (; budget.may_lend(1); ++lent) budget.lend(1);
  EXPECT_EQ(lent + budget.reserve(), 1'000U);
  EXPECT_GT(lent, 500U) << "most of a pool is for the GPU";
}

// Whoever parks: once nothing is being copied, a short packet finds a page on every rail.
TEST(PageBudgetTest, ShortPagesWaitForNothingButCopies) {
  Random random(13);
  for (const uint32_t rails : {1U, 2U, 8U}) {
    for (const uint32_t pages : {1U, 2U, PageBudget::kLeastPages, 100U, 256U, 3'000U}) {
      PageBudget budget =
          PageBudget::of_short({.pages = 99, .short_pages = pages * rails, .rails = rails, .credits = 512});
      uint32_t idle = pages * rails;
      post(budget, idle);
      EXPECT_EQ(budget.count_grantable(0, 1), 0U);
      EXPECT_FALSE(budget.may_lend(1));
      for (int step = 0; step < 4'000; ++step) {
        const uint32_t rail = random.between(0, rails - 1);
        ASSERT_EQ(budget.posted(rail, PageQueue::kGranted), 0U);
        if (budget.posted(rail, PageQueue::kEager) != 0) {
          budget.note_taken(rail, PageQueue::kEager);
          if (budget.may_park()) {
            budget.note_parked(1);
          } else {
            budget.note_held(1);
            budget.move(1);
          }
        }
        if (random.happens(10)) post(budget, idle);
      }
      const uint32_t moved = budget.moving();
      budget.note_moved(moved);
      idle += moved;
      post(budget, idle);
      for (uint32_t rail = 0; rail < rails; ++rail) EXPECT_GT(budget.posted(rail, PageQueue::kEager), 0U);
    }
  }
}

TEST(PageBudgetTest, ADeadRailHoldsUpNoGrant) {
  PageBudget budget({.pages = 2'000, .rails = 2, .credits = 64, .quantum = 16});
  budget.note_posted(0, PageQueue::kGranted, 100);
  EXPECT_EQ(budget.count_grantable(0, 0b11), 0U) << "nothing is posted on the other";
  EXPECT_GT(budget.count_grantable(0, 0b01), 0U);
}

}  // namespace
}  // namespace verbena::protocol::datagram
