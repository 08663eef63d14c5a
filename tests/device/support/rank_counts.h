// The numbers of ranks that a sweep runs with. A run with all of them takes minutes, so that a run takes some
// of them, other ones each day.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/support/random.h"

namespace verbena::device_test {

inline bool takes_all_rank_counts() {
  return std::getenv("RANKS_ALL") != nullptr;
}

// Returns `always`, and two of 3, 5, 6, 7, 8 and 16 (under sanitizers one of 3 to 8). The two are drawn from
// the day, which is printed, and from the name of the running test. RANKS_SEED=20261129 repeats a day,
// RANKS_ALL=1 returns all six. The name of the test must contain "Ranks": `tools/test --all` also runs these
// tests with RANKS_ALL=1.
inline std::vector<int32_t> list_rank_counts(std::vector<int32_t> always = {}) {
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  EXPECT_NE(name.find("Ranks"), std::string::npos) << "the test's name must contain Ranks";
  std::vector<int32_t> counts = {3, 5, 6, 7, 8, 16};
  if (!takes_all_rank_counts()) {
    const char* const given = std::getenv("RANKS_SEED");
    const std::time_t now = std::time(nullptr);
    char today[16] = "";
    std::strftime(today, sizeof(today), "%Y%m%d", std::gmtime(&now));
    const std::string seed = given == nullptr ? today : given;
    Random random(std::hash<std::string>{}(seed + name));
    if (emulator::kSanitizer) counts.pop_back();
    for (const size_t kept = emulator::kSanitizer ? 1 : 2; counts.size() > kept;)
      counts.erase(counts.begin() + random.between(0, static_cast<uint32_t>(counts.size()) - 1));
    std::string drawn;
    for (const int32_t count : counts) drawn += " " + std::to_string(count);
    std::printf("RANKS_SEED=%s: ranks%s\n", seed.c_str(), drawn.c_str());
  }
  for (const int32_t count : counts)
    if (std::count(always.begin(), always.end(), count) == 0) always.push_back(count);
  return always;
}

}  // namespace verbena::device_test
