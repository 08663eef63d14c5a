// Both ends in this process, over the devices of VERBENA_IBVERBS_LIB: softverbs, or the kernel's in tests/vm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>

#include "base/parameters.h"
#include "support/loopback.h"
#include "tests/base/log_capture.h"
#include "verbs/gid_choice.h"

namespace verbena::verbs {
namespace {

constexpr size_t kBufferBytes = 8192;

class TransferTest : public testing::Test {
 protected:
  TransferTest() {
    for (size_t i = 0; i < kBufferBytes; ++i) near_.buffer()[i] = static_cast<std::byte>(i * 7 + 3);
    EXPECT_TRUE(near_.pair().connect(far_.device().address(), far_.pair().address()));
    EXPECT_TRUE(far_.pair().connect(near_.device().address(), near_.pair().address()));
  }

  base::Outcome post(const WorkRequest& request) { return near_.pair().post(std::span(&request, 1)); }
  WorkRequest make_request(Opcode opcode) const {
    return near_.make_request(opcode, far_.address(), far_.remote_key());
  }

  base::LogCapture log_;
  std::vector<std::unique_ptr<Device>> devices_ = open_devices();
  Endpoint near_{*devices_.at(0), kBufferBytes};
  Endpoint far_{*devices_.at(1), kBufferBytes};
};

TEST_F(TransferTest, IsFoundAndDescribed) {
  ASSERT_EQ(devices_.size(), 2U);
  EXPECT_NE(devices_[0]->guid(), devices_[1]->guid());
  for (const auto& device : devices_) {
    EXPECT_EQ(device->is_softverbs(), base::parameters().ibverbs_lib == "softverbs");
    EXPECT_TRUE(device->is_software());
    EXPECT_TRUE(device->is_healthy());
    EXPECT_GT(device->speed_mbps(), 0U);
    EXPECT_GE(device->gid_index(), 0);
    EXPECT_FALSE(is_empty_gid(device->address().gid));
    EXPECT_FALSE(is_link_local_gid(device->address().gid));
  }
}

TEST_F(TransferTest, AStoppedQueuePairSaysWhatItHasCarriedOut) {
  EXPECT_TRUE(devices_[0]->tells_carried_out());
  EXPECT_TRUE(tells_carried_out(*devices_[0])) << "as found by trying";
  ASSERT_EQ(far_.pair().read_carried_out(), 0U);
  WorkRequest request = make_request(Opcode::kWrite);
  const uint32_t packets = near_.pair().count_packets(request.length);
  EXPECT_EQ(near_.pair().count_packets(0), 1U);
  EXPECT_GT(packets, 1U);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(post(request));
    ASSERT_EQ(near_.wait().error, 0);
  }
  far_.pair().stop();
  EXPECT_EQ(far_.pair().read_carried_out(), 3 * packets);
  ASSERT_TRUE(post(request));
  EXPECT_NE(near_.wait().error, 0);
  EXPECT_EQ(far_.pair().read_carried_out(), 3 * packets) << "what failed is not counted";
  EXPECT_EQ(near_.pair().read_carried_out(), 0U);
}

TEST_F(TransferTest, WritesAndSaysSo) {
  ASSERT_TRUE(far_.post_receive(0, 0, 41));
  WorkRequest request = make_request(Opcode::kWriteImm);
  request.imm = 0xdeadbeef;
  request.cookie = 7;
  ASSERT_TRUE(post(request));
  const Completion sent = near_.wait();
  EXPECT_EQ(sent.error, 0);
  EXPECT_EQ(sent.kind(), CompletionKind::kSend);
  EXPECT_EQ(sent.cookie, 7U);
  EXPECT_EQ(sent.qp_number, near_.pair().number());
  const Completion received = far_.wait();
  EXPECT_EQ(received.error, 0);
  EXPECT_EQ(received.kind(), CompletionKind::kReceiveWrite);
  EXPECT_EQ(received.cookie, 41U);
  EXPECT_EQ(received.imm(), 0xdeadbeefU);
  EXPECT_EQ(received.length, kBufferBytes);
  EXPECT_EQ(received.qp_number, far_.pair().number());
  EXPECT_EQ(near_.buffer(), far_.buffer());
}

TEST_F(TransferTest, SendsIntoAPostedBuffer) {
  ASSERT_TRUE(far_.post_receive(4096, 512, 42));
  WorkRequest request = make_request(Opcode::kSendImm);
  request.length = 100;
  request.imm = 5;
  ASSERT_TRUE(post(request));
  const Completion received = far_.wait();
  EXPECT_EQ(received.error, 0);
  EXPECT_EQ(received.kind(), CompletionKind::kReceive);
  EXPECT_EQ(received.length, 100U);
  EXPECT_EQ(received.imm(), 5U);
  EXPECT_TRUE(std::equal(near_.buffer().begin(), near_.buffer().begin() + 100, far_.buffer().begin() + 4096));
}

TEST_F(TransferTest, SendsInlineFromABufferThatIsReusedAtOnce) {
  ASSERT_TRUE(far_.post_receive(0, 64, 1));
  char text[kInlineBytes] = "a line that lives on the stack";
  WorkRequest request{
      .opcode = Opcode::kSendImm, .signaled = true, .send_inline = true, .local = text, .length = 64};
  ASSERT_TRUE(post(request));
  std::fill(std::begin(text), std::end(text), 'x');
  EXPECT_EQ(far_.wait().error, 0);
  EXPECT_STREQ(reinterpret_cast<const char*>(far_.buffer().data()), "a line that lives on the stack");
}

TEST_F(TransferTest, Reads) {
  std::fill(far_.buffer().begin(), far_.buffer().end(), std::byte{0x5a});
  ASSERT_TRUE(post(make_request(Opcode::kRead)));
  EXPECT_EQ(near_.wait().error, 0);
  EXPECT_EQ(near_.buffer(), far_.buffer());
}

TEST_F(TransferTest, KeepsOrderAndSlotsOverAFullQueue) {
  std::vector<WorkRequest> requests(64, make_request(Opcode::kWrite));
  for (uint64_t i = 0; i < requests.size(); ++i) {
    requests[i].length = 64;
    requests[i].cookie = i;
    requests[i].signaled = i % 16 == 15;
  }
  for (int lap = 0; lap < 20; ++lap) {
    ASSERT_TRUE(near_.pair().post(requests));
    EXPECT_EQ(near_.pair().free_slots(), 0U);
    for (uint64_t i = 15; i < 64; i += 16) {
      const Completion sent = near_.wait();
      ASSERT_EQ(sent.error, 0) << describe_completion_error(sent.error);
      EXPECT_EQ(sent.cookie, i);
      near_.pair().retire();
    }
    ASSERT_EQ(near_.pair().free_slots(), 64U);
  }
}

TEST_F(TransferTest, ReportsAForeignKey) {
  WorkRequest request = make_request(Opcode::kWrite);
  request.remote_key ^= 0x55aa55;
  request.cookie = 99;
  ASSERT_TRUE(post(request));
  const Completion sent = near_.wait();
  EXPECT_EQ(sent.error, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(sent.cookie, 99U);
  EXPECT_EQ(sent.qp_number, near_.pair().number());
}

TEST_F(TransferTest, FlushesWorkAfterStop) {
  near_.pair().stop();
  ASSERT_TRUE(post(make_request(Opcode::kWrite)));
  EXPECT_EQ(near_.wait().error, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(far_.buffer()[0], std::byte{0});
}

TEST_F(TransferTest, RegistersOnlyMemoryThatExists) {
  EXPECT_FALSE(MemoryRegion::register_memory(*devices_[0], reinterpret_cast<void*>(0x10000), 4096, {}));
  EXPECT_THAT(log_.warnings(), testing::ElementsAre(testing::HasSubstr("cannot register memory")));
}

}  // namespace
}  // namespace verbena::verbs
