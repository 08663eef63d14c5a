// Cables of the machine of tools/rdma-vm are pulled and put back while four endpoints of two hosts' devices
// are at work, over two rails each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "transport/one_sided/support/traffic.h"

namespace verbena::transport {
namespace {

void set_cable(const std::string& name, const char* state) {
  ASSERT_EQ(std::system(("ip -n sw link set " + name + " " + state).c_str()), 0);
}

class OneSidedCableTest : public testing::Test {
 protected:
  ~OneSidedCableTest() override {
    for (const char* cable : {"h0r0", "h0r1", "h1r0"}) set_cable(cable, "up");
  }
  // Until so many queue pairs have failed, or live again, in all.
  bool play_until(const std::function<bool(const protocol::LaneCounts&)>& done) {
    for (int round = 0; round < 20'000; ++round) {
      if (!traffic_.play()) return false;
      if (done(count_failures(ranks_))) return true;
    }
    return false;
  }

  const std::vector<std::string> filters_{"=rxe00,rxe01", "=rxe10,rxe11", "=rxe00,rxe01", "=rxe10,rxe11"};
  Ranks ranks_ = make_group(4, {.rails = 2, .send_depth = 64}, Traffic::kRegionBytes, filters_);
  Traffic traffic_{ranks_, 1, 20'000};
};

TEST_F(OneSidedCableTest, EachCableInTurnIsPulledAndPutBack) {
  for (const std::string cable : {"h0r0", "h0r1", "h1r0"}) {
    const protocol::LaneCounts before = count_failures(ranks_);
    ASSERT_TRUE(traffic_.play());
    set_cable(cable, "down");
    ASSERT_TRUE(play_until([&](const auto& now) {
      return now.failed_queue_pairs > before.failed_queue_pairs + 1;
    })) << cable;
    set_cable(cable, "up");
    ASSERT_TRUE(play_until([&](const auto& now) {
      return now.revived_queue_pairs == now.failed_queue_pairs;
    })) << cable;
  }
  traffic_.expect_sums();
}

}  // namespace
}  // namespace verbena::transport
