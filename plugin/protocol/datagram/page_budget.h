// Who may have how many of an engine's pages. All pages are in one of these places, and the budget counts
// them:
//
//   posted   in a receive queue of a rail: one for packets within a grant, one for eager packets
//   held     by a message whose receive is posted; they can always be copied into the receive's own buffer
//   parked   by a message whose receive is not posted yet
//   lent     to the GPU, which gives them back when its kernel is done: nobody knows when
//   moving   being copied by this engine's own device
//   idle     in nobody's hands; posted where they are wanted
//
// Three rules keep every engine going, however few pages it has (at least kLeastPages a rail):
//
//   I1  lent <= pages - reserve, and what would exceed it is copied instead
//   I2  packets granted and not arrived + margin <= posted for granted packets, on each rail: whichever way a
//       granted packet takes, it finds a page
//   I3  parked <= shelf; an eager packet beyond it is refused, as if it were lost
//
// Why nothing stops for good. Take the oldest posted receive that its sender wants to fill.
//
// If it is granted, each of its packets finds a page by I2 once it arrives, and is sent until it does:
// neither its sender's window nor its packet numbers wait for eager packets, which have their own. So it
// completes.
//
// If it is not granted, that is for want of pages. The engine then copies what posted receives hold, the
// oldest first, which needs neither a peer nor a kernel, only this engine's device. When nothing that waits
// for a grant holds a page any more, what is granted completes, and is copied or lent; at last
//
//   posted + idle = pages - lent - parked >= reserve - shelf = rails * (granted goal + eager goal)
//
// which is what all queues should have, so that a grant is allowed. The receive completes, its pages come
// back or are lent under I1, and the next is the oldest. That a sender wants to fill it, it says until it is
// granted, also when its eager packets find no page. What a kernel keeps for ever is in `lent`, and outside
// of this. tests/protocol/datagram: page_budget_test.cc and the small worlds of the simulation try to break
// it, with pools that are far too small.
//
// Short pages, where there are some, are a pool of their own for eager packets that are all of a short
// message; what is said of pages above is said of the others. Their budget grants and lends nothing: what a
// posted receive holds of them is being copied, so that
//
//   posted + idle = pages - parked - moving, and parked <= shelf
//
// with nothing but this engine's device to wait for. A packet that finds no short page is lost, and is
// granted a page of the other kind like any other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace verbena::protocol::datagram {

inline constexpr uint32_t kMaxEngineRails = 8;

enum class PageQueue : uint8_t { kGranted, kEager, kShort };

struct PageSettings {
  uint32_t pages = 0;
  uint32_t short_pages = 0;  // beside them
  uint32_t rails = 1;
  uint32_t credits = 512;  // granted packets not arrived, at most, if there are pages enough
  uint32_t quantum = 16;   // of one grant; fewer where pages are
};

class PageBudget {
 public:
  static constexpr uint32_t kLeastPages = 16;  // of a rail

  explicit PageBudget(const PageSettings& settings)
      : pages_(settings.pages),
        rails_(settings.rails),
        credits_(settings.credits),
        margin_(std::min(settings.credits / 8, settings.pages / settings.rails / 16)),
        eager_goal_(std::min(kMostEager, settings.pages / settings.rails / 8)),
        granted_goal_(
            std::min(settings.credits + margin_, settings.pages / settings.rails / 2 - eager_goal_)),
        shelf_(settings.pages / 8),
        reserve_(shelf_ + settings.rails * (granted_goal_ + eager_goal_)) {}
  // Of the short pages, which are posted as for eager packets.
  static PageBudget of_short(const PageSettings& settings) {
    PageBudget budget({.pages = settings.short_pages, .rails = settings.rails, .credits = 0});
    budget.granted_goal_ = 0;
    // One for each rail, however few there are: a short message looks for no other page.
    const uint32_t spare = budget.pages_ - std::min(budget.pages_, budget.rails_);
    budget.shelf_ = std::min(budget.shelf_, spare);
    budget.eager_goal_ = std::min(kMostEager, (budget.pages_ - budget.shelf_) / budget.rails_);
    budget.reserve_ = budget.pages_;
    return budget;
  }

  uint32_t pages() const { return pages_; }
  uint32_t held() const { return held_; }
  uint32_t parked() const { return parked_; }
  uint32_t lent() const { return lent_; }
  uint32_t moving() const { return moving_; }
  uint32_t posted(uint32_t rail, PageQueue queue) const { return posted_[at(queue)][rail]; }
  uint32_t reserve() const { return reserve_; }

  // --- Where pages go.

  void note_posted(uint32_t rail, PageQueue queue, uint32_t count) { posted_[at(queue)][rail] += count; }
  // By a packet; the page is held, parked or idle next.
  void note_taken(uint32_t rail, PageQueue queue) { --posted_[at(queue)][rail]; }
  void note_held(uint32_t count) { held_ += count; }
  void note_parked(uint32_t count) { parked_ += count; }
  // Their receive is posted.
  void unpark(uint32_t count) {
    parked_ -= count;
    held_ += count;
  }
  void drop_parked(uint32_t count) { parked_ -= count; }
  void drop_held(uint32_t count) { held_ -= count; }
  void move(uint32_t count) {
    held_ -= count;
    moving_ += count;
  }
  void note_moved(uint32_t count) { moving_ -= count; }
  void lend(uint32_t count) {
    held_ -= count;
    lent_ += count;
  }
  void note_returned(uint32_t count) { lent_ -= count; }

  // --- The rules.

  bool may_lend(uint32_t count) const { return lent_ + count + reserve_ <= pages_; }  // I1
  bool may_park() const { return parked_ < shelf_; }                                  // I3
  // I2: how many more packets may be granted while `outstanding` are; of the live rails, a bit for each.
  uint32_t count_grantable(uint32_t outstanding, uint32_t live_rails) const {
    uint32_t least = credits_ - std::min(outstanding, credits_);
    for (uint32_t rail = 0; rail < rails_; ++rail) {
      if ((live_rails >> rail & 1) == 0) continue;
      const uint32_t taken = outstanding + margin_, posted = posted_[at(PageQueue::kGranted)][rail];
      least = std::min(least, posted - std::min(posted, taken));
    }
    return least;
  }
  // Which queue of which rail an idle page goes to: to the eager ones in turn with the granted ones, up to
  // what each should have; never more, as what is posted cannot be taken back.
  struct Target {
    uint32_t rail = 0;
    PageQueue queue = PageQueue::kGranted;
    uint32_t count = 1;  // before the next is chosen
  };
  std::optional<Target> choose_target() const {
    std::optional<Target> target;
    uint32_t worst = 0;  // lack, in 1/1024 of the goal
    const auto consider = [&](PageQueue queue, uint32_t goal) {
      for (uint32_t rail = 0; rail < rails_; ++rail) {
        const uint32_t posted = posted_[at(queue)][rail];
        if (posted >= goal) continue;
        const uint32_t lack = 1 + (goal - posted) * 1024 / goal;
        if (lack > worst) worst = lack, target = Target{rail, queue, std::clamp(goal / 32, 1U, kPostBatch)};
      }
    };
    consider(PageQueue::kGranted, granted_goal_);
    consider(PageQueue::kEager, eager_goal_);
    return target;
  }

 private:
  static constexpr uint32_t kMostEager = 1024;
  static constexpr uint32_t kPostBatch = 16;

  static uint32_t at(PageQueue queue) { return static_cast<uint32_t>(queue); }
  uint32_t pages_, rails_, credits_;
  uint32_t margin_, eager_goal_, granted_goal_, shelf_, reserve_;
  std::array<std::array<uint32_t, kMaxEngineRails>, 2> posted_{};
  uint32_t held_ = 0, parked_ = 0, lent_ = 0, moving_ = 0;
};

}  // namespace verbena::protocol::datagram
