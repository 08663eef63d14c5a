#include "base/log.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/base/log_capture.h"

namespace verbena::base {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(Log, ShowsOnlyWarningsOnStderrBeforeASinkIsSet) {
  CaptureStderr();
  log_info("object: quiet");
  log_trace("object: quieter");
  log_warn("object: what: cause (%s %d %s)", "name", 7, "ms");
  EXPECT_EQ(GetCapturedStderr(), "verbena: object: what: cause (name 7 ms)\n");
}

TEST(Log, WhatPeersSayDoesNotControlATerminal) {
  CaptureStderr();
  log_warn("peer: %s",
           "a\x1b]0;title\a\x1b[2Jb\rc\nd\x7f\xc2\x9b"
           "31m \xc3\xa9");
  EXPECT_EQ(GetCapturedStderr(), "verbena: peer: a?]0;title??[2Jb?c?d???31m \xc3\xa9\n");
  static_cast<void>(fail(Status::kRemote, "peer: %s", "\x1b[2J"));
  EXPECT_STREQ(last_failure(), "peer: ?[2J");
}

TEST(Log, HandsEveryLevelToTheSink) {
  const LogCapture capture;
  CaptureStderr();
  log_warn("a");
  log_info("b");
  log_trace("c");
  EXPECT_EQ(capture.lines_of(LogLevel::kWarn), std::vector<std::string>{"verbena: a"});
  EXPECT_EQ(capture.lines_of(LogLevel::kInfo), std::vector<std::string>{"verbena: b"});
  EXPECT_EQ(capture.lines_of(LogLevel::kTrace), std::vector<std::string>{"verbena: c"});
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST(Log, FailLogsOnceAndReturnsTheStatus) {
  const LogCapture capture;
  const Error error = fail(Status::kTimeout, "peer: gone");
  EXPECT_EQ(error.status, Status::kTimeout);
  EXPECT_EQ(error.errno_value, 0);
  EXPECT_EQ(capture.warnings(), std::vector<std::string>{"verbena: peer: gone"});
}

TEST(Log, FailErrnoNamesTheCauseAndKeepsTheNumber) {
  const LogCapture capture;
  const Error error = fail_errno(Status::kSystem, ENOMEM, "buffer: cannot map %d bytes", 5);
  EXPECT_EQ(error.errno_value, ENOMEM);
  EXPECT_EQ(
      capture.warnings(),
      std::vector<std::string>{"verbena: buffer: cannot map 5 bytes: Cannot allocate memory (errno 12)"});
}

TEST(Log, CutsALongLineAndStaysInBounds) {
  const LogCapture capture;
  const std::string longer(5000, 'x');
  std::ignore = fail_errno(Status::kSystem, ENOMEM, "%s", longer.c_str());
  ASSERT_EQ(capture.warnings().size(), 1u);
  EXPECT_EQ(capture.warnings()[0].size(), 1023u);
}

TEST(Log, KeepsErrno) {
  const LogCapture capture;
  errno = EXDEV;
  log_warn("%s", "line");
  EXPECT_EQ(errno, EXDEV);
}

TEST(Log, ServesManyThreadsWhileTheSinkChanges) {
  std::vector<std::thread> threads;
  {
    const LogCapture capture;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([] {
        for (int k = 0; k < 200; ++k) log_info("line %d", k);
      });
    }
    set_log_sink(nullptr);
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace verbena::base
