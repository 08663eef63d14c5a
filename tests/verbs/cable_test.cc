// Cables of the machine of tools/rdma-vm are pulled and put back. Needs VERBENA_HCA to name a device of host
// 0 on rail 0 and one of host 1.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdlib>
#include <thread>

#include "support/log_capture.h"
#include "support/loopback.h"

namespace verbena::verbs {
namespace {

constexpr size_t kBufferBytes = 4096;
constexpr int kPatienceMs = 20'000;

class CableTest : public testing::Test {
 protected:
  ~CableTest() override { set_cable("up"); }

  static void set_cable(const std::string& state) {
    EXPECT_EQ(std::system(("ip -n sw link set h0r0 " + state).c_str()), 0);
  }
  static bool wait_for_health(const Device& device, bool is_healthy) {
    for (int i = 0; i < kPatienceMs && device.is_healthy() != is_healthy; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return device.is_healthy() == is_healthy;
  }
  int write(Endpoint& from, const Endpoint& to) {
    const WorkRequest request = from.make_request(Opcode::kWrite, to.address(), to.remote_key());
    EXPECT_TRUE(from.pair().post(std::span(&request, 1)));
    const int error = from.wait(kPatienceMs).error;
    if (error == 0) from.pair().retire();
    return error;
  }

  LogCapture log_;
  std::vector<std::unique_ptr<Device>> devices_ = open_devices();
};

TEST_F(CableTest, APulledCableIsNoticedAtBothLevels) {
  Endpoint near_end(*devices_.at(0), kBufferBytes), far_end(*devices_.at(1), kBufferBytes);
  ASSERT_TRUE(near_end.pair().connect(far_end.device().address(), far_end.pair().address()));
  ASSERT_TRUE(far_end.pair().connect(near_end.device().address(), near_end.pair().address()));
  ASSERT_EQ(write(near_end, far_end), 0);

  set_cable("down");
  EXPECT_TRUE(wait_for_health(*devices_[0], false));
  EXPECT_TRUE(devices_[1]->is_healthy());
  EXPECT_TRUE(log_.wait_for_warning("port is down", kPatienceMs));
  const int error = write(near_end, far_end);
  EXPECT_TRUE(error == IBV_WC_RETRY_EXC_ERR || error == IBV_WC_WR_FLUSH_ERR)
      << describe_completion_error(error);

  set_cable("up");
  EXPECT_TRUE(wait_for_health(*devices_[0], true));
}

TEST_F(CableTest, AnAddressThatDoesNotAnswerIsNamed) {
  Endpoint near_end(*devices_.at(0), kBufferBytes);
  PortAddress nobody = devices_.at(1)->address();
  nobody.gid[15] = 99;
  const auto outcome = near_end.pair().connect(nobody, {77, 0, {}});
  EXPECT_EQ(outcome.status(), base::Status::kRemote);
  EXPECT_EQ(outcome.error().errno_value, ETIMEDOUT);
  EXPECT_TRUE(log_.wait_for_warning("does not answer", 0));
}

}  // namespace
}  // namespace verbena::verbs
