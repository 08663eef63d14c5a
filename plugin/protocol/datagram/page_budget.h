// Decides how an engine's pages are used. Every page is in one of these states, and the budget counts them:
//
//   posted   in a receive queue of a rail: one queue for granted packets, one for eager packets
//   held     part of a message whose receive is posted (matched); can be copied into the receive's buffer
//   parked   part of a message whose receive is not posted yet (unexpected)
//   lent     on loan to the GPU, which returns it when its kernel is done, after an unknown time
//   moving   being copied by this engine's own device
//   idle     unused; posted where pages are needed
//
// Three rules keep every engine going, however few pages it has (at least kLeastPages for each rail):
//
//   I1  lent <= pages - reserve; pages beyond this limit are copied instead
//   I2  packets granted and not arrived + margin <= posted for granted packets, on each rail: whichever path
//       a granted packet takes, it finds a page
//   I3  parked <= shelf; an eager packet beyond this limit is rejected, as if it were lost
//
// Why no message waits forever: consider the oldest posted receive that its sender wants to fill.
//
// If it is granted, each of its packets is retransmitted until it arrives, and finds a page then (I2).
// Neither the sender's window nor its packet numbers wait for eager packets, which are numbered separately.
// So the receive completes.
//
// If it is not granted, pages are missing. The engine then copies the pages that posted receives hold, the
// oldest first. This needs neither a peer nor a kernel, only this engine's device. When no message that waits
// for a grant holds a page any more, the granted messages complete, and are copied or lent. Finally
//
//   posted + idle = pages - lent - parked >= reserve - shelf = rails * (granted goal + eager goal)
//
// which is what all queues should have, so that a grant is allowed. The receive completes, its pages become
// idle or are lent under I1, and the next receive is the oldest. A sender repeats its request until it is
// granted, also when its eager packets find no page. Pages that a kernel keeps forever are in `lent`, and do
// not matter here. tests/protocol/datagram: page_budget_test.cc and the small worlds of the simulation try to
// violate this, with far too few pages.
//
// Small-message buffers, if there are any, are a separate pool for eager packets that contain a whole short
// message. The statements about pages above do not include them. Their budget neither grants nor lends:
// buffers that a posted receive holds are being copied, so that
//
//   posted + idle = pages - parked - moving, and parked <= shelf
//
// and only this engine's device is waited for. A packet that finds no small-message buffer is lost, and is
// then granted a page like any other packet.
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
  uint32_t short_pages = 0;  // in addition to the pages
  uint32_t rails = 1;
  uint32_t credits = 512;  // maximum number of packets granted and not arrived, if there are enough pages
  uint32_t quantum = 16;   // packets in one grant; fewer if pages are scarce
};

class PageBudget {
 public:
  static constexpr uint32_t kLeastPages = 16;  // for each rail

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
  // The budget of the small-message buffers, which are posted like pages for eager packets.
  static PageBudget of_short(const PageSettings& settings) {
    PageBudget budget({.pages = settings.short_pages, .rails = settings.rails, .credits = 0});
    budget.granted_goal_ = 0;
    // At least one for each rail, because a short message uses no other page.
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

  // --- The states of pages.

  void note_posted(uint32_t rail, PageQueue queue, uint32_t count) { posted_[at(queue)][rail] += count; }
  // A packet has taken a page; the page is held, parked or idle next.
  void note_taken(uint32_t rail, PageQueue queue) { --posted_[at(queue)][rail]; }
  void note_held(uint32_t count) { held_ += count; }
  void note_parked(uint32_t count) { parked_ += count; }
  // The receive of these pages was posted.
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

  // FAULT(gpu_is_lent_all_pages)
  bool may_lend(uint32_t count) const { return lent_ + count + reserve_ <= pages_; }  // I1
  // FAULT(anything_may_be_parked)
  bool may_park() const { return parked_ < shelf_; }  // I3
  // I2: returns how many more packets may be granted while `outstanding` are. `live_rails` has a bit for each
  // working rail.
  uint32_t count_grantable(uint32_t outstanding, uint32_t live_rails) const {
    uint32_t least = credits_ - std::min(outstanding, credits_);
    for (uint32_t rail = 0; rail < rails_; ++rail) {
      if ((live_rails >> rail & 1) == 0) continue;
      const uint32_t taken = outstanding + margin_, posted = posted_[at(PageQueue::kGranted)][rail];
      least = std::min(least, posted - std::min(posted, taken));  // FAULT(grants_do_not_look_at_pages)
    }
    return least;
  }
  // The receive queue and rail to which idle pages are posted: in turn for granted and for eager packets, up
  // to the goal of each queue. Never more, because posted pages cannot be taken back.
  struct Target {
    uint32_t rail = 0;
    PageQueue queue = PageQueue::kGranted;
    uint32_t count = 1;  // number of pages before the next choice
  };
  std::optional<Target> choose_target() const {
    std::optional<Target> target;
    uint32_t worst = 0;  // missing pages, in 1/1024 of the goal
    const auto consider = [&](PageQueue queue, uint32_t goal) {
      for (uint32_t rail = 0; rail < rails_; ++rail) {
        const uint32_t posted = posted_[at(queue)][rail];
        if (posted >= goal) continue;
        const uint32_t lack = 1 + (goal - posted) * 1024 / goal;
        if (lack > worst) worst = lack, target = Target{rail, queue, std::clamp(goal / 32, 1U, kPostBatch)};
      }
    };
    consider(PageQueue::kGranted, granted_goal_);
    consider(PageQueue::kEager, eager_goal_);  // FAULT(pages_go_to_granted_packets_alone)
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
