#include "base/parameters.h"
#include "support/fake_fixture.h"
#include "support/fake_sysfs.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

std::vector<std::string> list_names(const Devices& devices) {
  std::vector<std::string> names;
  for (const auto& device : devices)
    names.push_back(device->name() + ":" + std::to_string(device->port_number()));
  return names;
}

class DiscoveryTest : public FakeTest {};

TEST_F(DiscoveryTest, ReadsSpeedsThatDoNotFitTheOldField) {
  fake::Port& port = script().devices[0].ports[0];
  port.speed = 0;
  port.extended_speed = 256;  // XDR
  EXPECT_EQ(discover()[0]->speed_mbps(), 800'000U);
  port.speed = 128;  // as kernels do that tell NDR where they have no other word
  EXPECT_EQ(discover()[0]->speed_mbps(), 800'000U);
  port.extended_speed = 0;
  EXPECT_EQ(discover()[0]->speed_mbps(), 400'000U);
}

// 4 x HDR by the codes of its link.
TEST_F(DiscoveryTest, BelievesTheSpeedThatTheDeviceSums) {
  script().devices[0].ports[0].effective_speed = 4000;
  EXPECT_EQ(discover()[0]->speed_mbps(), 400'000U);
  script().devices[0].ports[0].effective_speed = 0;  // EPROTONOSUPPORT
  EXPECT_EQ(discover()[0]->speed_mbps(), 200'000U);
}

struct BondedPorts {
  const char* name;
  const char* mode = "802.3ad 4";
  const char* speed = "400000";
  bool is_down = false;     // the second port
  bool is_another = false;  // the second port has an RDMA device of its own
  uint32_t ports = 2, speed_mbps = 400'000;
};
std::ostream& operator<<(std::ostream& out, const BondedPorts& bond) {
  return out << bond.name;
}

class BondTest : public FakeTest, public testing::WithParamInterface<BondedPorts> {};

TEST_P(BondTest, IsADeviceOfSeveralPorts) {
  const BondedPorts& bond = GetParam();
  FakeSysfs sysfs;
  settings_.address.sysfs_root = sysfs.root();
  sysfs.add_bond("mlx5_0", bond.mode, bond.speed);
  if (bond.is_down) sysfs.add_file("/class/net/port1/bonding_slave/mii_status", "down\n");
  if (bond.is_another) sysfs.add_file("/class/net/port1/device/infiniband/mlx5_1/node_type", "1: CA");
  const Devices devices = discover();
  EXPECT_EQ(devices[0]->bonded_ports(), bond.ports);
  EXPECT_EQ(devices[0]->speed_mbps(), bond.speed_mbps);
}

INSTANTIATE_TEST_SUITE_P(
    Bonds, BondTest,
    testing::Values(BondedPorts{"hash"}, BondedPorts{"xor", "balance-xor 2"},
                    BondedPorts{
                        .name = "backup", .mode = "active-backup 1", .ports = 1, .speed_mbps = 200'000},
                    BondedPorts{.name = "down", .is_down = true, .ports = 1, .speed_mbps = 200'000},
                    BondedPorts{.name = "apart", .is_another = true, .ports = 1, .speed_mbps = 200'000},
                    BondedPorts{.name = "speed_of_one", .speed = "-1", .speed_mbps = 200'000}),
    testing::PrintToStringParamName());

TEST_F(DiscoveryTest, PlacesPortsAsTheFilterSays) {
  settings_.hca = script().devices[0].name + ":1:3:2";
  EXPECT_EQ(discover()[0]->place(), (PortPlace{3, 2}));
  settings_.hca = "";
  EXPECT_EQ(discover()[0]->place(), PortPlace());
}

TEST_F(DiscoveryTest, TellsWhatAPortCanDo) {
  FakeSysfs sysfs;
  sysfs.add_device("mlx5_0", "pci0000:17/0000:18:00.0");
  settings_.address.sysfs_root = sysfs.root();
  script().devices[0].guid = 0x0011223344556677;
  const Devices devices = discover();
  ASSERT_EQ(devices.size(), 1U);
  const Device& device = *devices[0];
  EXPECT_EQ(device.name(), "mlx5_0");
  EXPECT_EQ(device.guid(), 0x0011223344556677U);
  EXPECT_EQ(device.speed_mbps(), 200'000U);
  EXPECT_EQ(device.sysfs_path(), sysfs.root() + "/devices/pci0000:17/0000:18:00.0");
  EXPECT_EQ(device.gid_index(), 1);
  EXPECT_EQ(device.address().link_layer, 2);
  EXPECT_EQ(device.address().mtu, IBV_MTU_4096);
  EXPECT_EQ(format_gid(device.address().gid), "::ffff:10.0.0.1");
  EXPECT_EQ(device.max_qp_entries(), 1024U);
  EXPECT_EQ(device.max_cq_entries(), 4096U);
  EXPECT_EQ(device.max_srq_entries(), 2048U);
  EXPECT_FALSE(device.is_software());
  EXPECT_FALSE(device.is_softverbs());
  EXPECT_TRUE(device.is_healthy());
}

TEST_F(DiscoveryTest, OpensEachActivePortOfACard) {
  script().devices = {make_card("mlx5_0", 3)};
  script().devices[0].ports[1].state = IBV_PORT_DOWN;
  const Devices devices = discover();
  EXPECT_THAT(list_names(devices), ElementsAre("mlx5_0:1", "mlx5_0:3"));
  EXPECT_NE(devices[0]->context(), devices[1]->context());
  EXPECT_EQ(devices[1]->address().port_number, 3);
}

TEST_F(DiscoveryTest, OrdersByPlaceOnTheBusThenName) {
  FakeSysfs sysfs;
  sysfs.add_device("mlx5_0", "pci0000:80/0000:81:00.0");
  sysfs.add_device("mlx5_1", "pci0000:17/0000:18:00.0");
  sysfs.add_device("mlx5_2", "pci0000:17/0000:18:00.0");
  settings_.address.sysfs_root = sysfs.root();
  script().devices = {make_card("mlx5_0"), make_card("mlx5_2"), make_card("mlx5_1", 2)};
  EXPECT_THAT(list_names(discover()), ElementsAre("mlx5_1:1", "mlx5_1:2", "mlx5_2:1", "mlx5_0:1"));
}

TEST_F(DiscoveryTest, FollowsTheFilter) {
  script().devices = {make_card("mlx5_0"), make_card("mlx5_1", 2), make_card("rxe0")};
  settings_.hca = "mlx5_1:2,rxe";
  EXPECT_THAT(list_names(discover()), ElementsAre("mlx5_1:2", "rxe0:1"));
  settings_.hca = "^=mlx5_1";
  EXPECT_THAT(list_names(discover()), ElementsAre("mlx5_0:1", "rxe0:1"));
}

TEST_F(DiscoveryTest, ListsWhatThereIsWhenTheFilterMatchesNothing) {
  script().devices = {make_card("mlx5_0", 2), make_card("rxe0")};
  script().devices[0].ports[1].state = IBV_PORT_DOWN;
  settings_.hca = "mlx5_0:2";
  const auto found = try_discover();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().status, base::Status::kInvalidUsage);
  EXPECT_THAT(log_.warnings(),
              ElementsAre(AllOf(HasSubstr("VERBENA_HCA mlx5_0:2"), HasSubstr("mlx5_0:1 (active"),
                                HasSubstr("mlx5_0:2 (down"), HasSubstr("rxe0"))));
}

TEST_F(DiscoveryTest, NamesEntriesThatNameNoDevice) {
  script().devices = {make_card("mlx5_0"), make_card("mlx5_1"), make_card("mlx5_2")};
  struct Case {
    const char* hca;
    size_t count_devices;
    std::vector<std::string> strangers;
  };
  const Case cases[] = {
      {"mlx5_0, mlx5_1", 1, {"' mlx5_1'"}},  {"^=mlx5_0,^=mlx5_1", 2, {"'^=mlx5_1'"}},
      {"=mlx5_0,=mlx5_1", 1, {"'=mlx5_1'"}}, {"mlx5_0,mlx5_3:1,ib", 1, {"'mlx5_3'", "'ib'"}},
      {"^mlx5_1,mlx4", 2, {"'mlx4'"}},       {"mlx5", 3, {}},
      {"=mlx5_0:1,mlx5_1,,mlx5_0", 2, {}},   {"^=mlx5_2", 2, {}}};
  for (const Case& given : cases) {
    settings_.hca = given.hca;
    base::LogCapture log;
    EXPECT_EQ(discover().size(), given.count_devices) << given.hca;
    const std::vector<std::string> warnings = log.warnings();
    ASSERT_EQ(warnings.size(), given.strangers.size()) << given.hca;
    for (size_t i = 0; i < warnings.size(); ++i)
      EXPECT_THAT(warnings[i], AllOf(HasSubstr(given.strangers[i]), HasSubstr("mlx5_0, mlx5_1, mlx5_2")));
  }
}

TEST_F(DiscoveryTest, RejectsABadFilter) {
  settings_.hca = "mlx5_0:x";
  const auto found = try_discover();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().status, base::Status::kInvalidUsage);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("mlx5_0:x")));
  EXPECT_EQ(record().fallible_calls, 0);
}

TEST_F(DiscoveryTest, AddressesInfiniBandByLid) {
  fake::Port& port = script().devices[0].ports[0];
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = 17;
  port.gids = {make_link_local_gid(IBV_GID_TYPE_IB)};
  const Devices devices = discover();
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0]->address().lid, 17);
  EXPECT_EQ(devices[0]->address().link_layer, 1);
  EXPECT_EQ(devices[0]->gid_index(), -1);
  EXPECT_EQ(format_gid(devices[0]->address().gid), "fe80::102:304:506:708");
}

TEST_F(DiscoveryTest, UsesAGidOnInfiniBandThatRequiresGlobalRoutes) {
  fake::Port& port = script().devices[0].ports[0];
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = 17;
  port.flags = IBV_QPF_GRH_REQUIRED;
  EXPECT_EQ(discover().at(0)->gid_index(), 0);
}

TEST_F(DiscoveryTest, PrefersTheGidOfTheUser) {
  settings_.address.gid_index = 0;
  const Devices devices = discover();
  EXPECT_EQ(devices.at(0)->gid_index(), 0);
  EXPECT_EQ(format_gid(devices.at(0)->address().gid), "fe80::102:304:506:708");
}

fake::Gid make_loopback_gid() {
  fake::Gid gid = make_ipv4_gid(1);
  gid.bytes[12] = 127, gid.bytes[13] = gid.bytes[14] = 0;
  return gid;
}

TEST_F(DiscoveryTest, UsesAnAddressThatAnInterfaceHasInADeviceThatContainersShare) {
  script().devices[0].ports[0].gids = {make_link_local_gid(), make_ipv4_gid(201), make_loopback_gid(),
                                       make_ipv4_gid(202)};
  EXPECT_EQ(discover().at(0)->gid_index(), 2);
  EXPECT_THAT(log_.warnings(), testing::IsEmpty());
}

TEST_F(DiscoveryTest, LeavesOutADeviceThatSpeaksIwarp) {
  script().devices = {make_card("irdma0"), make_card("mlx5_0")};
  script().devices[0].transport = IBV_TRANSPORT_IWARP;
  EXPECT_THAT(list_names(discover()), ElementsAre("mlx5_0:1"));
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("irdma0"), HasSubstr("iWARP"))));
}

TEST_F(DiscoveryTest, LeavesOutAPortWhoseChosenGidIsEmpty) {
  settings_.address.gid_index = 5;
  EXPECT_FALSE(try_discover());
  EXPECT_THAT(log_.warnings(), Contains(AllOf(HasSubstr("VERBENA_GID_INDEX"), HasSubstr("index 5"))));
}

TEST_F(DiscoveryTest, LeavesOutAPortWithoutGids) {
  script().devices = {make_card("mlx5_0"), make_card("mlx5_1")};
  script().devices[0].ports[0].gids.clear();
  EXPECT_THAT(list_names(discover()), ElementsAre("mlx5_1:1"));
  EXPECT_THAT(log_.warnings(),
              ElementsAre(AllOf(HasSubstr("mlx5_0:1"), HasSubstr("GID table is empty (0 entries)"))));
}

TEST_F(DiscoveryTest, TakesTheTypeOfAGidFromSysfsWhereTheLibraryIsOld) {
  FakeSysfs sysfs;
  const std::string types = "/class/infiniband/mthca0/ports/1/gid_attrs/types/";
  sysfs.add_file(types + "0", "IB/RoCE v1\n");
  sysfs.add_file(types + "1", "RoCE v2\n");
  settings_.address.sysfs_root = sysfs.root();
  settings_.library_choice = FAKE_OLD_LIBRARY;
  fake::Hooks& old_hooks = fake_hooks(FAKE_OLD_LIBRARY);
  old_hooks.script.devices = {make_card("mthca0")};
  old_hooks.script.devices[0].ports[0].gids = {make_ipv4_gid(1), make_ipv4_gid(1)};
  EXPECT_EQ(discover().at(0)->gid_index(), 1);
  EXPECT_EQ(old_hooks.record.live_objects, 0);
  old_hooks.script = {};
}

TEST_F(DiscoveryTest, FindsDmabufByTrying) {
  EXPECT_TRUE(discover().at(0)->supports_dmabuf());
  for (const int refusal : {EOPNOTSUPP, EPROTONOSUPPORT}) {
    script().dmabuf_errno = refusal;
    EXPECT_FALSE(discover().at(0)->supports_dmabuf()) << refusal;
  }
}

TEST_F(DiscoveryTest, FindsPeerMemoryByItsModule) {
  FakeSysfs sysfs;
  sysfs.add_device("mlx5_0", "pci0000:17/0000:18:00.0");
  settings_.address.sysfs_root = sysfs.root();
  EXPECT_FALSE(discover().at(0)->supports_gpu_pointers());
  sysfs.add_file("/module/nvidia_peermem/version", "1\n");
  EXPECT_TRUE(discover().at(0)->supports_gpu_pointers());
  script().devices = {make_card("rxe0")};  // copies with the CPU, whatever modules there are
  EXPECT_FALSE(discover().at(0)->supports_gpu_pointers());
}

TEST_F(DiscoveryTest, SaysOnceThatSoftverbsReachesNoGpu) {
  script().devices = {make_card("softverbs0"), make_card("softverbs1")};
  for (fake::Device& device : script().devices) device.vendor_id = 0x5356;
  script().no_gpu = "nobody can map it";
  const base::LogCapture log;
  const Devices devices = discover();
  EXPECT_FALSE(devices.at(0)->supports_gpu_pointers());
  EXPECT_FALSE(devices.at(1)->supports_gpu_pointers());
  EXPECT_THAT(log.warnings(),
              testing::ElementsAre(testing::HasSubstr("host memory only, so NCCL copies GPU data through "
                                                      "the host: nobody can map it")));
}

TEST_F(DiscoveryTest, RecognisesSoftwareDevices) {
  script().devices = {make_card("softverbs0")};
  script().devices[0].vendor_id = 0x5356;
  Devices devices = discover();
  EXPECT_TRUE(devices.at(0)->is_softverbs());
  EXPECT_TRUE(devices.at(0)->is_software());
  EXPECT_TRUE(devices.at(0)->supports_gpu_pointers());
  EXPECT_EQ(devices.at(0)->explain_wait(), "");
  script().wait = "a copy waits";
  EXPECT_EQ(devices.at(0)->explain_wait(), "a copy waits");
  script().devices = {make_card("rxe0")};
  script().devices[0].vendor_id = 0xffffff;
  devices = discover();
  EXPECT_FALSE(devices.at(0)->is_softverbs());
  EXPECT_TRUE(devices.at(0)->is_software());
}

// In a container without /sys a NIC has no PCI path.
TEST_F(DiscoveryTest, ANicWithoutAPciPathIsNoSoftwareDevice) {
  script().devices = {make_card("mlx5_0")};
  const Devices devices = discover();
  EXPECT_EQ(devices.at(0)->sysfs_path(), "");
  EXPECT_FALSE(devices.at(0)->is_software());
  EXPECT_FALSE(devices.at(0)->keeps_write_order());
}

TEST_F(DiscoveryTest, ReadsTheParameters) {
  script().devices = {make_card("mlx5_0"), make_card("mlx5_1")};
  setenv("VERBENA_IBVERBS_LIB", FAKE_LIBRARY, 1);
  setenv("NCCL_IB_HCA", "=mlx5_1", 1);
  setenv("VERBENA_GID_INDEX", "0", 1);
  ASSERT_TRUE(base::load_parameters());
  {
    const auto found = discover_devices();
    ASSERT_TRUE(found);
    EXPECT_THAT(list_names(*found), ElementsAre("mlx5_1:1"));
    EXPECT_EQ(found->at(0)->gid_index(), 0);
  }
  for (const char* name : {"VERBENA_IBVERBS_LIB", "NCCL_IB_HCA", "VERBENA_GID_INDEX"}) unsetenv(name);
  ASSERT_TRUE(base::load_parameters());
}

}  // namespace
}  // namespace verbena::verbs
