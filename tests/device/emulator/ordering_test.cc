// Runs each case under ThreadSanitizer in a separate process. Without ThreadSanitizer only the correct cases
// run.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "device/emulator/ordering_cases.h"
#include "device/emulator/sanitizer.h"

namespace verbena::emulator {
namespace {

constexpr int kRaceExitCode = 66;

struct Outcome {
  int exit_code;
  std::string output;
};

Outcome run_case(const OrderingCase& one, uint64_t seed) {
  const std::string command =
      "TSAN_OPTIONS='exitcode=66 halt_on_error=1 symbolize=0' timeout 60 " VERBENA_ORDERING_CASES " " +
      std::string(one.name) + " " + std::to_string(seed) + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen"};
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), got);
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

class OrderingTest : public testing::TestWithParam<OrderingCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, OrderingTest,
                         testing::ValuesIn(ordering_cases().begin(), ordering_cases().end()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(OrderingTest, IsJudgedRightly) {
  const OrderingCase& one = GetParam();
  if (one.is_race && !kThreadSanitizer) GTEST_SKIP() << "only ThreadSanitizer sees a race";
  for (const uint64_t seed : {0, 2}) {
    const Outcome outcome = run_case(one, seed);
    if (one.is_race) {
      EXPECT_EQ(outcome.exit_code, kRaceExitCode) << "seed " << seed << "\n" << outcome.output;
      EXPECT_NE(outcome.output.find("WARNING: ThreadSanitizer: data race"), std::string::npos)
          << outcome.output;
    } else {
      EXPECT_EQ(outcome.exit_code, 0) << "seed " << seed << "\n" << outcome.output;
    }
  }
}

}  // namespace
}  // namespace verbena::emulator
