// What queue pairs are made with: the traffic class of each end, and where receives of short messages go.
#include <gtest/gtest.h>

#include "transport/support/connection.h"
#include "transport/support/faulty_devices.h"

namespace verbena::transport {
namespace {

class QueuePairOptionsTest : public testing::Test {
 protected:
  QueuePairOptionsTest() {
    for (auto& count : hooks_.traffic_classes) count = 0;
    hooks_.pairs_not_into_cqe = 0;
    host_ = std::make_unique<Host>(choose_faulty_devices());
  }
  ~QueuePairOptionsTest() override { apply_settings({{"VERBENA_TC", ""}, {"NCCL_IB_FIFO_TC", ""}}); }
  void connect(const Settings& more) {
    Settings settings = choose_faulty_devices();
    settings.insert(settings.end(), more.begin(), more.end());
    apply_settings(settings);
    connect_here(host_->nic(), host_->nic(), false);
  }

  verbs::faulty::Hooks& hooks_ = find_hooks();
  std::unique_ptr<Host> host_;
};

// As NCCL does: the receiving end's queue pairs send nothing but control messages.
TEST_F(QueuePairOptionsTest, GrantsHaveATrafficClassOfTheirOwn) {
  connect({{"VERBENA_TC", "10"}, {"NCCL_IB_FIFO_TC", "42"}});
  EXPECT_EQ(hooks_.traffic_classes[10], 1);
  EXPECT_EQ(hooks_.traffic_classes[42], 1);
}

TEST_F(QueuePairOptionsTest, GrantsHaveTheTrafficClassOfTheData) {
  connect({{"VERBENA_TC", "10"}});
  EXPECT_EQ(hooks_.traffic_classes[10], 2);
}

// The CPU that polls copies what comes in a completion: it must not be for memory of a GPU.
TEST_F(QueuePairOptionsTest, ReceivesOfGpuMemoryDoNotComeInCompletions) {
  Link::Options options;
  options.rails = host_->nic().rails;
  for (const bool to_gpu : {false, true}) {
    options.receives_to_gpu = to_gpu;
    EXPECT_TRUE(Link::create(options));
    EXPECT_EQ(hooks_.pairs_not_into_cqe, to_gpu ? 1 : 0);
  }
  connect({});
  EXPECT_EQ(hooks_.pairs_not_into_cqe, 1) << "pages are in host memory";
}

}  // namespace
}  // namespace verbena::transport
