#include "base/file_length.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

namespace verbena::base {
namespace {

// Returns the exit status of a forked process with a limit of file sizes of 1 MiB, or 128 + signal.
template <typename Body>
int run_with_limit(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr rlimit kMebibyte{1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_DFL);
    _exit(setrlimit(RLIMIT_FSIZE, &kMebibyte) == 0 ? body() : 9);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(FileLength, ALengthAboveTheLimitFailsWithoutASignal) {
  EXPECT_EQ(run_with_limit([] {
              const int file = memfd_create("file_length_test", MFD_CLOEXEC);
              return set_file_length(file, (1 << 20) + 1) == -1 && errno == EFBIG ? 0 : 1;
            }),
            0);
}

TEST(FileLength, ALengthWithinTheLimitIsSet) {
  EXPECT_EQ(run_with_limit([] {
              const int file = memfd_create("file_length_test", MFD_CLOEXEC);
              struct stat status {};
              if (set_file_length(file, 1 << 20) != 0 || fstat(file, &status) != 0) return 1;
              return status.st_size == 1 << 20 ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace verbena::base
