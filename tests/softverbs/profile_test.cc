// Profiles: what a device that is imitated does otherwise than softverbs itself.
#include <cstdlib>
#include <cstring>

#include "fixture.h"
#include "softverbs/shared/profile.h"

namespace verbena::softverbs_test {
namespace {

using softverbs::parse_profile;

// The last word of each message is its flag, or says who orders it.
enum class Last { kWrite, kImmediate, kAdd, kCompletedWrite };

constexpr size_t kDataBytes = 65536, kFlagOffset = kDataBytes, kBytes = kDataBytes + 64;
constexpr uint64_t kRounds = 300, kMaxRounds = 30000;

class ShuffleTest : public testing::Test {
 protected:
  // How many flags were seen before the data in front of them: in kRounds, or `until` it is one.
  int count_overtaken(const char* profile, Last last, bool until = false) {
    setenv("SOFTVERBS_PROFILE", profile, 1);
    Node node;
    Buffer source(node, kBytes), target(node, kBytes);
    QueuePair sender(node), receiver(node);
    meet(sender, receiver);
    int overtaken = 0;
    for (uint64_t round = 1; until ? overtaken == 0 && round <= kMaxRounds : round <= kRounds; ++round) {
      memset(source.data(), static_cast<uint8_t>(round), kDataBytes);
      memcpy(source.data() + kFlagOffset, &round, sizeof(round));
      if (last == Last::kImmediate) {
        EXPECT_EQ(receiver.post_receive(round, target, 0, 0), 0);
      }
      Send data(IBV_WR_RDMA_WRITE, round);
      EXPECT_EQ(data.from(source, 0, kDataBytes).to(target.remote()).post(sender), 0);
      int completions = 2;
      if (last == Last::kCompletedWrite) {
        EXPECT_EQ(node.wait_completion().wr_id, round);
        completions = 1;
      }
      post_flag(sender, source, target, last);
      const bool is_seen = await(node, target, last, round, completions);
      if (!is_seen) return -1;
      // The last word of each packet, before anybody asks for the completions.
      bool is_whole = true;
      for (size_t at = 0; at < kDataBytes; at += 1024)
        is_whole = is_whole && __atomic_load_n(target.data() + at + 1023, __ATOMIC_ACQUIRE) ==
                                   static_cast<uint8_t>(round);
      overtaken += is_whole ? 0 : 1;
      for (const ibv_wc& wc : node.wait_completions(completions)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(memcmp(source.data(), target.data(), kDataBytes), 0) << "a completion came first";
      if (testing::Test::HasFailure()) return -1;
    }
    return overtaken;
  }

 private:
  static void post_flag(QueuePair& sender, Buffer& source, Buffer& target, Last last) {
    const ibv_wr_opcode opcode = last == Last::kImmediate ? IBV_WR_RDMA_WRITE_WITH_IMM
                                 : last == Last::kAdd     ? IBV_WR_ATOMIC_FETCH_AND_ADD
                                                          : IBV_WR_RDMA_WRITE;
    Send flag(opcode, 1000);
    flag.from(source, kFlagOffset, 8).to(target.remote(kFlagOffset));
    if (last == Last::kAdd) {
      flag.request.wr.atomic.remote_addr = target.address() + kFlagOffset;
      flag.request.wr.atomic.rkey = target.mr()->rkey;
      flag.request.wr.atomic.compare_add = 1;
    }
    EXPECT_EQ(flag.post(sender), 0);
  }
  // By what the receiver looks at; an immediate's completion is taken here.
  static bool await(Node& node, Buffer& target, Last last, uint64_t round, int& completions) {
    if (last == Last::kImmediate) {
      for (;; --completions)
        if (node.wait_completion().opcode == IBV_WC_RECV_RDMA_WITH_IMM) return true;
    }
    for (int tries = 0; tries < 100'000'000; ++tries)
      if (__atomic_load_n(reinterpret_cast<uint64_t*>(target.data() + kFlagOffset), __ATOMIC_ACQUIRE) >=
          round)
        return true;
    return false;
  }
};

TEST_F(ShuffleTest, AWriteOvertakesTheWriteBeforeIt) {
  EXPECT_EQ(count_overtaken("mlx5-ar", Last::kWrite, true), 1);
}

TEST_F(ShuffleTest, WithoutAProfileNothingIsOvertaken) {
  EXPECT_EQ(count_overtaken("", Last::kWrite), 0);
}

TEST_F(ShuffleTest, WhatHasCompletedIsNotOvertaken) {
  EXPECT_EQ(count_overtaken("mlx5-ar", Last::kCompletedWrite), 0);
}

TEST_F(ShuffleTest, AnImmediateComesAfterAllBeforeIt) {
  EXPECT_EQ(count_overtaken("mlx5-ar", Last::kImmediate), 0);
}

TEST_F(ShuffleTest, AnAtomicComesAfterAllBeforeIt) {
  EXPECT_EQ(count_overtaken("mlx5-ar", Last::kAdd), 0);
}

// What has not been placed when the queue pair fails is flushed, in order.
TEST_F(ShuffleTest, AFailureFlushesWhatIsLeft) {
  setenv("SOFTVERBS_PROFILE", "mlx5-ar", 1);
  Node node;
  Buffer source(node, kBytes), target(node, kBytes);
  QueuePair sender(node), receiver(node);
  meet(sender, receiver);
  constexpr uint64_t kWrites = 20;
  for (uint64_t i = 0; i < kWrites; ++i) {
    Send write(IBV_WR_RDMA_WRITE, i);
    const uint32_t rkey = target.mr()->rkey + (i == kWrites / 2 ? 1 : 0);
    ASSERT_EQ(write.from(source, 0, kDataBytes).to(target.address(), rkey).post(sender), 0);
  }
  const std::vector<ibv_wc> completions = node.wait_completions(kWrites);
  for (uint64_t i = 0; i < completions.size(); ++i) {
    EXPECT_EQ(completions[i].wr_id, i);
    EXPECT_EQ(completions[i].status, i < kWrites / 2    ? IBV_WC_SUCCESS
                                     : i == kWrites / 2 ? IBV_WC_REM_ACCESS_ERR
                                                        : IBV_WC_WR_FLUSH_ERR);
  }
}

TEST(ProfileTest, WordsAreKeysAndNames) {
  const auto parsed = parse_profile("mlx5-ar seed=7 # a comment\n order=posted");
  EXPECT_EQ(parsed.problem, "");
  EXPECT_EQ(parsed.profile.seed, 7u);
  EXPECT_EQ(parsed.profile.vendor, 0x15b3u);
  EXPECT_FALSE(parsed.profile.shuffles_writes);
}

TEST(ProfileTest, WrongWordsAreNamed) {
  EXPECT_EQ(parse_profile("mlx4").problem, "'mlx4' is neither a profile nor KEY=VALUE");
  EXPECT_EQ(parse_profile("order=random").problem, "'order=random' is not valid");
  EXPECT_EQ(parse_profile("mlx5 seed=-1").problem, "'seed=-1' is not valid");
}

// Every profile of the table is understood, and refuses what it says.
TEST(ProfileTest, TheTableIsRight) {
  for (const char* name : {"mlx5", "mlx5-ar", "cx8", "bnxt", "irdma", "ionic", "minimal"})
    EXPECT_EQ(parse_profile(name).problem, "") << name;
  EXPECT_TRUE(parse_profile("cx8").profile.shuffles_writes);
  EXPECT_EQ(parse_profile("irdma").profile.max_inline_bytes, 101u);
  EXPECT_EQ(parse_profile("mtu=1000").problem, "'mtu=1000' is not valid");
}

TEST(ProfileTest, WhatIsBeyondTheProfileIsRefused) {
  setenv("SOFTVERBS_PROFILE", "atomics=0 inline=64 sges=2 entries=128 srq=64 empty_receive=none mtu=1024", 1);
  Node node;
  ibv_device_attr attributes{};
  ASSERT_EQ(ibv_query_device(node.context, &attributes), 0);
  EXPECT_EQ(attributes.atomic_cap, IBV_ATOMIC_NONE);
  EXPECT_EQ(attributes.max_sge, 2);
  EXPECT_EQ(attributes.max_qp_wr, 128);
  EXPECT_EQ(attributes.max_srq_wr, 64);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(node.context, 1, &port), 0);
  EXPECT_EQ(port.active_mtu, IBV_MTU_1024);

  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = node.cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {
      .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 65};
  EXPECT_EQ(ibv_create_qp(node.pd, &init), nullptr);
  ibv_srq_init_attr shared{};
  shared.attr = {.max_wr = 65, .max_sge = 1, .srq_limit = 0};
  EXPECT_EQ(ibv_create_srq(node.pd, &shared), nullptr);

  QueuePair sender(node, {.sges = 2, .inline_bytes = 64}), receiver(node, {.sges = 2, .inline_bytes = 64});
  meet(sender, receiver);
  ibv_recv_wr empty{}, *bad = nullptr;
  EXPECT_EQ(ibv_post_recv(receiver.qp, &empty, &bad), EINVAL);
  Buffer memory(node, 64);
  EXPECT_EQ(Send(IBV_WR_ATOMIC_FETCH_AND_ADD, 1).from(memory, 0, 8).post(sender), EINVAL);
}

TEST(ProfileTest, WritesThatADeviceDoesNotDo) {
  setenv("SOFTVERBS_PROFILE", "max_msg=8192 zero_write=0 inline_write=broken", 1);
  Node node;
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(node.context, 1, &port), 0);
  EXPECT_EQ(port.max_msg_sz, 8192u);
  QueuePair sender(node), receiver(node);
  meet(sender, receiver);
  Buffer source(node, 16384), target(node, 16384);
  memset(source.data(), 7, 16384);
  memset(target.data(), 0, 16384);
  const auto write = [&](uint32_t bytes, unsigned flags) {
    Send request(IBV_WR_RDMA_WRITE, 1);
    request.from(source, 0, bytes).to(target.remote());
    request.request.send_flags |= flags;
    if (bytes == 0) request.request.num_sge = 0;
    return request.post(sender);
  };
  EXPECT_EQ(write(0, 0), EINVAL);
  EXPECT_EQ(write(8193, 0), EINVAL);
  EXPECT_EQ(write(8, IBV_SEND_INLINE), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(target.data()[0], 7 ^ 0xff);
  EXPECT_EQ(target.data()[1], 7);
  EXPECT_EQ(write(8192, 0), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(source.data(), target.data(), 8192), 0);
}

TEST(ProfileTest, AWrongProfileOffersNoDevice) {
  setenv("SOFTVERBS_PROFILE", "none of these", 1);
  require_our_library();
  ibv_device** devices = ibv_get_device_list(nullptr);
  ASSERT_NE(devices, nullptr);
  EXPECT_EQ(ibv_open_device(devices[0]), nullptr);
  ibv_free_device_list(devices);
}

}  // namespace
}  // namespace verbena::softverbs_test
