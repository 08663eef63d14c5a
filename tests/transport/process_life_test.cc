// Which processes of this host are there, as the engines of datagrams tell each other.
#include "transport/datagram/process_life.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/parameters.h"

namespace verbena::transport::datagram {
namespace {

using protocol::datagram::ProcessName;

TEST(ProcessLife, OnesOwnIsKnownAndThere) {
  const ProcessName own = name_own_process();
  ASSERT_NE(own.space, 0U);
  EXPECT_EQ(own.pid, static_cast<uint32_t>(getpid()));
  EXPECT_FALSE(has_ended(own));
  EXPECT_EQ(own, name_own_process());
}

// Killed, and whether or not its parent has looked.
TEST(ProcessLife, AnotherEnds) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    const ProcessName own = name_own_process();
    if (write(told[1], &own, sizeof(own)) != sizeof(own)) _exit(1);
    for (;;) pause();
  }
  ProcessName name{};
  ASSERT_EQ(read(told[0], &name, sizeof(name)), static_cast<ssize_t>(sizeof(name)));
  EXPECT_EQ(name.space, name_own_process().space);
  EXPECT_FALSE(has_ended(name));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(has_ended(name)) << "a zombie";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(name));
  close(told[0]);
  close(told[1]);
}

TEST(ProcessLife, ANumberThatAnotherProcessHasNowIsNoSignOfLife) {
  ProcessName before = name_own_process();
  --before.start_ticks;
  EXPECT_TRUE(has_ended(before));
}

TEST(ProcessLife, WhatSaysNothingHasNotEnded) {
  EXPECT_FALSE(has_ended({}));
}

TEST(ProcessLife, HostsAreToldApartByTheirSetting) {
  const uint64_t space = name_own_process().space;
  const char* const before = std::getenv("VERBENA_HOSTID");
  ASSERT_EQ(before, nullptr);
  setenv("VERBENA_HOSTID", "another", 1);
  ASSERT_TRUE(base::load_parameters());
  EXPECT_NE(name_own_process().space, space);
  unsetenv("VERBENA_HOSTID");
  ASSERT_TRUE(base::load_parameters());
  EXPECT_EQ(name_own_process().space, space);
}

}  // namespace
}  // namespace verbena::transport::datagram
