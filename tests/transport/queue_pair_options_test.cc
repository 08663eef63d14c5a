// What queue pairs are made with: the traffic class of each end, and where receives of short messages go.
#include <gtest/gtest.h>

#include "transport/support/datagram_ends.h"
#include "transport/support/faulty_devices.h"
#include "verbs/device_opener.h"
#include "verbs/support/fake_sysfs.h"

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

// A bond sends each queue pair over one of its ports.
class BondedPortsTest : public QueuePairOptionsTest {
 protected:
  BondedPortsTest() {
    sysfs_.add_bond("softverbs0", "802.3ad 4", "800000");
    verbs::DiscoverySettings settings = *verbs::read_discovery_settings("");
    settings.address.sysfs_root = sysfs_.root();
    devices_ = take(verbs::discover_devices(settings), "devices");
    nic_ = host_->nic();
    nic_.rails = {devices_.front().get()};
    for (auto& count : hooks_.bonded_ports) count = 0;
    for (auto& count : hooks_.bonded_datagrams) count = 0;
  }

  verbs::FakeSysfs sysfs_;
  std::vector<std::unique_ptr<verbs::Device>> devices_;
  Nic nic_;
};

TEST_F(BondedPortsTest, AConnectionHasAQueuePairOnEachPort) {
  const Nic& nic = nic_;
  const ConnectedPair connection = connect_here(nic, nic, false);
  EXPECT_EQ(hooks_.bonded_ports[0], 2);  // one at each end
  EXPECT_EQ(hooks_.bonded_ports[1], 2);
  apply_settings({{"VERBENA_QPS_PER_CONNECTION", "1"}});
  EXPECT_EQ(count_queue_pairs_per_rail(nic), 1U) << "as the user says";
  apply_settings({{"VERBENA_QPS_PER_CONNECTION", ""}});
  EXPECT_EQ(count_queue_pairs_per_rail(nic), 2U);
}

// An engine has a few queue pairs for all its peers, and divides the packets of a message among them.
TEST_F(BondedPortsTest, DatagramsUseAllPorts) {
  constexpr int kMessages = 8, kPacketsOfEach = kDatagramBytes / 4096, kPairs = datagram::Rail::kPairs;
  const auto engine = take(datagram::Engine::find(nic_, {}, false), "an engine");
  EXPECT_EQ(hooks_.bonded_ports[0], kPairs / 2);
  EXPECT_EQ(hooks_.bonded_ports[1], kPairs / 2);
  DatagramChannel channel = connect_here(engine, engine);
  ASSERT_TRUE(channel.sending && channel.receiving);
  Memory source(nic_, kDatagramBytes), target(nic_, kDatagramBytes);
  for (auto& count : hooks_.bonded_datagrams) count = 0;
  for (int message = 0; message < kMessages; ++message) transfer(channel, source, target);
  for (int port = 0; port < 2; ++port)
    EXPECT_GT(hooks_.bonded_datagrams[port], kMessages * kPacketsOfEach / 4) << port;
}

}  // namespace
}  // namespace verbena::transport
