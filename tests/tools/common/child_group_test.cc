#include "common/child_group.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/scoped_environment.h"
#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

ChildCommand make_shell(const std::string& script) {
  return {"/bin/sh", {"-c", script}, Environment::copy_own(), -1};
}

TEST(ChildGroup, ReadsLinesThenExit) {
  ChildGroup group;
  group.start(make_shell("echo one >&3; echo two >&3; exit 7"));
  const int64_t deadline_ns = deadline_after_s(10);
  EXPECT_EQ(group.wait_event(deadline_ns).line, "one");
  EXPECT_EQ(group.wait_event(deadline_ns).line, "two");
  EXPECT_EQ(group.wait_event(deadline_ns).kind, ChildEvent::Kind::kExit);
  EXPECT_EQ(group.exit_status(0), 7);
  EXPECT_EQ(group.describe_exit(0), "exit status 7");
}

TEST(ChildGroup, TellsADeathBySignal) {
  ChildGroup group;
  group.start(make_shell("kill -9 $$"));
  EXPECT_EQ(group.wait_event(deadline_after_s(10)).kind, ChildEvent::Kind::kExit);
  EXPECT_EQ(group.exit_status(0), 128 + 9);
}

TEST(ChildGroup, TimesOutAndKillsByPid) {
  ChildGroup group;
  group.start(make_shell("exec sleep 100"));
  const pid_t pid = group.pid(0);
  EXPECT_EQ(group.wait_event(deadline_after_s(0.1)).kind, ChildEvent::Kind::kTimeout);
  EXPECT_EQ(kill(pid, 0), 0);
  group.kill_all();
  EXPECT_TRUE(group.has_exited(0));
  EXPECT_EQ(group.exit_status(0), 128 + SIGKILL);
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(ChildGroup, SendsLinesToTheRightChild) {
  ChildGroup group;
  for (int child = 0; child < 3; ++child) group.start(make_shell("read line <&3; echo got $line >&3"));
  const int64_t deadline_ns = deadline_after_s(10);
  for (size_t child = 0; child < 3; ++child) group.send_line(child, std::to_string(child), deadline_ns);
  int lines = 0;
  while (lines < 3) {
    const ChildEvent event = group.wait_event(deadline_ns);
    ASSERT_NE(event.kind, ChildEvent::Kind::kTimeout);
    if (event.kind != ChildEvent::Kind::kLine) continue;
    EXPECT_EQ(event.line, "got " + std::to_string(event.child));
    ++lines;
  }
}

TEST(ChildGroup, GivesPartnersTheirChannel) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  ChildGroup group;
  ChildCommand talker = make_shell("echo hello >&4");
  talker.partner_descriptor = pair[0];
  ChildCommand listener = make_shell("read line <&4; echo $line >&3");
  listener.partner_descriptor = pair[1];
  group.start(talker);
  group.start(listener);
  close(pair[0]);
  close(pair[1]);
  ChildEvent event;
  do {
    event = group.wait_event(deadline_after_s(10));
  } while (event.kind == ChildEvent::Kind::kExit);
  EXPECT_EQ(event.line, "hello");
}

TEST(ChildGroup, SaysWhatCannotBeStarted) {
  ChildGroup group;
  EXPECT_THROW(group.start({"/nonexistent/tool", {}, Environment::copy_own(), -1}), ToolError);
}

TEST(Environment, DefaultsYieldAndSettingsWin) {
  const base::ScopedEnvironment own({{"VERBENA_TEST_MINE", "user"}});
  Environment environment = Environment::copy_own();
  environment.set_default("VERBENA_TEST_MINE", "tool");
  environment.set_default("VERBENA_TEST_NEW", "tool");
  EXPECT_EQ(*environment.find("VERBENA_TEST_MINE"), "user");
  EXPECT_EQ(environment.list_applied(), (std::vector<std::string>{"VERBENA_TEST_NEW=tool"}));
  environment.set("VERBENA_TEST_MINE", "option");
  EXPECT_EQ(*environment.find("VERBENA_TEST_MINE"), "option");
}

}  // namespace
}  // namespace verbena::tools
