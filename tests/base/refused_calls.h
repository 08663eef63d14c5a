// System calls that the kernel refuses to a process of a test, as it does at a limit or by a container's
// seccomp profile: always, or one at a time, so that whatever is made of several steps fails at each of them.
#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

namespace verbena::base {

// From now on, for all threads: these calls have `verdict`. -1 with errno: this kernel has no seccomp.
inline int filter_calls(const std::vector<int>& calls, uint32_t verdict, unsigned flags) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const int call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, verdict));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter));
}

// Each of these calls of this process fails with `error`.
inline bool refuse_calls(const std::vector<int>& calls, int error) {
  return filter_calls(calls, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error), SECCOMP_FILTER_FLAG_TSYNC) ==
         0;
}

// Runs a function in forked processes, in each of which another one of the calls fails.
class OneRefused {
 public:
  OneRefused(std::vector<int> calls, int error) : calls_(std::move(calls)), error_(error) {}

  struct Run {
    int code = 0;   // what the function returned; 128 + signal; 255: it did not end in time
    int call = -1;  // which call was refused; -1: it came to fewer calls
  };
  // The `number`-th of the calls fails, from 0 on. Empty: this kernel cannot do that.
  std::optional<Run> run(uint32_t number, const std::function<int()>& body, int64_t limit_ms) const {
    int told[2];
    if (pipe2(told, O_CLOEXEC) != 0) return std::nullopt;
    const pid_t child = fork();
    if (child == 0) {
      close(told[0]);
      const int listener = filter_calls(calls_, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
      if (write(told[1], &listener, sizeof(listener)) != sizeof(listener)) _exit(254);
      close(told[1]);
      _exit(run_body(body));
    }
    close(told[1]);
    int listener = -1;
    if (read(told[0], &listener, sizeof(listener)) == sizeof(listener) && listener >= 0)
      listener = take_descriptor(child, listener);
    close(told[0]);
    Run result;
    if (listener >= 0) supervise(listener, number, limit_ms, result);
    const bool is_late = listener >= 0 && result.code == 255;
    if (is_late) kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (listener < 0) return std::nullopt;
    close(listener);
    if (!is_late) result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result;
  }

 private:
  static int run_body(const std::function<int()>& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      return 253;
    }
  }
  // The child's own one stays open there: it ends with the child.
  static int take_descriptor(pid_t process, int descriptor) {
    const auto handle = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
    const auto taken = static_cast<int>(syscall(SYS_pidfd_getfd, handle, descriptor, 0));
    close(handle);
    return taken;
  }

  // Until the child has ended.
  void supervise(int listener, uint32_t number, int64_t limit_ms, Run& result) const {
    uint32_t count = 0;
    timespec begin{};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
      timespec now{};
      clock_gettime(CLOCK_MONOTONIC, &now);
      const int64_t left_ms =
          limit_ms - (now.tv_sec - begin.tv_sec) * 1000 - (now.tv_nsec - begin.tv_nsec) / 1'000'000;
      pollfd polled{listener, POLLIN, 0};
      const int ready = left_ms <= 0 ? 0 : ::poll(&polled, 1, static_cast<int>(left_ms));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) {
        result.code = 255;
        return;
      }
      if ((polled.revents & POLLIN) == 0) return;
      seccomp_notif asked{};
      if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) continue;
      seccomp_notif_resp answer{};
      answer.id = asked.id;
      answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      if (count++ == number) {
        result.call = asked.data.nr;
        answer.flags = 0;
        answer.error = -error_;
      }
      ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
  }

  std::vector<int> calls_;
  int error_;
};

}  // namespace verbena::base
