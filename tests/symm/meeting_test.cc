// The meeting of verbena-bench symm's ranks before their backend has one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "verbena-bench/symm/session.h"

namespace verbena::tools::symm {
namespace {

// The other rank leaves before they have met.
TEST(MeetingTest, AMeetingThatFailsLeavesNoFile) {
  setenv("VERBENA_SOCKET_IFNAME", "lo", 1);
  verbena_unique_id id;
  ASSERT_EQ(verbena_get_unique_id(&id), VERBENA_SUCCESS);
  SymmPlan plan;
  for (const uint8_t byte : id.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    plan.id += digits;
  }
  const std::string path = "/verbena-bench-" + plan.id.substr(0, 128);
  std::thread other([&id] { const SymmetricContext leaves(id, 1, 2); });
  EXPECT_THROW(Meeting{plan}, std::exception);
  other.join();
  const int left = shm_open(path.c_str(), O_RDWR, 0600);
  EXPECT_LT(left, 0);
  if (left < 0) return;
  close(left);
  shm_unlink(path.c_str());
}

}  // namespace
}  // namespace verbena::tools::symm
