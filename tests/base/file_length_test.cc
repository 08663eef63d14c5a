#include "base/file_length.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <csignal>

#include "tests/base/child.h"

namespace verbena::base {
namespace {

// How a forked process ends that has a limit of file sizes of 1 MiB.
template <typename Body>
int run_with_limit(const Body& body) {
  return run_child([&] {
    constexpr rlimit kMebibyte{1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_DFL);
    return setrlimit(RLIMIT_FSIZE, &kMebibyte) == 0 ? body() : 9;
  });
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
