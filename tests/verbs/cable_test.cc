// Cables of the machine of tools/rdma-vm are pulled and put back. Needs VERBENA_HCA to name a device of host
// 0 on rail 0 and one of host 1.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <thread>

#include "support/loopback.h"
#include "tests/base/log_capture.h"
#include "verbs/gid_choice.h"

namespace verbena::verbs {
namespace {

constexpr size_t kBufferBytes = 4096;
constexpr int kPatienceMs = 60'000;

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

  base::LogCapture log_;
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

// The interface of host 0's first rail gets another IPv4 address while the device is open.
class NewAddressTest : public CableTest {
 protected:
  ~NewAddressTest() override {
    run_ip("del 10.0.0.99");
    run_ip("add 10.0.0." + std::to_string(old_[15]));
  }

  static void run_ip(const std::string& words) {
    EXPECT_EQ(std::system(("ip addr " + words + "/24 dev h0r0").c_str()), 0) << words;
  }

  std::array<uint8_t, 16> old_ = std::to_array(devices_.at(0)->address().gid);
};

TEST_F(NewAddressTest, IsUsedByTheNextConnection) {
  ASSERT_EQ(format_gid(old_.data()).substr(0, 14), "::ffff:10.0.0.");
  run_ip("del 10.0.0." + std::to_string(old_[15]));  // a second address of its subnet would go with it
  run_ip("add 10.0.0.99");
  EXPECT_TRUE(log_.wait_for_warning("GID table changed", kPatienceMs));
  LocalAddress address{};
  for (int i = 0; i < kPatienceMs && format_gid(address.port.gid) != "::ffff:10.0.0.99"; ++i) {
    address = devices_[0]->refresh_address();  // the kernel works on its table for a while
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(format_gid(address.port.gid), "::ffff:10.0.0.99");
  EXPECT_EQ(address.port.roce_version, 2);
  EXPECT_EQ(address.port.partition_key, 0xffff);
  EXPECT_EQ(format_gid(address.port.other_gid).substr(0, 4), "fd00");

  Endpoint near_end(*devices_[0], kBufferBytes), far_end(*devices_.at(1), kBufferBytes);
  ASSERT_TRUE(near_end.pair().connect(far_end.device().address(), far_end.pair().address()));
  ASSERT_TRUE(far_end.pair().connect(near_end.device().address(), near_end.pair().address()));
  EXPECT_EQ(write(near_end, far_end), 0);
}

// The far end knows an IPv6 address only: both meet there.
TEST_F(CableTest, EndsMeetInTheFamilyThatBothHave) {
  Endpoint near_end(*devices_.at(0), kBufferBytes), far_end(*devices_.at(1), kBufferBytes);
  PortAddress far_address = far_end.device().address(), near_address = near_end.device().address();
  std::swap(far_address.gid, far_address.other_gid);
  std::fill(std::begin(far_address.other_gid), std::end(far_address.other_gid), uint8_t{0});
  ASSERT_TRUE(near_end.pair().connect(far_address, far_end.pair().address()));
  std::swap(near_address.gid, near_address.other_gid);
  std::fill(std::begin(near_address.other_gid), std::end(near_address.other_gid), uint8_t{0});
  ASSERT_TRUE(far_end.pair().connect(near_address, near_end.pair().address()));
  EXPECT_EQ(write(near_end, far_end), 0);
}

}  // namespace
}  // namespace verbena::verbs
