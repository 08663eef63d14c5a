#include "transport/support/processes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace verbena::transport {

namespace {

constexpr int kSilenceMs = 20'000;

int run_body(const Part& part, int socket) {
  Channel channel(socket);
  try {
    part.body(channel);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_leak_check();  // what _exit() leaves out
#endif
  fflush(nullptr);
  return testing::Test::HasFailure() ? 1 : 0;
}

pid_t start(const Part& part, int own_socket, int other_socket, int patience_s) {
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(static_cast<unsigned>(patience_s) + 5);  // never outlives a test that was itself killed
  close(other_socket);
  _exit(run_body(part, own_socket));
}

void expect_end(const Part& part, int status, const char* name) {
  if (part.end == End::kKilled) {
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << name << ": status " << status;
  } else {
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name << " failed: status " << status;
  }
}

// Its wait status; killed if it takes longer.
int collect(pid_t pid, int& patience_ms) {
  int status = 0;
  for (; waitpid(pid, &status, WNOHANG) == 0; --patience_ms) {
    if (patience_ms <= 0) {
      ADD_FAILURE() << "a process hangs";
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return status;
    }
    usleep(1000);
  }
  return status;
}

}  // namespace

void Channel::send(const void* data, size_t length_bytes) {
  if (::send(socket_, data, length_bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(length_bytes))
    throw std::runtime_error("the other process is gone");
}

void Channel::receive(void* data, size_t length_bytes) {
  pollfd ready{socket_, POLLIN, 0};
  if (poll(&ready, 1, kSilenceMs) != 1) throw std::runtime_error("the other process said nothing");
  if (recv(socket_, data, length_bytes, MSG_WAITALL) != static_cast<ssize_t>(length_bytes))
    throw std::runtime_error("the other process is gone");
}

void Channel::meet() {
  tell('x');
  hear<char>();
}

void run_processes(const Part& first, const Part& second, int patience_s) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const pid_t first_pid = start(first, sockets[0], sockets[1], patience_s);
  const pid_t second_pid = start(second, sockets[1], sockets[0], patience_s);
  close(sockets[0]);
  close(sockets[1]);
  ASSERT_GT(first_pid, 0);
  ASSERT_GT(second_pid, 0);
  int patience_ms = patience_s * 1000;
  expect_end(first, collect(first_pid, patience_ms), "the first process");
  expect_end(second, collect(second_pid, patience_ms), "the second process");
}

void run_process(const std::function<void()>& body) {
  run_processes({[&](Channel& channel) {
                  body();
                  channel.meet();
                }},
                {[](Channel& channel) { channel.meet(); }});
}

void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace verbena::transport
