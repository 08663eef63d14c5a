#include <endian.h>

#include <array>

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

ibv_wc make_entry(uint64_t cookie, ibv_wc_opcode opcode) {
  ibv_wc entry{};
  entry.wr_id = cookie;
  entry.opcode = opcode;
  entry.qp_num = 77;
  return entry;
}

class CompletionQueueTest : public FakeDeviceTest {
 protected:
  CompletionQueueTest() : queue_(*CompletionQueue::create(device(), 64)) {}

  CompletionQueue queue_;
  std::array<Completion, 16> out_{};
};

TEST_F(CompletionQueueTest, ConvertsEachKind) {
  script().completions = {make_entry(1, IBV_WC_RDMA_WRITE), make_entry(2, IBV_WC_RECV),
                          make_entry(3, IBV_WC_RECV_RDMA_WITH_IMM)};
  script().completions[1].byte_len = 4096;
  script().completions[2].byte_len = 12;
  script().completions[2].wc_flags = IBV_WC_WITH_IMM;
  script().completions[2].imm_data = htobe32(0x01020304);
  ASSERT_EQ(queue_.poll(out_), 3);
  EXPECT_EQ(out_[0].cookie, 1U);
  EXPECT_EQ(out_[0].kind(), CompletionKind::kSend);
  EXPECT_EQ(out_[0].error, 0);
  EXPECT_EQ(out_[0].qp_number, 77U);
  EXPECT_EQ(out_[1].kind(), CompletionKind::kReceive);
  EXPECT_EQ(out_[1].length, 4096U);
  EXPECT_EQ(out_[1].imm(), 0U);
  EXPECT_EQ(out_[2].kind(), CompletionKind::kReceiveWrite);
  EXPECT_EQ(out_[2].imm(), 0x01020304U);
  EXPECT_EQ(queue_.poll(out_), 0);
}

TEST_F(CompletionQueueTest, KeepsTheStatusOfAnError) {
  script().completions = {make_entry(9, IBV_WC_RECV)};
  script().completions[0].status = IBV_WC_RETRY_EXC_ERR;
  script().completions[0].vendor_err = 0x81;
  ASSERT_EQ(queue_.poll(out_), 1);
  EXPECT_EQ(out_[0].cookie, 9U);
  EXPECT_EQ(out_[0].qp_number, 77U);
  EXPECT_EQ(out_[0].error, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(out_[0].vendor_error, 0x81U);
}

TEST_F(CompletionQueueTest, HandsOutNoMoreThanFits) {
  script().completions.assign(40, make_entry(5, IBV_WC_SEND));
  EXPECT_EQ(queue_.poll(std::span(out_).first(3)), 3);
  std::vector<Completion> many(64);
  EXPECT_EQ(queue_.poll(many), 16);
  EXPECT_EQ(script().completions.size(), 21U);
}

TEST_F(CompletionQueueTest, LogsAFailureOnce) {
  script().poll_result = -5;
  EXPECT_EQ(queue_.poll(out_), -1);
  EXPECT_EQ(queue_.poll(out_), -1);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("-5")));
}

TEST_F(CompletionQueueTest, RefusesADepthBeyondTheDevice) {
  EXPECT_FALSE(CompletionQueue::create(device(), 4097));
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("4097"), HasSubstr("4096"))));
}

}  // namespace
}  // namespace verbena::verbs
