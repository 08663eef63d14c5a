#include "device/message_queue/spin_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace verbena::message_queue {
namespace {

constexpr int64_t kUs = 1000, kMs = 1000 * kUs;

// A reader in simulated time, whose sleeps and wake-ups end late.
class Simulation {
 public:
  explicit Simulation(int64_t spin_us = kAdaptive) : plan_(spin_us) {}

  // Waits for a message that comes at `arrival_ns`.
  void receive(int64_t arrival_ns) {
    bool was_awaited = false;
    while (now_ns_ < arrival_ns) {
      was_awaited = true;
      const int64_t spin_end_ns = plan_.find_spin_end(now_ns_);
      const int64_t seen_ns = std::min(arrival_ns, spin_end_ns);
      spun_ns_ += std::max<int64_t>(0, seen_ns - now_ns_);
      now_ns_ = std::max(now_ns_, seen_ns);
      if (now_ns_ == arrival_ns) {
        ++count_seen_;
        break;
      }
      const int64_t sleep_end_ns = plan_.find_sleep_end(now_ns_);
      now_ns_ = std::min(sleep_end_ns, arrival_ns) + 50 * kUs;
      if (sleep_end_ns >= arrival_ns) ++count_woken_;
    }
    if (plan_.is_adaptive()) plan_.record(now_ns_, was_awaited);
  }
  // Messages at intervals of gap +- jitter.
  void run(int64_t gap_ns, int64_t jitter_ns, int count, uint32_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<int64_t> jitter(-jitter_ns, jitter_ns);
    int64_t arrival_ns = now_ns_;
    for (int i = 0; i < count; ++i) receive(arrival_ns += gap_ns + jitter(random));
  }
  void forget() { spun_ns_ = count_seen_ = count_woken_ = 0, began_ns_ = now_ns_; }

  double spun_part() const {
    return static_cast<double>(spun_ns_) / static_cast<double>(now_ns_ - began_ns_);
  }
  int64_t count_seen() const { return count_seen_; }    // while spinning
  int64_t count_woken() const { return count_woken_; }  // by the message, from sleep

 private:
  SpinPlan plan_;
  int64_t now_ns_ = 1, began_ns_ = 1, spun_ns_ = 0, count_seen_ = 0, count_woken_ = 0;
};

TEST(SpinPlanTest, RegularMessagesAreSeenWhileSpinningForAQuarterOfTheTime) {
  for (const int64_t gap_ns : {1 * kMs, 2 * kMs, 5 * kMs, 10 * kMs, 100 * kMs}) {
    for (const int64_t jitter_ns : {int64_t{0}, gap_ns / 100}) {
      Simulation simulation;
      simulation.run(gap_ns, jitter_ns, 50, 1);
      simulation.forget();
      simulation.run(gap_ns, jitter_ns, 1000, 2);
      EXPECT_GE(simulation.count_seen(), 990) << gap_ns << " +- " << jitter_ns;
      // The short spin of each wait comes to the share.
      EXPECT_LE(simulation.spun_part(), 0.25 + 0.02) << gap_ns << " +- " << jitter_ns;
    }
  }
}

TEST(SpinPlanTest, IntervalsTooShortForASleepAreSpent) {
  Simulation simulation;
  simulation.run(300 * kUs, 100 * kUs, 50, 1);
  simulation.forget();
  simulation.run(300 * kUs, 100 * kUs, 1000, 2);
  EXPECT_GE(simulation.count_seen(), 990);
}

TEST(SpinPlanTest, IrregularMessagesCostNoMoreThanTheShare) {
  for (const int64_t gap_ns : {1 * kMs, 5 * kMs, 100 * kMs}) {
    Simulation simulation;
    simulation.run(gap_ns, gap_ns * 9 / 10, 2000, 3);
    EXPECT_LE(simulation.spun_part(), 0.25 + 0.02) << gap_ns;
  }
}

TEST(SpinPlanTest, APauseCostsOneWindow) {
  Simulation simulation;
  simulation.run(5 * kMs, 0, 100, 1);
  simulation.forget();
  simulation.run(60'000 * kMs, 0, 1, 1);
  EXPECT_LE(simulation.spun_part() * 60'000, 5.0 / 4 + 0.1);  // milliseconds
  EXPECT_EQ(simulation.count_woken(), 1);
}

TEST(SpinPlanTest, IntervalsAreLearnedAnewAfterAPause) {
  Simulation simulation;
  simulation.run(2 * kMs, 0, 100, 1);
  simulation.run(60'000 * kMs, 0, 1, 1);
  simulation.run(20 * kMs, 0, 50, 1);
  simulation.forget();
  simulation.run(20 * kMs, 0, 100, 1);
  EXPECT_EQ(simulation.count_seen(), 100);
}

TEST(SpinPlanTest, AGivenTimeIsSpunInEveryWait) {
  Simulation simulation(30);
  simulation.run(3 * kMs, 0, 100, 1);
  EXPECT_NEAR(simulation.spun_part(), 0.01, 0.001);
  EXPECT_EQ(simulation.count_woken(), 100);
  EXPECT_EQ(SpinPlan(kForever).find_spin_end(5), kNoDeadline);
}

}  // namespace
}  // namespace verbena::message_queue
