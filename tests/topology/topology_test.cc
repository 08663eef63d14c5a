#include "topology/topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "tests/base/log_capture.h"
#include "tests/topology/machine_xml.h"
#include "topology/hwloc_api.h"
#include "topology/pci_path.h"

namespace verbena::topology {
namespace {

class TopologyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (find_hwloc() == nullptr) GTEST_SKIP() << "no libhwloc";
    auto loaded = Topology::from_xml(make_machine_xml());
    ASSERT_TRUE(loaded);
    machine_ = *std::move(loaded);
  }
  Topology machine_;
};

TEST_F(TopologyTest, KnowsNumaNodes) {
  EXPECT_EQ(machine_.find_numa_node("0000:03:00.0"), 0);
  EXPECT_EQ(machine_.find_numa_node("0000:11:00.0"), 0);
  EXPECT_EQ(machine_.find_numa_node("0000:21:00.0"), 1);
  EXPECT_EQ(machine_.find_numa_node("/sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0"), 1);
}

TEST_F(TopologyTest, SaysWhenANodeIsUnknown) {
  EXPECT_EQ(machine_.find_numa_node("0000:31:00.0"), kNoNode) << "it belongs to both nodes alike";
  EXPECT_EQ(machine_.find_numa_node("0000:7f:00.0"), kNoNode);
  EXPECT_EQ(machine_.find_numa_node(""), kNoNode);
}

TEST_F(TopologyTest, MeasuresFromNearToFar) {
  const char* const nic = "0000:03:00.0";
  EXPECT_EQ(machine_.measure_distance(nic, nic), Distance::kSameDevice);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:03:00.1"), Distance::kSameDevice);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:04:00.0"), Distance::kSameSwitch);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:08:00.0"), Distance::kSameBridge);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:11:00.0"), Distance::kSameNode);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:21:00.0"), Distance::kOtherNode);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:31:00.0"), Distance::kUnknown);
  EXPECT_EQ(machine_.measure_distance(nic, "0000:7f:00.0"), Distance::kUnknown);
}

TEST_F(TopologyTest, MeasuresTheSameBothWays) {
  const std::vector<const char*> devices = {"0000:03:00.0", "0000:03:00.1", "0000:04:00.0", "0000:08:00.0",
                                            "0000:11:00.0", "0000:21:00.0", "0000:31:00.0"};
  for (const char* from : devices) {
    for (const char* to : devices) {
      EXPECT_EQ(machine_.measure_distance(from, to), machine_.measure_distance(to, from))
          << from << " " << to;
    }
  }
}

TEST_F(TopologyTest, Describes) {
  EXPECT_EQ(machine_.describe_device("/sys/devices/x/0000:21:00.0"), "0000:21:00.0 on NUMA node 1");
  EXPECT_EQ(machine_.describe_device("0000:31:00.0"), "0000:31:00.0 on an unknown NUMA node");
  EXPECT_EQ(machine_.describe_device(""), "no PCI device");
  EXPECT_STREQ(describe(Distance::kSameSwitch), "same PCI switch");
  EXPECT_STREQ(describe(Distance::kUnknown), "unknown distance");
}

TEST_F(TopologyTest, Moves) {
  Topology moved = std::move(machine_);
  EXPECT_EQ(moved.find_numa_node("0000:21:00.0"), 1);
  EXPECT_EQ(machine_.find_numa_node("0000:21:00.0"), kNoNode);  // NOLINT: a moved-from topology knows nothing
}

TEST_F(TopologyTest, RefusesWhatIsNotXml) {
  const base::LogCapture capture;
  EXPECT_FALSE(Topology::from_xml("not a machine"));
  EXPECT_EQ(capture.warnings().size(), 1u);
}

TEST(Topology, KnowsNothingWithoutAMachine) {
  const Topology nothing;
  EXPECT_EQ(nothing.find_numa_node("0000:03:00.0"), kNoNode);
  EXPECT_EQ(nothing.measure_distance("0000:03:00.0", "0000:03:00.0"), Distance::kUnknown);
}

TEST(Topology, OfThisMachineIsLoadedOnceFromAnyThread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] { Topology::system().find_numa_node("0000:00:00.0"); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(&Topology::system(), &Topology::system());
}

// hwloc sees the PCI devices that sysfs shows.
TEST(Topology, OfThisMachineHasItsDevices) {
  const std::filesystem::path folder = "/sys/bus/pci/devices";
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (find_hwloc() == nullptr || error || entries == std::filesystem::directory_iterator()) {
    GTEST_SKIP() << "no libhwloc or no PCI devices";
  }
  bool known = false;
  for (const auto& entry : entries) {
    const std::string path = find_pci_path(entry.path());
    known |= Topology::system().measure_distance(path, path) == Distance::kSameDevice;
  }
  EXPECT_TRUE(known);
}

}  // namespace
}  // namespace verbena::topology
