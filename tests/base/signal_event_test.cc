#include "base/signal_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/base/log_capture.h"

namespace verbena::base {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::atomic<int> g_calls{0};
void count_call(void*) {
  g_calls.fetch_add(1);
}
void handle_otherwise(int) {}

struct sigaction get_action(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action;
}
void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}
bool await_calls(int calls) {
  for (int i = 0; i < 5000 && g_calls.load() < calls; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return g_calls.load() >= calls;
}

class SignalEventTest : public testing::Test {
 protected:
  SignalEventTest() { g_calls.store(0); }
  ~SignalEventTest() override {
    release_signal();
    set_handler(SIGUSR2, SIG_DFL);
  }
};

TEST_F(SignalEventTest, ASignalBecomesACall) {
  ASSERT_TRUE(take_signal(SIGUSR2, &count_call, nullptr));
  raise(SIGUSR2);
  EXPECT_TRUE(await_calls(1));
  raise(SIGUSR2);
  EXPECT_TRUE(await_calls(2));
  release_signal();
  EXPECT_EQ(get_action(SIGUSR2).sa_handler, SIG_DFL);
  ASSERT_TRUE(take_signal(SIGUSR2, &count_call, nullptr));
  raise(SIGUSR2);
  EXPECT_TRUE(await_calls(3));
}

TEST_F(SignalEventTest, WhatSomebodyHandlesIsNotTaken) {
  const LogCapture log;
  set_handler(SIGUSR2, &handle_otherwise);
  EXPECT_EQ(take_signal(SIGUSR2, &count_call, nullptr).status(), Status::kInvalidUsage);
  EXPECT_EQ(get_action(SIGUSR2).sa_handler, &handle_otherwise);
  set_handler(SIGUSR2, SIG_IGN);
  EXPECT_FALSE(take_signal(SIGUSR2, &count_call, nullptr));
  EXPECT_EQ(get_action(SIGUSR2).sa_handler, SIG_IGN);
  EXPECT_THAT(log.warnings(),
              ElementsAre(HasSubstr("signal SIGUSR2: the application already handles this signal"),
                          HasSubstr("signal SIGUSR2: the application already ignores this signal")));
}

TEST_F(SignalEventTest, AHandlerThatCameLaterStays) {
  ASSERT_TRUE(take_signal(SIGUSR2, &count_call, nullptr));
  set_handler(SIGUSR2, &handle_otherwise);
  release_signal();
  EXPECT_EQ(get_action(SIGUSR2).sa_handler, &handle_otherwise);
}

}  // namespace
}  // namespace verbena::base
