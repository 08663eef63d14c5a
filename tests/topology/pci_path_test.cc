#include "topology/pci_path.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace verbena::topology {
namespace {

TEST(PciAddress, IsRead) {
  EXPECT_EQ(parse_pci_address("0000:3b:00.1"), (PciAddress{0, 0x3b, 0, 1}));
  EXPECT_EQ(parse_pci_address("10000:e1:1f.7"), (PciAddress{0x10000, 0xe1, 0x1f, 7}));
}

TEST(PciAddress, IsNotGuessed) {
  for (const char* text :
       {"", "3b:00.1", "0000:3b:00", "0000:3b:00.8", "0000:3b:20.0", "0000:100:00.0", "virtio0",
        "0000:3b:00.1x", "pci0000:3b", "-1:3b:00.1", "0000:3b:00.", "0x0:3b:00.1"}) {
    EXPECT_FALSE(parse_pci_address(text)) << text;
  }
}

TEST(PciAddress, IsFoundAtTheEndOfAPath) {
  EXPECT_EQ(find_pci_address("/sys/devices/pci0000:00/0000:00:03.0"), (PciAddress{0, 0, 3, 0}));
  EXPECT_EQ(find_pci_address("0000:00:03.0"), (PciAddress{0, 0, 3, 0}));
  EXPECT_FALSE(find_pci_address("/sys/devices/0000:00:03.0/virtio0"));
}

TEST(PciPath, EndsWithTheDevice) {
  EXPECT_EQ(trim_to_pci_device("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"),
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
  EXPECT_EQ(trim_to_pci_device("/sys/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0"),
            "/sys/devices/pci0000:00/0000:00:03.0");
}

TEST(PciPath, IsEmptyForVirtualDevices) {
  EXPECT_EQ(trim_to_pci_device("/sys/devices/virtual/infiniband/rxe0"), "");
  EXPECT_EQ(trim_to_pci_device("/sys/devices/"), "");
  EXPECT_EQ(trim_to_pci_device("/proc/0000:00:03.0"), "");
  EXPECT_EQ(find_pci_path("/sys/class/net/lo"), "");
  EXPECT_EQ(find_pci_path("/no/such/path"), "");
  EXPECT_EQ(find_pci_path(""), "");
}

TEST(PciPath, FollowsTheLinksOfThisMachine) {
  std::error_code error;
  const std::filesystem::path folder = "/sys/bus/pci/devices";
  std::filesystem::directory_iterator entries(folder, error);
  if (error || entries == std::filesystem::directory_iterator()) GTEST_SKIP() << "no PCI devices";
  const std::string entry = entries->path();
  const std::string path = find_pci_path(entry);
  EXPECT_TRUE(path.starts_with("/sys/devices/")) << path;
  EXPECT_EQ(find_pci_address(path), find_pci_address(entry));
}

// An artificial bus in a temporary folder.
class CardPathTest : public ::testing::Test {
 protected:
  CardPathTest() {
    char name[] = "/tmp/verbena_pci_XXXXXX";
    root_ = mkdtemp(name);
  }
  ~CardPathTest() override { std::filesystem::remove_all(root_); }

  std::string add(const std::string& address) {
    std::filesystem::create_directories(root_ + "/" + address);
    return root_ + "/" + address;
  }
  static void set_physical(const std::string& function, const std::string& physical) {
    std::filesystem::create_directory_symlink(physical, function + "/physfn");
  }
  std::string root_;
};

TEST_F(CardPathTest, FunctionsOfOneCardAreOne) {
  const std::string first = add("0000:3b:00.0"), second = add("0000:3b:00.1");
  EXPECT_EQ(find_card_path(first), first);
  EXPECT_EQ(find_card_path(second), first);
  const std::string other = add("0000:3c:00.0");
  EXPECT_EQ(find_card_path(other), other);
}

TEST_F(CardPathTest, AVirtualFunctionIsItsCards) {
  const std::string first = add("0000:3b:00.0"), second = add("0000:3b:00.1"),
                    virtual_one = add("0000:3b:01.3");
  set_physical(virtual_one, second);
  EXPECT_EQ(find_card_path(virtual_one), first);
}

// As a virtual machine shows it: the function alone, its card out of sight.
TEST_F(CardPathTest, AFunctionWithoutItsCardStaysItself) {
  const std::string alone = add("0000:07:00.3");
  EXPECT_EQ(find_card_path(alone), alone);
  EXPECT_EQ(find_card_path(""), "");
  EXPECT_EQ(find_card_path("/sys/devices/virtual"), "/sys/devices/virtual");
}

TEST(PciSwitches, AreNamedByTheirPortTowardsTheRoot) {
  const std::string root = "/sys/devices/pci0000:15/0000:15:01.0";
  EXPECT_EQ(list_switches(root + "/0000:16:00.0"), std::vector<std::string>());
  const std::string outer = root + "/0000:16:00.0/0000:17:00.0";
  EXPECT_EQ(list_switches(outer + "/0000:18:00.0"), std::vector<std::string>{"0000:16:00.0"});
  const std::vector<std::string> both{"0000:16:00.0", "0000:18:00.0"};
  EXPECT_EQ(list_switches(outer + "/0000:18:00.0/0000:19:01.0/0000:1a:00.0"), both);
  EXPECT_EQ(list_switches("0000:1a:00.0"), std::vector<std::string>());
  EXPECT_EQ(list_switches(""), std::vector<std::string>());
}

}  // namespace
}  // namespace verbena::topology
