#include <stdlib.h>

#include <cstring>

#include "base/clock.h"
#include "base/parameters.h"
#include "support/fake_fixture.h"
#include "verbs/ack_timeout.h"

namespace verbena::verbs {
namespace {

constexpr QueuePairAddress kRemotePair{0x1234, 0x00abcdef, {}};

PortAddress make_remote(uint8_t link_layer, uint16_t lid, uint8_t mtu, const fake::Gid& gid) {
  PortAddress remote{};
  std::memcpy(remote.gid, gid.bytes, sizeof(remote.gid));
  remote.lid = lid;
  remote.port_number = 9;  // the peer's own number: must never be used here
  remote.link_layer = link_layer;
  remote.mtu = mtu;
  return remote;
}

const PortAddress kRoceRemote = make_remote(2, 0, IBV_MTU_1024, make_ipv4_gid(2));

class QueuePairConnectTest : public FakeTest {
 protected:
  // Discovers anew with the script as it is now.
  void connect(const PortAddress& remote, int traffic_class = -1, const Operations& operations = {},
               uint32_t own_reads = 1, uint32_t remote_reads = 1) {
    pair_ = {};
    completions_ = {};
    devices_ = discover();
    ASSERT_FALSE(devices_.empty());
    completions_ = std::move(*CompletionQueue::create(*devices_[0], 16));
    pair_ = std::move(*QueuePair::create(*devices_[0], completions_,
                                         {.send_depth = 16,
                                          .operations = operations,
                                          .outstanding_reads = own_reads,
                                          .traffic_class = traffic_class}));
    QueuePairAddress remote_pair = kRemotePair;
    remote_pair.outstanding_reads = remote_reads;
    outcome_ = pair_.connect(remote, remote_pair);
  }
  void use_infiniband(uint8_t flags = 0) {
    fake::Port& port = script().devices[0].ports[0];
    port.link_layer = IBV_LINK_LAYER_INFINIBAND;
    port.lid = 17;
    port.flags = flags;
    port.gids = {make_link_local_gid(IBV_GID_TYPE_IB)};
  }
  const ibv_qp_attr& state(size_t step) { return record().modifications.at(step); }

  Devices devices_;
  CompletionQueue completions_;
  QueuePair pair_;
  base::Outcome outcome_;
};

TEST_F(QueuePairConnectTest, PassesThroughTheStates) {
  script().devices = {make_card("mlx5_0", 2)};
  script().devices[0].ports[0].state = IBV_PORT_DOWN;  // ours is port 2
  connect(kRoceRemote);
  ASSERT_TRUE(outcome_);
  ASSERT_EQ(record().modifications.size(), 3U);
  EXPECT_EQ(state(0).qp_state, IBV_QPS_INIT);
  EXPECT_EQ(state(0).port_num, 2);
  EXPECT_EQ(state(0).qp_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(state(1).qp_state, IBV_QPS_RTR);
  EXPECT_EQ(state(1).dest_qp_num, kRemotePair.number);
  EXPECT_EQ(state(1).rq_psn, kRemotePair.first_psn);
  EXPECT_EQ(state(1).path_mtu, IBV_MTU_1024);
  EXPECT_EQ(state(1).ah_attr.port_num, 2);
  EXPECT_EQ(state(2).qp_state, IBV_QPS_RTS);
  EXPECT_EQ(state(2).sq_psn, pair_.address().first_psn);
  EXPECT_EQ(state(2).timeout, 20);
  EXPECT_EQ(state(2).retry_cnt, 7);
  EXPECT_EQ(state(2).rnr_retry, 7);
}

TEST_F(QueuePairConnectTest, WhereNobodyReadsThePeerMayNot) {
  connect(kRoceRemote, -1, {.read = false});
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(0).qp_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE});
}

TEST_F(QueuePairConnectTest, OnlyWhereItWasAskedForMayThePeerAdd) {
  connect(kRoceRemote, -1, {.fetch_add = true});
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(0).qp_access_flags,
            unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC});
}

TEST_F(QueuePairConnectTest, ReadsNoMoreAtATimeThanThePeerServes) {
  connect(kRoceRemote);
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).max_dest_rd_atomic, 1);
  EXPECT_EQ(state(2).max_rd_atomic, 1);
  EXPECT_EQ(pair_.address().outstanding_reads, 1U);
  record().modifications.clear();
  connect(kRoceRemote, -1, {}, 16, 4);
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).max_dest_rd_atomic, 16);
  EXPECT_EQ(state(2).max_rd_atomic, 4);
  EXPECT_EQ(pair_.address().outstanding_reads, 16U);
  connect(kRoceRemote, -1, {}, 16, 256);
  EXPECT_FALSE(outcome_) << "no device has so many";
}

TEST_F(QueuePairConnectTest, TakesTheSmallerMtuOfBothPorts) {
  script().devices[0].ports[0].mtu = IBV_MTU_512;
  connect(kRoceRemote);
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).path_mtu, IBV_MTU_512);
}

TEST_F(QueuePairConnectTest, RoutesEthernetByGid) {
  connect(kRoceRemote);
  ASSERT_TRUE(outcome_);
  const ibv_ah_attr& route = state(1).ah_attr;
  EXPECT_EQ(route.is_global, 1);
  EXPECT_EQ(route.grh.sgid_index, 1);
  EXPECT_EQ(route.grh.hop_limit, 255);
  EXPECT_EQ(format_gid(route.grh.dgid.raw), "::ffff:10.0.0.2");
}

TEST_F(QueuePairConnectTest, RoutesInfiniBandByLid) {
  use_infiniband();
  connect(make_remote(1, 42, IBV_MTU_4096, make_link_local_gid()));
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.is_global, 0);
  EXPECT_EQ(state(1).ah_attr.dlid, 42);
}

TEST_F(QueuePairConnectTest, CrossesInfiniBandSubnetsByGid) {
  use_infiniband();
  fake::Gid other = make_link_local_gid();
  other.bytes[7] = 1;
  connect(make_remote(1, 42, IBV_MTU_4096, other));
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.is_global, 1);
  EXPECT_EQ(state(1).ah_attr.grh.sgid_index, 0);
}

TEST_F(QueuePairConnectTest, UsesGidsWhereInfiniBandRequiresThem) {
  use_infiniband(IBV_QPF_GRH_REQUIRED);
  connect(make_remote(1, 42, IBV_MTU_4096, make_link_local_gid()));
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.is_global, 1);
}

TEST_F(QueuePairConnectTest, KeepsTrafficClassAndServiceLevelApart) {
  setenv("VERBENA_TC", "106", 1);
  setenv("VERBENA_SL", "3", 1);
  setenv("VERBENA_ACK_TIMEOUT", "14", 1);
  setenv("VERBENA_RETRY_COUNT", "2", 1);
  ASSERT_TRUE(base::load_parameters());
  connect(kRoceRemote);
  for (const char* name : {"VERBENA_TC", "VERBENA_SL", "VERBENA_ACK_TIMEOUT", "VERBENA_RETRY_COUNT"})
    unsetenv(name);
  ASSERT_TRUE(base::load_parameters());
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.grh.traffic_class, 106);
  EXPECT_EQ(state(1).ah_attr.sl, 3);
  EXPECT_EQ(state(2).timeout, 14);
  EXPECT_EQ(state(2).retry_cnt, 2);
}

TEST_F(QueuePairConnectTest, PrefersTheTrafficClassOfTheCommunicator) {
  connect(kRoceRemote, 32);
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.grh.traffic_class, 32);
  EXPECT_EQ(state(1).ah_attr.sl, 0);
}

TEST_F(QueuePairConnectTest, RefusesAnotherLinkLayer) {
  connect(make_remote(1, 42, IBV_MTU_4096, make_link_local_gid()));
  EXPECT_EQ(outcome_.status(), base::Status::kRemote);
  EXPECT_TRUE(record().modifications.empty());
  EXPECT_THAT(log_.warnings(),
              ElementsAre(AllOf(HasSubstr("ours Ethernet"), HasSubstr("peer's InfiniBand"))));
}

TEST_F(QueuePairConnectTest, RefusesAnAddressThatIsNotOne) {
  PortAddress remote = kRoceRemote;
  remote.mtu = 6;
  connect(remote);
  EXPECT_EQ(outcome_.status(), base::Status::kRemote);
  EXPECT_EQ(pair_.connect(kRoceRemote, {0x1000000, 0, {}}).status(), base::Status::kRemote);
  EXPECT_EQ(pair_.connect(kRoceRemote, {0, 0, {}}).status(), base::Status::kRemote);
  remote = make_remote(2, 0, IBV_MTU_1024, {});
  EXPECT_EQ(pair_.connect(remote, kRemotePair).status(), base::Status::kRemote);
  EXPECT_TRUE(record().modifications.empty());
}

TEST_F(QueuePairConnectTest, RefusesWhatNoPathCanJoin) {
  const auto expect_named = [&](const PortAddress& remote, const char* ours, const char* theirs) {
    const base::LogCapture log;
    connect(remote);
    EXPECT_EQ(outcome_.status(), base::Status::kRemote);
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr(ours), HasSubstr(theirs))));
  };
  PortAddress remote = kRoceRemote;
  remote.roce_version = 1;
  expect_named(remote, "ours v2", "peer's v1");
  remote = kRoceRemote;
  remote.partition_key = 0x8001;
  expect_named(remote, "ours 0xffff", "peer's 0x8001");
  remote = make_remote(2, 0, IBV_MTU_1024, make_global_gid(2));
  expect_named(remote, "ours ::ffff:10.0.0.1", "peer's 2001:db8::2");
}

TEST_F(QueuePairConnectTest, IsInThePartitionThatWasAskedFor) {
  script().devices[0].ports[0].further_partition_keys = {0x0000, 0x0102, 0x8102, 0x9234};
  const struct {
    uint16_t wanted, found;
    int index;
  } cases[] = {
      {0, 0xffff, 0}, {0x8102, 0x8102, 3}, {0x0102, 0x0102, 2}, {0x1234, 0x9234, 4}, {0x7fff, 0xffff, 0}};
  for (const auto& [wanted, found, index] : cases) {
    settings_.address.partition_key = wanted;
    const auto devices = discover();
    EXPECT_EQ(devices.at(0)->address().partition_key, found);
    auto completions = CompletionQueue::create(*devices.at(0), 16);
    auto pair = QueuePair::create(*devices.at(0), *completions, {.send_depth = 16});
    record().modifications.clear();
    PortAddress remote = kRoceRemote;
    remote.partition_key = static_cast<uint16_t>(found | 0x8000);  // two limited members would not do
    ASSERT_TRUE(pair->connect(remote, kRemotePair)) << wanted;
    EXPECT_EQ(state(0).pkey_index, index) << wanted;
  }
  settings_.address.partition_key = 0x8103;
  const base::LogCapture log;
  EXPECT_FALSE(try_discover());
  EXPECT_THAT(log.warnings(), Contains(HasSubstr("partition key table (5 entries) does not contain 0x8103")));
}

TEST_F(QueuePairConnectTest, UsesTheAddressFamilyThatBothEndsHave) {
  script().devices[0].ports[0].gids = {make_ipv4_gid(1), make_global_gid(1)};
  connect(make_remote(2, 0, IBV_MTU_1024, make_global_gid(2)));
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.grh.sgid_index, 1);
  EXPECT_EQ(format_gid(state(1).ah_attr.grh.dgid.raw), "2001:db8::2");
  PortAddress remote = make_remote(2, 0, IBV_MTU_1024, make_global_gid(2));
  std::memcpy(remote.other_gid, make_ipv4_gid(7).bytes, sizeof(remote.other_gid));
  record().modifications.clear();
  connect(remote);
  ASSERT_TRUE(outcome_);
  EXPECT_EQ(state(1).ah_attr.grh.sgid_index, 0);
  EXPECT_EQ(format_gid(state(1).ah_attr.grh.dgid.raw), "::ffff:10.0.0.7");
}

TEST_F(QueuePairConnectTest, RefusesATrafficClassThatIsNone) {
  devices_ = discover();
  completions_ = std::move(*CompletionQueue::create(*devices_[0], 16));
  const auto pair = QueuePair::create(*devices_[0], completions_, {.send_depth = 16, .traffic_class = 256});
  ASSERT_FALSE(pair);
  EXPECT_EQ(pair.error().status, base::Status::kInvalidArgument);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("traffic class 256 is out of range")));
}

class EceTest : public QueuePairConnectTest {
 protected:
  EceTest() {
    script().ece_vendor = 0x15b3;
    script().ece_options = 0b0110;
    remote_.ece = {0x15b3, 0b1100, 0};
  }
  void connect_to_remote() {
    devices_ = discover();
    completions_ = std::move(*CompletionQueue::create(*devices_[0], 16));
    pair_ = std::move(*QueuePair::create(*devices_[0], completions_, {.send_depth = 16}));
    offer_ = pair_.address().ece;
    ASSERT_TRUE(pair_.connect(kRoceRemote, remote_));
  }

  QueuePairAddress remote_ = kRemotePair;
  EceOptions offer_{};
};

TEST_F(EceTest, OffersWhatItHasAndAnswersWhatIsLeft) {
  connect_to_remote();
  EXPECT_EQ(offer_.vendor_id, 0x15b3U);
  EXPECT_EQ(offer_.options, 0b0110U);
  ASSERT_EQ(record().ece_requests.size(), 1U);
  EXPECT_EQ(record().ece_requests[0].options, 0b1100U);
  EXPECT_EQ(pair_.address().ece.options, 0b0100U);
}

TEST_F(EceTest, AsksForNothingIfOneEndHasNone) {
  remote_.ece = {};
  connect_to_remote();
  EXPECT_TRUE(record().ece_requests.empty());
  pair_ = {};
  completions_ = {};
  remote_.ece = {0x15b3, 1, 0};
  script().ece_vendor = 0;
  connect_to_remote();
  EXPECT_EQ(offer_.vendor_id, 0U);
  EXPECT_TRUE(record().ece_requests.empty());
}

TEST_F(EceTest, GoesOnAfterARefusal) {
  script().set_ece_errno = EINVAL;
  connect_to_remote();
  EXPECT_THAT(log_.warnings(), testing::IsEmpty());
}

TEST_F(EceTest, CanBeTurnedOff) {
  setenv("NCCL_IB_ECE_ENABLE", "0", 1);
  ASSERT_TRUE(base::load_parameters());
  connect_to_remote();
  unsetenv("NCCL_IB_ECE_ENABLE");
  ASSERT_TRUE(base::load_parameters());
  EXPECT_EQ(offer_.vendor_id, 0U);
  EXPECT_TRUE(record().ece_requests.empty());
}

// All rails of a connection are silent while a subnet manager or a switch begins anew.
TEST_F(QueuePairConnectTest, ByDefaultAConnectionOutlastsTheTriesOfNcclsOwnTransport) {
  constexpr int64_t kTimeoutOfNccl = 20;
  const base::Parameters defaults;
  EXPECT_GT(defaults.failover_timeout_ms * base::kNsPerMs, compute_tries_ns(kTimeoutOfNccl));
}

TEST_F(QueuePairConnectTest, NamesBothEndsWhenThePeerIsOutOfReach) {
  script().failing_modify_errno = ETIMEDOUT;
  connect(kRoceRemote);
  EXPECT_EQ(outcome_.status(), base::Status::kRemote);
  EXPECT_EQ(outcome_.error().errno_value, ETIMEDOUT);
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("::ffff:10.0.0.1"), HasSubstr("::ffff:10.0.0.2"),
                                                 HasSubstr("does not answer"), HasSubstr("4660"))));
}

}  // namespace
}  // namespace verbena::verbs
