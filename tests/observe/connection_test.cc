#include "observe/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace verbena::observe {
namespace {

using testing::ElementsAre;

class ConnectionTest : public testing::Test {
 protected:
  PathKey key(const std::string& rail, Path path) const {
    return {{{Direction::kSend, "10.0.0.7:51514"}, rail}, path};
  }
  Totals read() const { return connection_.read("10.0.0.7:51514"); }
  void send(uint32_t sequence, Path path, uint64_t bytes, std::initializer_list<uint32_t> rails) {
    connection_.note_post(sequence, bytes, 0);
    for (const uint32_t rail : rails) connection_.note_chunk(sequence, path, rail, 0, bytes / rails.size());
    connection_.note_done(sequence, bytes);
  }

  Connection connection_{{Direction::kSend, "10.0.0.7:51514", {"a:1", "b:1"}}, 16};
};

TEST_F(ConnectionTest, MessagesCountByRailAndPath) {
  send(0, Path::kStaged, 100, {0});
  send(1, Path::kDirect, 4000, {0, 1});
  send(2, Path::kDirect, 300, {1});
  send(3, Path::kDirect, 300, {1});
  const Totals totals = read();
  ASSERT_EQ(totals.messages.size(), 3U);
  EXPECT_EQ(totals.messages.at(key("a:1", Path::kStaged)).messages, 1U);
  EXPECT_EQ(totals.messages.at(key("several", Path::kDirect)).bytes, 4000U);
  const PathTotals& whole = totals.messages.at(key("b:1", Path::kDirect));
  EXPECT_EQ(whole.messages, 2U);
  EXPECT_EQ(whole.bytes, 600U);
  EXPECT_EQ(std::accumulate(whole.latency.begin(), whole.latency.end(), uint64_t{0}), 2U);
  EXPECT_EQ(totals.chunks.at(key("b:1", Path::kDirect)).chunks, 3U);
  EXPECT_EQ(totals.chunks.at(key("b:1", Path::kDirect)).bytes, 2600U);
  EXPECT_EQ(totals.chunks.at(key("a:1", Path::kDirect)).bytes, 2000U);
}

TEST(PathTotals, Quantiles) {
  PathTotals totals;
  EXPECT_EQ(find_quantile_ns(totals, 0.5), 0);
  totals.latency[1] = 50;
  totals.latency[4] = 49;
  totals.latency[9] = 1;
  EXPECT_EQ(find_quantile_ns(totals, 0.5), bucket_limit_ns(1));
  EXPECT_EQ(find_quantile_ns(totals, 0.51), bucket_limit_ns(4));
  EXPECT_EQ(find_quantile_ns(totals, 0.99), bucket_limit_ns(4));
  EXPECT_EQ(find_quantile_ns(totals, 1), bucket_limit_ns(9));
}

// What happens in the call that posts is not asked a clock for.
TEST_F(ConnectionTest, APostIsOneMoment) {
  connection_.note_post(0, 1, 0);
  connection_.note_chunk(0, Path::kDirect, 0, 0, 1);
  connection_.end_post();
  connection_.note_chunk(0, Path::kDirect, 1, 0, 1);
  const auto events = connection_.recorder().read();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].at_ns, events[1].at_ns);
  EXPECT_LT(events[1].at_ns, events[2].at_ns);
}

// All are counted, and one in eight timed, whatever step the job's own rhythm takes.
TEST(ConnectionLatency, OfOneMessageInEightWithoutARecorder) {
  for (const uint32_t step : {1U, 2U, 8U, 64U}) {
    Connection connection({Direction::kSend, "p", {"a:1"}}, 0);
    constexpr uint32_t kMessages = 8000;
    for (uint32_t i = 0; i < kMessages; ++i) {
      connection.note_post(i * step, 1, 0);
      connection.end_post();
      connection.note_chunk(i * step, Path::kDirect, 0, 0, 1);
      connection.note_done(i * step, 1);
    }
    const PathTotals path = connection.read("p").messages.begin()->second;
    EXPECT_EQ(path.messages, kMessages);
    const auto timed = std::accumulate(path.latency.begin(), path.latency.end(), uint64_t{0});
    EXPECT_GE(timed, kMessages / 9) << step;
    EXPECT_LE(timed, kMessages / 7) << step;
  }
}

// A staged message may be here before its receive is posted.
TEST_F(ConnectionTest, ChunksMayComeFirst) {
  connection_.note_chunk(40, Path::kStaged, 1, 0, 50);
  connection_.note_post(40, 100, 0);
  connection_.note_done(40, 50);
  EXPECT_EQ(read().messages.at(key("b:1", Path::kStaged)).bytes, 50U);
  // The next one in its place begins anew.
  send(40 + kOpenMessages, Path::kDirect, 70, {0});
  EXPECT_EQ(read().messages.at(key("a:1", Path::kDirect)).bytes, 70U);
}

TEST_F(ConnectionTest, WhatIsOpenAndWhatWentWrong) {
  connection_.note_post(0, 1, 0);
  connection_.note_post(1, 1, 0);
  connection_.note_rail_down(1, 1);
  connection_.note_rail_up(1, 1);
  connection_.note_rail_down(1, 1);
  connection_.note_replay(0, 0, 1);
  connection_.note_stall(7);
  connection_.note_failed();
  const Totals totals = read();
  const EndTotals& end = totals.ends.at({Direction::kSend, "10.0.0.7:51514"});
  EXPECT_EQ(end.open_requests, 2U);
  EXPECT_EQ(end.connections, 1U);
  EXPECT_EQ(end.stalls, 1U);
  EXPECT_EQ(end.replayed_chunks, 1U);
  EXPECT_EQ(end.failures, 1U);
  EXPECT_EQ(totals.rails.at(key("b:1", Path::kStaged).rail).failures, 2U);
  EXPECT_EQ(totals.rails.at(key("b:1", Path::kStaged).rail).revivals, 1U);
}

// The events for NCCL's profiler.
class Listener : public NetEvents {
 public:
  void* begin(void* parent, const NetEvent& event) override {
    begun.push_back(event);
    parents.push_back(parent);
    return &begun_events_[begun.size()];
  }
  void end(void* event) override { ended.push_back(event); }
  void* handle(size_t number) { return &begun_events_[number]; }

  std::vector<NetEvent> begun;
  std::vector<void*> parents, ended;

 private:
  char begun_events_[64] = {};
};

TEST_F(ConnectionTest, NetEventsOfASend) {
  Listener listener;
  connection_.serve(&listener);
  char parent = 0;
  send(0, Path::kDirect, 10, {0});  // one without a parent is not told
  connection_.name_parent(&parent);
  connection_.note_post(1, 4000, 0);
  EXPECT_TRUE(listener.begun.empty()) << "nothing is posted yet";
  connection_.note_chunk(1, Path::kDirect, 0, 77, 3000);
  connection_.note_chunk(1, Path::kDirect, 1, 78, 1000);
  ASSERT_EQ(listener.begun.size(), 2U);
  EXPECT_THAT(listener.parents, ElementsAre(&parent, &parent));
  EXPECT_EQ(listener.begun[1].rail, 1U);
  EXPECT_EQ(listener.begun[1].qp_number, 78U);
  EXPECT_EQ(listener.begun[1].bytes, 1000U);
  EXPECT_EQ(listener.begun[1].sequence, 1U);
  EXPECT_EQ(listener.begun[1].kind, NetEvent::Kind::kWrite);
  EXPECT_TRUE(listener.ended.empty());
  connection_.note_done(1, 4000);
  EXPECT_THAT(listener.ended, ElementsAre(listener.handle(1), listener.handle(2)));
  send(2, Path::kDirect, 10, {0});
  EXPECT_EQ(listener.begun.size(), 2U) << "the parent was the other message's";
}

TEST(ConnectionEvents, NetEventsOfAReceive) {
  Connection connection({Direction::kReceive, "p", {"a:1"}}, 0);
  Listener listener;
  connection.serve(&listener);
  char parent = 0;
  connection.name_parent(&parent);
  connection.note_post(9, 500, 33);
  ASSERT_EQ(listener.begun.size(), 1U);
  EXPECT_EQ(listener.begun[0].kind, NetEvent::Kind::kReceive);
  EXPECT_EQ(listener.begun[0].qp_number, 33U);
  EXPECT_EQ(listener.begun[0].bytes, 500U);
  connection.note_chunk(9, Path::kStaged, 0, 33, 100);
  EXPECT_EQ(listener.begun.size(), 1U);
  connection.note_done(9, 100);
  EXPECT_EQ(listener.ended.size(), 1U);
}

}  // namespace
}  // namespace verbena::observe
