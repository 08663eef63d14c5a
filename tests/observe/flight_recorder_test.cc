#include "observe/flight_recorder.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "observe/relaxed_reads.h"

namespace verbena::observe {
namespace {

Event make_event(uint32_t number) {
  return {int64_t{number},
          uint64_t{number} * 3,
          number,
          EventKind::kChunk,
          static_cast<uint8_t>(number % 7),
          number % 2 == 0 ? Path::kStaged : Path::kDirect};
}

bool is_whole(const Event& event) {
  const Event right = make_event(event.sequence);
  return event.at_ns == right.at_ns && event.value == right.value && event.kind == right.kind &&
         event.rail == right.rail && event.path == right.path;
}

TEST(FlightRecorder, KeepsTheLast) {
  FlightRecorder recorder(5);  // eight
  for (uint32_t i = 0; i < 3; ++i) recorder.record(make_event(i));
  EXPECT_EQ(recorder.read().size(), 3U);
  EXPECT_EQ(recorder.count_lost(), 0U);
  for (uint32_t i = 3; i < 20; ++i) recorder.record(make_event(i));
  const auto events = recorder.read();
  ASSERT_EQ(events.size(), 8U);
  EXPECT_EQ(recorder.count_lost(), 12U);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(events[i].sequence, 12 + i);
    EXPECT_TRUE(is_whole(events[i]));
  }
}

TEST(FlightRecorder, OffItKeepsNothing) {
  FlightRecorder recorder(0);
  recorder.record(make_event(1));
  EXPECT_FALSE(recorder.is_on());
  EXPECT_TRUE(recorder.read().empty());
  EXPECT_EQ(recorder.count_lost(), 0U);
}

// What is overwritten while it is read is left out, never a mixture of two events: whatever the reader's
// loads return of a writer that goes round the ring beside it.
TEST(FlightRecorder, WhateverTheReaderSeesItIsWhole) {
  constexpr uint32_t kEvents = 4, kRing = 2;
  BasicFlightRecorder<tests::RelaxedAtomic> recorder(kRing);
  std::set<std::vector<uint32_t>> seen;
  size_t broken = 0;
  const auto write = [&] {
    for (uint32_t i = 0; i < kEvents; ++i) recorder.record(make_event(i + 1));
  };
  const auto read = [&] {
    std::vector<uint32_t> sequences;
    for (const Event& event : recorder.read()) {
      const bool follows = sequences.empty() || event.sequence == sequences.back() + 1;
      broken += is_whole(event) && follows ? 0 : 1;
      sequences.push_back(event.sequence);
    }
    seen.insert(sequences);
  };
  tests::RelaxedReads::instance().explore(write, read);
  EXPECT_EQ(broken, 0U);
  // And no more is left out than must be: the full ring at each time, and what the writer leaves of it.
  EXPECT_EQ(seen, (std::set<std::vector<uint32_t>>{{}, {1}, {1, 2}, {2}, {2, 3}, {3}, {3, 4}}));
}

// The same of real threads and the real memory: what they happen to meet.
TEST(FlightRecorder, IsReadWhileItIsWritten) {
  FlightRecorder recorder(64);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !is_over.load(std::memory_order_relaxed); ++i) recorder.record(make_event(i));
  });
  while (recorder.count_lost() == 0) std::this_thread::yield();
  size_t seen = 0;
  uint32_t newest = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto events = recorder.read();
    seen += events.size();
    for (size_t i = 0; i < events.size(); ++i) {
      ASSERT_TRUE(is_whole(events[i])) << events[i].sequence;
      if (i != 0) {
        ASSERT_EQ(events[i].sequence, events[i - 1].sequence + 1);
      }
    }
    if (events.empty()) continue;
    ASSERT_GE(events.back().sequence, newest);
    newest = events.back().sequence;
  }
  is_over = true;
  writer.join();
  EXPECT_GT(seen, 0U);
  EXPECT_EQ(recorder.read().size(), 64U) << "at rest nothing is left out";
}

}  // namespace
}  // namespace verbena::observe
