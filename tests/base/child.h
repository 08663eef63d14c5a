// A process that does one thing and ends.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace verbena::base {

// How the forked process ends that does `body`: with the status that `body` returns, or 128 + a signal.
template <typename Body>
int run_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace verbena::base
