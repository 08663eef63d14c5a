// Addresses that change while a device is open.
#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class AddressChangeTest : public FakeDeviceTest {
 protected:
  fake::Port& port() { return script().devices[0].ports[0]; }
  std::string refresh() { return format_gid(device().refresh_address().port.gid); }
};

TEST_F(AddressChangeTest, FindsAnotherAddressAtTheSameIndex) {
  port().gids[1] = make_ipv4_gid(77);
  EXPECT_EQ(format_gid(device().address().gid), "::ffff:10.0.0.1") << "nobody asked yet";
  EXPECT_EQ(refresh(), "::ffff:10.0.0.77");
  EXPECT_EQ(format_gid(device().address().gid), "::ffff:10.0.0.77");
}

TEST_F(AddressChangeTest, FollowsAnAddressToAnotherIndex) {
  port().gids = {make_link_local_gid(), {}, {}, make_ipv4_gid(1)};
  EXPECT_EQ(device().refresh_address().gid_index, 3);
}

// The old one still stands where it was, so only the event tells.
TEST_F(AddressChangeTest, TakesABetterAddressAfterAnEvent) {
  port().gids = {make_link_local_gid()};
  EXPECT_EQ(device().refresh_address().gid_index, 0);
  port().gids.push_back(make_ipv4_gid(5));
  EXPECT_EQ(device().refresh_address().gid_index, 0);
  hooks_.raise("mlx5_0", IBV_EVENT_GID_CHANGE, 1, nullptr);
  ASSERT_TRUE(log_.wait_for_warning("GID table changed", 5000));
  EXPECT_EQ(device().refresh_address().gid_index, 1);
}

TEST_F(AddressChangeTest, NoticesAnOtherFamilyThatWent) {
  port().gids.push_back(make_global_gid(1));
  hooks_.raise("mlx5_0", IBV_EVENT_GID_CHANGE, 1, nullptr);
  ASSERT_TRUE(log_.wait_for_warning("GID table changed", 5000));
  EXPECT_EQ(device().refresh_address().other_gid_index, 2);
  port().gids.pop_back();
  EXPECT_EQ(device().refresh_address().other_gid_index, -1);
}

TEST_F(AddressChangeTest, ReadsTheMtuAndTheLidAnew) {
  port().mtu = IBV_MTU_1024;
  port().lid = 33;
  const LocalAddress address = device().refresh_address();
  EXPECT_EQ(address.port.mtu, IBV_MTU_1024);
  EXPECT_EQ(address.port.lid, 33);
}

TEST_F(AddressChangeTest, APortThatIsDownIsNotUsedAndComesBack) {
  port().state = IBV_PORT_DOWN;
  EXPECT_EQ(device().refresh_address().port.link_layer, 0);
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("mlx5_0:1"), HasSubstr("port is down"))));
  port().state = IBV_PORT_ACTIVE;
  EXPECT_EQ(device().refresh_address().port.link_layer, kEthernet);
}

TEST_F(AddressChangeTest, APortThatLostItsGidsIsNotUsed) {
  port().gids.clear();
  EXPECT_EQ(device().refresh_address().port.link_layer, 0);
  EXPECT_THAT(log_.warnings(), Contains(HasSubstr("GID table is empty")));
}

TEST_F(AddressChangeTest, APortThatCannotBeQueriedIsNotUsed) {
  script().failing_call = record().fallible_calls + 1;
  EXPECT_EQ(device().refresh_address().port.link_layer, 0);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("cannot be queried (errno 12)")));
}

TEST_F(AddressChangeTest, AnAddressThatChangedMeanwhileIsNotConnectedFrom) {
  const LocalAddress told = device().refresh_address();
  EXPECT_TRUE(device().confirm_address(told));
  port().gids[1] = make_ipv4_gid(77);
  EXPECT_FALSE(device().confirm_address(told));
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("10.0.0.1"), HasSubstr("index 1"))));
}

TEST_F(AddressChangeTest, KeepsToTheRange) {
  settings_.address.gid_preference.range = {};
  ASSERT_TRUE(parse_address_range("10.9.0.0/16", &settings_.address.gid_preference.range));
  EXPECT_FALSE(try_discover());
  EXPECT_THAT(log_.warnings(), Contains(AllOf(HasSubstr("VERBENA_ADDRESS_RANGE"), HasSubstr("fe80::"))));
}

}  // namespace
}  // namespace verbena::verbs
