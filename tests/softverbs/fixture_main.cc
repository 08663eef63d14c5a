#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

// Each test process is a job of its own, so that tests may run beside each other.
int main(int argument_count, char** arguments) {
  setenv("SOFTVERBS_DEVICES", "4", 1);
  setenv("SOFTVERBS_JOB", ("test-" + std::to_string(getpid())).c_str(), 1);
  ::testing::InitGoogleTest(&argument_count, arguments);
  return RUN_ALL_TESTS();
}
