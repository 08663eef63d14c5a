// When a reader spins, with times that the test makes up.
#include "device/message_queue/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace verbena::message_queue {
namespace {

constexpr int64_t kMs = base::kNsPerMs, kBegin = 1000 * kMs;

// What a reader does that waits from one message to the next, and for how long it spins.
class Reader {
 public:
  // The wait's first look is at the last message's time.
  void receive(int64_t at_ns) {
    int64_t now_ns = last_ns_;
    while (now_ns < at_ns) {
      const int64_t spun_ns = std::clamp(pace_.spin_end_ns(now_ns), now_ns, at_ns);
      all_spun_ns_ += spun_ns - now_ns;
      is_awake_ = spun_ns == at_ns;
      now_ns = std::clamp(pace_.sleep_end_ns(spun_ns), spun_ns, at_ns);
    }
    last_ns_ = at_ns;
    pace_.on_message(at_ns);
  }
  bool is_awake() const { return is_awake_; }
  Pace& pace() { return pace_; }
  int64_t spun_ns() const { return all_spun_ns_; }

 private:
  Pace pace_;
  int64_t last_ns_ = kBegin, all_spun_ns_ = 0;
  bool is_awake_ = false;
};

TEST(QueuePace, AReaderSpinsWhenASteppingWriterWrites) {
  for (const int64_t step_ns : {kMs * 2, 5 * kMs, 80 * kMs}) {
    Reader reader;
    int64_t now_ns = kBegin;
    for (int step = 0; step < 100; ++step) {
      // Some earlier, some later.
      reader.receive(now_ns += step_ns + (step % 3 - 1) * step_ns / 20);
      EXPECT_EQ(reader.is_awake(), step >= 2) << step_ns << " ns, step " << step;
    }
    EXPECT_LT(reader.spun_ns(), (now_ns - kBegin) / 4);
  }
}

TEST(QueuePace, ItSleepsWhereNoMessageIsDue) {
  Pace pace;
  const auto is_spinning = [&](int64_t at_ns) { return pace.spin_end_ns(at_ns) > at_ns; };
  EXPECT_FALSE(is_spinning(kBegin));
  pace.on_message(kBegin);
  for (const int64_t gap_ns : {kMs - 1, 100 * kMs + 1}) {
    Pace other = pace;
    other.on_message(kBegin + gap_ns);
    EXPECT_LE(other.spin_end_ns(kBegin + 2 * gap_ns), kBegin + 2 * gap_ns) << gap_ns;
    EXPECT_EQ(other.sleep_end_ns(kBegin + gap_ns), INT64_MAX) << gap_ns;
  }
  pace.on_message(kBegin + 8 * kMs);
  EXPECT_FALSE(is_spinning(kBegin + 8 * kMs));
  EXPECT_EQ(pace.sleep_end_ns(kBegin + 8 * kMs), kBegin + 15 * kMs);
  EXPECT_TRUE(is_spinning(kBegin + 15 * kMs));
  EXPECT_TRUE(is_spinning(kBegin + 17 * kMs - 1));
  // Once, and not again.
  EXPECT_FALSE(is_spinning(kBegin + 17 * kMs));
  EXPECT_EQ(pace.sleep_end_ns(kBegin + 17 * kMs), INT64_MAX);
}

TEST(QueuePace, AReaderThatWasPreemptedSleepsForSomeMessages) {
  Reader reader;
  int64_t now_ns = kBegin;
  const auto receive = [&] {
    reader.receive(now_ns += 5 * kMs);
    return reader.is_awake();
  };
  for (int message = 0; message < 3; ++message) static_cast<void>(receive());
  EXPECT_TRUE(receive());
  reader.pace().on_preempted();
  for (uint32_t message = 0; message < Pace::kSleptMessages; ++message) EXPECT_FALSE(receive()) << message;
  EXPECT_TRUE(receive());
}

TEST(QueuePace, WhateverComesItSpinsForLessThanAQuarter) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Reader reader;
    int64_t now_ns = kBegin;
    const auto longest_ns = static_cast<int64_t>(1 + random() % (200 * kMs));
    const bool is_late = round % 2 == 0;  // a little behind each time
    int64_t gap_ns = longest_ns;
    for (int message = 0; message < 200; ++message) {
      gap_ns = is_late ? std::min(gap_ns + gap_ns / 9, 100 * kMs)
                       : static_cast<int64_t>(random() % static_cast<uint64_t>(longest_ns));
      reader.receive(now_ns += gap_ns);
    }
    EXPECT_LE(reader.spun_ns(), (now_ns - kBegin) / 4) << round;
  }
}

}  // namespace
}  // namespace verbena::message_queue
