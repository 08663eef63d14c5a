// Address handles on a device of VERBENA_IBVERBS_LIB: softverbs, or the kernel's in tests/vm.
#include "verbs/address_handles.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "support/loopback.h"
#include "tests/base/log_capture.h"
#include "verbs/device.h"

namespace verbena::verbs {
namespace {

using Purpose = AddressHandles::Purpose;

class AddressHandlesTest : public testing::Test {
 protected:
  base::Result<AddressHandle> take(uint32_t flow_label, Purpose purpose = Purpose::kPeer) {
    return handles_.take(devices_[0]->local_address(), devices_.back()->address(), -1, flow_label, purpose);
  }
  AddressHandle take_for_sure(uint32_t flow_label, Purpose purpose = Purpose::kPeer) {
    auto taken = take(flow_label, purpose);
    EXPECT_TRUE(taken && *taken) << flow_label;
    return taken ? std::move(*taken) : AddressHandle();
  }
  int find_error(uint32_t flow_label, Purpose purpose) {
    const auto taken = take(flow_label, purpose);
    return taken ? 0 : taken.error().errno_value;
  }

  const std::vector<std::unique_ptr<Device>> devices_ = open_devices();
  AddressHandles& handles_ = devices_[0]->address_handles();
};

TEST_F(AddressHandlesTest, PeersBehindOneRouteShareAHandle) {
  AddressHandle first = take_for_sure(1), second = take_for_sure(1);
  EXPECT_EQ(first.get(), second.get());
  EXPECT_EQ(handles_.count(), 1U);
  const AddressHandle other = take_for_sure(2);
  EXPECT_NE(other.get(), first.get());
  EXPECT_EQ(handles_.count(), 2U);
  first = {};
  EXPECT_EQ(handles_.count(), 2U) << "one peer still uses it";
  second = {};
  EXPECT_EQ(handles_.count(), 1U);
}

TEST_F(AddressHandlesTest, FurtherPathsLeaveHandlesForPeers) {
  handles_.set_limit(32);  // of which a sixteenth is for further paths
  std::vector<AddressHandle> taken;
  taken.push_back(take_for_sure(1, Purpose::kFurtherPath));
  taken.push_back(take_for_sure(2, Purpose::kFurtherPath));
  const auto third = take(3, Purpose::kFurtherPath);
  ASSERT_TRUE(third);
  EXPECT_FALSE(*third);
  EXPECT_EQ(take_for_sure(2, Purpose::kFurtherPath).get(), taken[1].get())
      << "there is no need for a new one";
  for (uint32_t label = 3; label < 32; ++label) taken.push_back(take_for_sure(label));
  EXPECT_EQ(find_error(32, Purpose::kPeer), ENOSPC);
  const AddressHandle answer = take_for_sure(32, Purpose::kAnswer);
  EXPECT_EQ(find_error(33, Purpose::kAnswer), ENOSPC);
  EXPECT_EQ(handles_.count(), 32U);
  taken.resize(30);
  EXPECT_EQ(find_error(33, Purpose::kPeer), ENOSPC) << "the last one is for answers";
  taken.resize(29);
  EXPECT_TRUE(take(33, Purpose::kPeer));
}

TEST_F(AddressHandlesTest, TheErrorNamesTheRemedy) {
  const base::LogCapture log;
  handles_.set_limit(1);
  const PortAddress there = devices_.back()->address();
  const auto refused = take(1);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(log.warnings().empty()) << "a caller may have another rail";
  EXPECT_EQ(handles_.explain(refused.error(), there).errno_value, ENOSPC);
  ASSERT_EQ(log.warnings().size(), 1U);
  for (const char* part : {devices_[0]->name().c_str(), "0 of the device's 1", "VERBENA_TRANSPORT=connected"})
    EXPECT_NE(log.warnings()[0].find(part), std::string::npos) << log.warnings()[0];
}

TEST_F(AddressHandlesTest, AnOldAddressIsNotShared) {
  const AddressHandle old = take_for_sure(1);
  old.stop_sharing();
  const AddressHandle fresh = take_for_sure(1);
  EXPECT_NE(fresh.get(), old.get());
  old.stop_sharing();
  EXPECT_EQ(take_for_sure(1).get(), fresh.get());
  EXPECT_EQ(handles_.count(), 2U);
}

TEST_F(AddressHandlesTest, ThreadsShareThemToo) {
  constexpr uint32_t kThreads = 4, kRounds = 2'000, kRoutes = 3;
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < kThreads; ++number) {
    threads.emplace_back([this, number] {
      for (uint32_t round = 0; round < kRounds; ++round) {
        const auto mine = take(1 + (round + number) % kRoutes);
        ASSERT_TRUE(mine);
        const auto again = take(1 + (round + number) % kRoutes);
        ASSERT_TRUE(again);
        EXPECT_EQ(mine->get(), again->get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(handles_.count(), 0U);
}

}  // namespace
}  // namespace verbena::verbs
