// The trace as Perfetto reads it.
#include "observe/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace verbena::observe {
namespace {

using nlohmann::json;

class TraceTest : public testing::Test {
 protected:
  json write() const { return json::parse(write_trace({connection_}, {"host", 42, "a \"stall\"\n", 5})); }
  static std::vector<json> select(const json& trace, const std::string& phase, const std::string& name) {
    std::vector<json> found;
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] == phase && event["name"] == name) found.push_back(event);
    }
    return found;
  }

  std::shared_ptr<Connection> connection_ =
      std::make_shared<Connection>(Labels{Direction::kReceive, "10.0.0.7:51514", {"a:1"}}, 16);
};

TEST_F(TraceTest, AMessageIsASlice) {
  connection_->note_post(7, 100, 0);
  connection_->note_grant(7);
  connection_->note_chunk(7, Path::kStaged, 0, 0, 60);
  connection_->note_done(7, 60);
  connection_->note_consumed(7);
  const json trace = write();
  EXPECT_EQ(trace["otherData"]["cause"], "a \"stall\"\n");
  ASSERT_EQ(select(trace, "M", "process_name").size(), 1U);
  EXPECT_EQ(select(trace, "M", "thread_name").at(0)["args"]["name"], "receive from 10.0.0.7:51514");
  const auto begins = select(trace, "b", "message 7"), ends = select(trace, "e", "message 7");
  ASSERT_EQ(begins.size(), 1U);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(begins[0]["id"], ends[0]["id"]);
  EXPECT_EQ(begins[0]["args"]["bytes"], 100);
  EXPECT_EQ(ends[0]["args"]["bytes"], 60);
  EXPECT_EQ(ends[0]["args"]["rail"], "a:1");
  EXPECT_EQ(ends[0]["args"]["path"], "staged");
  EXPECT_LE(begins[0]["ts"], ends[0]["ts"]);
  EXPECT_EQ(select(trace, "i", "grant sent").size(), 1U);
  EXPECT_EQ(select(trace, "i", "arrived on a:1").size(), 1U);
  const auto gpu = select(trace, "b", "GPU unpacks and uses");
  ASSERT_EQ(gpu.size(), 1U);
  EXPECT_EQ(gpu[0]["ts"], ends[0]["ts"]);
  EXPECT_EQ(select(trace, "e", "GPU unpacks and uses").size(), 1U);
}

// What a stall's trace is about: it has begun and has no end.
TEST_F(TraceTest, WhatIsOpenHasNoEnd) {
  connection_->note_post(3, 100, 0);
  connection_->note_stall(30'000'000'000);
  const json trace = write();
  EXPECT_EQ(select(trace, "b", "message 3").size(), 1U);
  EXPECT_EQ(select(trace, "e", "message 3").size(), 0U);
  EXPECT_EQ(select(trace, "i", "stall").at(0)["args"]["waited ns"], 30'000'000'000);
}

TEST_F(TraceTest, AnEndWhoseBeginningIsGoneIsLeftOut) {
  connection_->note_post(1, 100, 0);
  for (uint32_t i = 0; i < 16; ++i) connection_->note_grant(2);
  connection_->note_done(1, 100);
  const json trace = write();
  EXPECT_EQ(select(trace, "e", "message 1").size(), 0U);
  EXPECT_EQ(trace["otherData"]["older events left out"], "2");
}

TEST_F(TraceTest, RailsAndFlushes) {
  connection_->note_flush(4);
  connection_->note_flush_done(4);
  connection_->note_rail_down(0, 2);
  connection_->note_replay(9, 0, 77);
  connection_->note_rail_up(0, 2);
  connection_->note_failed();
  const json trace = write();
  EXPECT_EQ(select(trace, "b", "flush").size(), 1U);
  EXPECT_EQ(select(trace, "e", "flush").size(), 1U);
  EXPECT_EQ(select(trace, "i", "failed: a:1").at(0)["args"]["queue pair"], 2);
  EXPECT_EQ(select(trace, "i", "works again: a:1").size(), 1U);
  EXPECT_EQ(select(trace, "i", "retransmitted on a:1").at(0)["args"]["bytes"], 77);
  EXPECT_EQ(select(trace, "i", "connection failed").size(), 1U);
}

}  // namespace
}  // namespace verbena::observe
