#include <endian.h>

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class QueuePairTest : public FakeDeviceTest {
 protected:
  QueuePairTest()
      : completions_(*CompletionQueue::create(device(), 64)),
        receives_(*SharedReceiveQueue::create(device(), 64)) {}

  QueuePair make(uint32_t send_depth) {
    return std::move(
        *QueuePair::create(device(), completions_, {.send_depth = send_depth, .receive_queue = &receives_}));
  }

  CompletionQueue completions_;
  SharedReceiveQueue receives_;
  char memory_[64] = {};
};

TEST_F(QueuePairTest, AsksForAReliableConnection) {
  const QueuePair pair = make(96);
  const ibv_qp_init_attr& asked = record().pair_attributes;
  EXPECT_EQ(asked.qp_type, IBV_QPT_RC);
  EXPECT_EQ(asked.cap.max_send_wr, 96U);
  EXPECT_EQ(asked.cap.max_recv_wr, 0U);
  EXPECT_EQ(asked.cap.max_inline_data, kInlineBytes);
  EXPECT_EQ(asked.send_cq, completions_.get());
  EXPECT_EQ(asked.srq, receives_.get());
  EXPECT_EQ(asked.sq_sig_all, 0);
  EXPECT_LE(pair.address().first_psn, 0xffffffU);
  EXPECT_EQ(pair.free_slots(), 96U);
}

TEST_F(QueuePairTest, TellsADeviceThatAsksWhatWillBePosted) {
  script().extended_pair_errno = 0;
  const auto pair =
      QueuePair::create(device(), completions_,
                        {.send_depth = 16,
                         .inline_bytes = 0,
                         .operations = {.send_imm = true, .write = false, .write_imm = true, .read = false}});
  ASSERT_TRUE(pair);
  EXPECT_EQ(record().pair_mask, unsigned{IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS});
  EXPECT_EQ(record().pair_operations,
            uint64_t{IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM});
  EXPECT_EQ(record().pair_attributes.cap.max_inline_data, 0U);
}

TEST_F(QueuePairTest, AsksTheOldWayWhereTheNewOneIsUnknown) {
  for (const int error : {0, ENOSYS, EOPNOTSUPP, EINVAL}) {
    script().extended_pair_errno = error == 0 ? -1 : error;  // some set no errno
    record().pair_mask = 0;
    EXPECT_TRUE(QueuePair::create(device(), completions_, {.send_depth = 16})) << error;
    EXPECT_NE(record().pair_mask, 0U) << "the new way first";
  }
  script().extended_pair_errno = ENOMEM;
  EXPECT_FALSE(QueuePair::create(device(), completions_, {.send_depth = 16}));
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("cannot create a queue pair")));
}

TEST_F(QueuePairTest, RefusesADepthBeyondTheDevice) {
  EXPECT_FALSE(QueuePair::create(device(), completions_, {.send_depth = 1025}));
  EXPECT_THAT(log_.warnings(), ElementsAre(AllOf(HasSubstr("1025"), HasSubstr("1024"))));
}

TEST_F(QueuePairTest, TakesWhatADeviceSendsInline) {
  EXPECT_EQ(make(16).inline_bytes(), kInlineBytes);
  const struct {
    bool refuses_more;
    uint32_t most_bytes, granted_bytes;
  } cases[] = {{false, 0, 0}, {false, 28, 28}, {true, 0, 0}, {true, 28, 16}, {true, 32, 32}};
  for (const auto& [refuses_more, most_bytes, granted_bytes] : cases) {
    script().most_inline_bytes = most_bytes;
    script().refuses_more_inline = refuses_more;
    EXPECT_EQ(make(16).inline_bytes(), granted_bytes) << refuses_more << ' ' << most_bytes;
  }
  EXPECT_THAT(log_.warnings(), IsEmpty());
}

TEST_F(QueuePairTest, EncodesEachRequest) {
  QueuePair pair = make(16);
  const WorkRequest requests[] = {
      {.opcode = Opcode::kSendImm,
       .signaled = true,
       .send_inline = true,
       .imm = 0x01020304,
       .cookie = 1,
       .local = memory_,
       .local_key = 11,
       .length = 8},
      {.opcode = Opcode::kWrite,
       .local = memory_ + 8,
       .local_key = 12,
       .length = 16,
       .remote_key = 22,
       .remote = 4096},
      {.opcode = Opcode::kWriteImm, .signaled = true, .send_inline = true, .imm = 5, .cookie = 3},
      {.opcode = Opcode::kRead, .local = memory_, .length = 4, .remote_key = 23, .remote = 8192},
  };
  ASSERT_TRUE(pair.post(requests));
  const std::vector<fake::Request>& posted = record().requests;
  ASSERT_EQ(posted.size(), 4U);
  EXPECT_EQ(posted[0].opcode, IBV_WR_SEND_WITH_IMM);
  EXPECT_EQ(posted[0].flags, unsigned{IBV_SEND_SIGNALED | IBV_SEND_INLINE});
  EXPECT_EQ(be32toh(posted[0].imm), 0x01020304U);
  EXPECT_EQ(posted[0].wr_id, 1U);
  EXPECT_EQ(posted[0].local_key, 11U);
  EXPECT_EQ(posted[1].opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(posted[1].flags, 0U);
  EXPECT_EQ(posted[1].local, reinterpret_cast<uintptr_t>(memory_ + 8));
  EXPECT_EQ(posted[1].length, 16U);
  EXPECT_EQ(posted[1].remote, 4096U);
  EXPECT_EQ(posted[1].remote_key, 22U);
  EXPECT_EQ(posted[2].opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(posted[2].segments, 0);  // nothing to send but the immediate
  EXPECT_EQ(posted[2].flags, unsigned{IBV_SEND_SIGNALED});
  EXPECT_EQ(posted[3].opcode, IBV_WR_RDMA_READ);
}

TEST_F(QueuePairTest, EncodesAddsAndFencesInChains) {
  QueuePair pair = make(16);
  const OneSidedRequest requests[] = {
      {{.opcode = Opcode::kFetchAdd,
        .local = memory_,
        .local_key = 11,
        .length = 8,
        .remote_key = 22,
        .remote = 4096},
       0x1122334455667788},
      {{.opcode = Opcode::kWrite, .local = memory_, .length = 8, .remote_key = 23, .remote = 8}, 0, true},
  };
  ASSERT_TRUE(pair.post(requests));
  const std::vector<fake::Request>& posted = record().requests;
  ASSERT_EQ(posted.size(), 2U);
  EXPECT_EQ(posted[0].opcode, IBV_WR_ATOMIC_FETCH_AND_ADD);
  EXPECT_EQ(posted[0].flags, 0U);
  EXPECT_EQ(posted[0].local, reinterpret_cast<uintptr_t>(memory_));
  EXPECT_EQ(posted[0].length, 8U);
  EXPECT_EQ(posted[0].remote, 4096U);
  EXPECT_EQ(posted[0].remote_key, 22U);
  EXPECT_EQ(posted[0].addend, 0x1122334455667788U);
  EXPECT_EQ(posted[1].opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(posted[1].flags, unsigned{IBV_SEND_FENCE});
  EXPECT_EQ(posted[1].remote_key, 23U);
}

TEST_F(QueuePairTest, PostsALongChainInPieces) {
  QueuePair pair = make(128);
  std::vector<WorkRequest> requests(70, {.local = memory_, .length = 1});
  for (uint64_t i = 0; i < requests.size(); ++i) requests[i].cookie = i;
  ASSERT_TRUE(pair.post(requests));
  EXPECT_THAT(record().chain_lengths, ElementsAre(32, 32, 6));
  for (uint64_t i = 0; i < requests.size(); ++i) EXPECT_EQ(record().requests[i].wr_id, i);
}

TEST_F(QueuePairTest, FreesSlotsUpToTheCompletedRequest) {
  QueuePair pair = make(8);
  const WorkRequest plain{.local = memory_, .length = 1};
  WorkRequest signaled = plain;
  signaled.signaled = true;
  ASSERT_TRUE(pair.post(std::vector{plain, plain, signaled}));
  ASSERT_TRUE(pair.post(std::vector{plain, signaled, plain}));
  EXPECT_EQ(pair.free_slots(), 2U);
  pair.retire();
  EXPECT_EQ(pair.free_slots(), 5U);
  pair.retire();
  EXPECT_EQ(pair.free_slots(), 7U);
  pair.retire();  // nothing signaled is outstanding
  EXPECT_EQ(pair.free_slots(), 7U);
}

TEST_F(QueuePairTest, CountsSlotsThroughManyLaps) {
  QueuePair pair = make(5);  // not a power of two: the ring of signaled positions is longer than the queue
  const std::vector<WorkRequest> requests(5, {.signaled = true, .local = memory_, .length = 1});
  for (int lap = 0; lap < 1000; ++lap) {
    ASSERT_TRUE(pair.post(requests));
    EXPECT_EQ(pair.free_slots(), 0U);
    for (uint32_t retired = 1; retired <= 5; ++retired) {
      pair.retire();
      ASSERT_EQ(pair.free_slots(), retired);
    }
  }
}

TEST_F(QueuePairTest, RefusesMoreThanFits) {
  QueuePair pair = make(4);
  const std::vector<WorkRequest> requests(5, {.local = memory_, .length = 1});
  EXPECT_EQ(pair.post(requests).status(), base::Status::kInternal);
  EXPECT_TRUE(record().requests.empty());
  EXPECT_EQ(pair.free_slots(), 4U);
}

TEST_F(QueuePairTest, CountsWhatWasAcceptedBeforeARefusal) {
  QueuePair pair = make(16);
  script().rejected_request = 2;
  const std::vector<WorkRequest> requests(5, {.local = memory_, .length = 1});
  const auto outcome = pair.post(requests);
  EXPECT_EQ(outcome.status(), base::Status::kSystem);
  EXPECT_EQ(outcome.error().errno_value, ENOMEM);
  EXPECT_EQ(pair.free_slots(), 14U);
  EXPECT_THAT(log_.warnings(), ElementsAre(HasSubstr("request 2 of 5")));
}

TEST_F(QueuePairTest, StopsInTheErrorState) {
  QueuePair pair = make(4);
  pair.stop();
  ASSERT_EQ(record().modifications.size(), 1U);
  EXPECT_EQ(record().modifications[0].qp_state, IBV_QPS_ERR);
  EXPECT_EQ(record().modification_masks[0], IBV_QP_STATE);
}

TEST_F(QueuePairTest, MovesWithItsSlots) {
  const int live_objects = record().live_objects;
  {
    QueuePair first = make(8);
    ASSERT_TRUE(first.post(std::vector<WorkRequest>(3, {.signaled = true, .local = memory_, .length = 1})));
    QueuePair second = std::move(first);
    EXPECT_EQ(second.free_slots(), 5U);
    second.retire();
    EXPECT_EQ(second.free_slots(), 6U);
    second = make(4);  // destroys the one it had
    EXPECT_EQ(record().live_objects, live_objects + 1);
  }
  EXPECT_EQ(record().live_objects, live_objects);
}

}  // namespace
}  // namespace verbena::verbs
