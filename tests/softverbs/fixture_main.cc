#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

// The children end without their exit handlers, so their tables would stay until the next process sweeps.
void remove_tables(const std::string& job) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    if (entry.path().string().ends_with("-" + job)) std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

// Each test process is a separate job, so that tests may run beside each other.
int main(int argument_count, char** arguments) {
  setenv("SOFTVERBS_DEVICES", "4", 1);
  const std::string job = "test-" + std::to_string(getpid());
  setenv("SOFTVERBS_JOB", job.c_str(), 1);
  ::testing::InitGoogleTest(&argument_count, arguments);
  const int result = RUN_ALL_TESTS();
  remove_tables(job);
  return result;
}
