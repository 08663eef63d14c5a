#include "verbs/port_survey.h"

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class PortSurveyTest : public FakeTest {
 protected:
  Survey survey() {
    auto result = survey_ports(settings_);
    EXPECT_TRUE(result);
    return result ? *result : Survey();
  }
};

TEST_F(PortSurveyTest, ShowsPortsThatAreNotUsed) {
  fake::Device down = make_card("mlx5_1", 2);
  down.ports[1].state = IBV_PORT_DOWN;
  fake::Device bare = make_card("mlx5_2");
  bare.ports[0].gids.clear();
  fake::Device closed = make_card("mlx5_3");
  closed.open_errno = EACCES;
  fake::Device iwarp = make_card("irdma0");
  iwarp.transport = IBV_TRANSPORT_IWARP;
  script().devices = {make_card("mlx5_0"), down, bare, closed, iwarp};
  settings_.hca = "^mlx5_0";
  const Survey found = survey();
  ASSERT_EQ(found.ports.size(), 6U);
  EXPECT_EQ(found.ports[5].fault, PortFault::kIwarp);
  EXPECT_FALSE(found.ports[0].is_selected);
  EXPECT_EQ(found.ports[0].problem, "");
  EXPECT_EQ(found.ports[0].speed_mbps, 200000U);
  EXPECT_EQ(found.ports[0].mtu_bytes, 4096);
  EXPECT_EQ(found.ports[1].state, "active");
  EXPECT_TRUE(found.ports[1].is_selected);
  EXPECT_EQ(found.ports[1].fault, PortFault::kNone);
  EXPECT_EQ(found.ports[2].problem, "the port is down");
  EXPECT_EQ(found.ports[2].fault, PortFault::kNotActive);
  EXPECT_EQ(found.ports[3].fault, PortFault::kNoAddress);
  EXPECT_EQ(found.ports[4].fault, PortFault::kNotOpened);
  EXPECT_THAT(found.ports[3].problem, testing::HasSubstr("GID table is empty"));
  EXPECT_EQ(found.ports[4].port_number, 0);
  EXPECT_THAT(found.ports[4].problem, testing::HasSubstr("cannot be opened"));
}

TEST_F(PortSurveyTest, ChoosesTheGidThatThePluginChooses) {
  fake::Device card = make_card("mlx5_0");
  card.ports[0].gids = {make_link_local_gid(), make_ipv4_gid(1, IBV_GID_TYPE_ROCE_V1), make_ipv4_gid(1)};
  script().devices = {card};
  const Survey found = survey();
  const Devices devices = discover();
  ASSERT_EQ(found.ports.size(), 1U);
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(found.ports[0].address.gid_index, devices[0]->gid_index());
  EXPECT_EQ(found.ports[0].gid_reason.text, "RoCE v2 and IPv4: the best of 3 entries");
  EXPECT_EQ(found.ports[0].gid_reason.code, GidReason::kBest);
}

TEST_F(PortSurveyTest, SaysWhyAGidIsSecondBest) {
  fake::Device card = make_card("mlx5_0");
  card.ports[0].gids = {make_link_local_gid()};
  script().devices = {card};
  EXPECT_EQ(survey().ports.at(0).gid_reason.text, "RoCE v2 and link-local: the only entry");
  EXPECT_EQ(survey().ports.at(0).gid_reason.code, GidReason::kLinkLocal);
  settings_.address.gid_preference.roce_version = 1;
  EXPECT_EQ(survey().ports.at(0).gid_reason.text, "link-local; no entry is RoCE v1: the only entry");
  settings_.address.gid_index = 0;
  EXPECT_EQ(survey().ports.at(0).gid_reason.text, "VERBENA_GID_INDEX selects this GID");
  EXPECT_EQ(survey().ports.at(0).gid_reason.code, GidReason::kSetting);
}

TEST_F(PortSurveyTest, SaysWhenTheFamilyDecided) {
  fake::Device card = make_card("mlx5_0");
  card.ports[0].gids = {make_link_local_gid(), make_ipv4_gid(1)};
  script().devices = {card};
  settings_.address.gid_preference.family = GidFamily::kIpv4;
  EXPECT_EQ(survey().ports.at(0).gid_reason.text,
            "of VERBENA_ADDRESS_FAMILY, RoCE v2 and IPv4: the best of 2 entries");
  settings_.address.gid_preference.family = GidFamily::kIpv6;
  EXPECT_EQ(survey().ports.at(0).gid_reason.text,
            "no entry is of VERBENA_ADDRESS_FAMILY, RoCE v2 and IPv4: the best of 2 entries");
}

TEST_F(PortSurveyTest, InfiniBandNeedsNoGid) {
  fake::Device card = make_card("mlx5_0");
  card.ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  card.ports[0].lid = 17;
  script().devices = {card};
  const Survey found = survey();
  EXPECT_EQ(found.ports.at(0).address.gid_index, kNoGid);
  EXPECT_EQ(found.ports.at(0).address.port.lid, 17);
  EXPECT_THAT(found.ports.at(0).gid_reason.text, testing::HasSubstr("LID"));
}

}  // namespace
}  // namespace verbena::verbs
