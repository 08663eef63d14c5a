#include "protocol/datagram/loss_times.h"

#include <gtest/gtest.h>

#include "protocol/datagram/send_guard.h"

namespace verbena::protocol::datagram {
namespace {

constexpr LossSettings kSettings{};

TEST(LossTimesTest, WindowsFollowTheShortestRoundTrip) {
  LossTimes times(kSettings);
  EXPECT_EQ(times.same_path_ns(), 8'000);
  EXPECT_EQ(times.across_paths_ns(), 32'000);
  times.note_round_trip(6'000, 0);
  EXPECT_EQ(times.same_path_ns(), 8'000);
  for (int i = 0; i < 100; ++i) times.note_round_trip(50'000, 3'000'000'000 + i);
  EXPECT_EQ(times.shortest_ns(), 6'000) << "of the window before";
  for (int i = 0; i < 100; ++i) times.note_round_trip(50'000, 6'000'000'000 + i);
  EXPECT_EQ(times.shortest_ns(), 50'000) << "an older one does not count any more";
  EXPECT_EQ(times.same_path_ns(), 50'000);
  EXPECT_EQ(times.across_paths_ns(), 200'000);
}

TEST(LossTimesTest, WhatWasSentInVainWidensThemOnceARoundTrip) {
  LossTimes times(kSettings);
  int64_t now_ns = 1'000'000;
  for (int i = 0; i < 20; ++i) times.note_round_trip(i == 0 ? 10'000 : 100'000, now_ns);
  const int64_t same = times.same_path_ns(), across = times.across_paths_ns();
  times.note_in_vain(now_ns += 1'000'000);
  const int64_t step = times.same_path_ns() - same;
  EXPECT_GT(step, 0);
  times.note_in_vain(now_ns + 1);
  EXPECT_EQ(times.same_path_ns(), same + step) << "within the same round trip";
  for (int i = 0; i < 1'000; ++i) times.note_in_vain(now_ns += 1'000'000);
  EXPECT_LE(times.same_path_ns(), times.smooth_ns());
  EXPECT_LE(times.across_paths_ns(), 2 * times.smooth_ns());
  EXPECT_GT(times.across_paths_ns(), across);
  for (int i = 0; i < 1'000; ++i) times.note_delivered(20'000);
  EXPECT_EQ(times.same_path_ns(), same) << "in peace they shrink to where they were";
  EXPECT_EQ(times.across_paths_ns(), across);
}

// Of hosts that share a core: the shortest round trip says little about the usual one.
TEST(LossTimesTest, WindowsFollowRoundTripsThatAreManyTimesTheShortest) {
  LossTimes times(kSettings);
  int64_t now_ns = 1'000'000;
  for (int i = 0; i < 40; ++i) times.note_round_trip(i == 0 ? 2'000 : 4'000'000, now_ns);
  for (int i = 0; i < 100; ++i) times.note_in_vain(now_ns += 5'000'000);
  EXPECT_GT(times.same_path_ns(), times.smooth_ns() * 9 / 10);
  EXPECT_GT(times.across_paths_ns(), 2 * times.smooth_ns() * 9 / 10);
}

TEST(LossTimesTest, TimeoutsDoubleWithoutAnAnswerUpToALimit) {
  LossTimes times(kSettings);
  const int64_t first = times.timeout_ns();
  EXPECT_EQ(first, 100'000);
  times.note_timeout();
  EXPECT_EQ(times.timeout_ns(), 2 * first);
  for (int i = 0; i < 50; ++i) times.note_timeout();
  EXPECT_EQ(times.timeout_ns(), 64 * first);
  times.note_answer();
  EXPECT_EQ(times.timeout_ns(), first);
}

TEST(SendGuardTest, ShrinksAboveItsTargetAndGrowsBelow) {
  SendGuard guard(256);
  constexpr int64_t kShortest = 8'000, kQueue = 43'000;
  int64_t now_ns = 0;
  const auto run = [&](int64_t sample_ns, int count) {
    for (int i = 0; i < count; ++i) guard.note_round_trip(sample_ns, kShortest, kQueue, now_ns += sample_ns);
  };
  run(50'000, 100);
  EXPECT_EQ(guard.window(), 256U) << "what grants queue is no reason";
  run(200'000, 8);
  EXPECT_LT(guard.window(), 256U);
  run(200'000, 1'000);
  EXPECT_EQ(guard.window(), 8U) << "never to nothing";
  run(20'000, 1'000);
  EXPECT_EQ(guard.window(), 256U);
  // One late packet of many says nothing.
  for (int i = 0; i < 100; ++i) {
    run(10'000, 3);
    run(900'000, 1);
  }
  EXPECT_EQ(guard.window(), 256U);
}

}  // namespace
}  // namespace verbena::protocol::datagram
