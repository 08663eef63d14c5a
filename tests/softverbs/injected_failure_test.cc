#include "injected.h"

// Requests that a plan of faults fails.
namespace verbena::softverbs_test {
namespace {

using InjectedFailureTest = InjectedTest;
INSTANTIATE_TEST_SUITE_P(Way, InjectedFailureTest, ::testing::Bool(), name_way);

void expect_statuses(InjectedLink& link, const std::vector<ibv_wc_status>& expected) {
  const auto completions = link.left_node.wait_completions(static_cast<int>(expected.size()));
  for (size_t i = 0; i < completions.size(); ++i) {
    EXPECT_EQ(completions[i].status, expected[i]) << i << ": " << ibv_wc_status_str(completions[i].status);
    EXPECT_EQ(completions[i].wr_id, i + 1);
  }
}

TEST_P(InjectedFailureTest, TheNthFailsAndTheRestIsFlushed) {
  use_plan("fail status=RETRY_EXC nth=3");
  InjectedLink link;
  link.source.fill(1);
  link.post_writes(1, 5);
  expect_statuses(
      link, {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR});
  EXPECT_EQ(link.left->query_state(), IBV_QPS_ERR);
  EXPECT_EQ(link.right->query_state(), IBV_QPS_RTS) << "it never heard of it";
  link.connect();
  EXPECT_EQ(link.write_once(6).status, IBV_WC_SUCCESS) << "only the third";
}

TEST_P(InjectedFailureTest, NothingOfAFailedRequestArrives) {
  use_plan("fail status=RETRY_EXC nth=1");
  InjectedLink link;
  link.source.fill(1);
  EXPECT_EQ(link.write_once(1).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_FALSE(link.target.matches(1, 64));
}

TEST_P(InjectedFailureTest, WorkThatIsDoneIsReportedAsFailed) {
  use_plan("fail status=RETRY_EXC work=done nth=1");
  InjectedLink link;
  link.source.fill(1);
  ASSERT_EQ(link.right->post_receive(9, link.target, 0, 64), 0);
  ASSERT_EQ(Send(IBV_WR_SEND, 1).from(link.source, 0, 64).post(*link.left), 0);
  EXPECT_EQ(link.left_node.wait_completion().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(link.left->query_state(), IBV_QPS_ERR);
  const ibv_wc received = link.right_node.wait_completion();
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.wr_id, 9u);
  EXPECT_TRUE(link.target.matches(1, 64));
}

TEST_P(InjectedFailureTest, EveryStatus) {
  const char* names[] = {
      "LOC_LEN",     "IBV_WC_LOC_QP_OP_ERR", "LOC_PROT", "MW_BIND",   "BAD_RESP",          "LOC_ACCESS",
      "REM_INV_REQ", "REM_ACCESS",           "REM_OP",   "RETRY_EXC", "RNR_RETRY_EXC_ERR", "REM_ABORT",
      "FATAL",       "RESP_TIMEOUT",         "GENERAL"};
  const ibv_wc_status statuses[] = {IBV_WC_LOC_LEN_ERR,     IBV_WC_LOC_QP_OP_ERR,     IBV_WC_LOC_PROT_ERR,
                                    IBV_WC_MW_BIND_ERR,     IBV_WC_BAD_RESP_ERR,      IBV_WC_LOC_ACCESS_ERR,
                                    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,    IBV_WC_REM_OP_ERR,
                                    IBV_WC_RETRY_EXC_ERR,   IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR,
                                    IBV_WC_FATAL_ERR,       IBV_WC_RESP_TIMEOUT_ERR,  IBV_WC_GENERAL_ERR};
  std::string plan;
  for (size_t i = 0; i < std::size(names); ++i)
    plan += std::string("fail status=") + names[i] + " peer=keep nth=" + std::to_string(i + 1) + "\n";
  use_plan(plan);
  InjectedLink link;
  for (const ibv_wc_status status : statuses) {
    const ibv_wc wc = link.write_once(1);
    EXPECT_EQ(wc.status, status) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(link.left->query_state(), IBV_QPS_ERR);
    EXPECT_EQ(link.right->query_state(), IBV_QPS_RTS);
    link.connect();
  }
  EXPECT_EQ(link.write_once(1).status, IBV_WC_SUCCESS);
}

TEST_P(InjectedFailureTest, TheFarEndFailsWhenTheStatusSaysSo) {
  use_plan("fail status=REM_ACCESS nth=1");
  InjectedLink link;
  EXPECT_EQ(link.write_once(1).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(link.left->query_state(), IBV_QPS_ERR);
  const ibv_async_event event = wait_event(link.right_node);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, link.right->qp);
  EXPECT_EQ(link.right->query_state(), IBV_QPS_ERR);
}

TEST_P(InjectedFailureTest, TheFarEndFailsWhenThePlanSaysSo) {
  use_plan("fail status=RETRY_EXC peer=error nth=1");
  InjectedLink link;
  ASSERT_EQ(link.right->post_receive(9, link.target, 0, 64), 0);
  EXPECT_EQ(link.write_once(1).status, IBV_WC_RETRY_EXC_ERR);
  const ibv_wc flushed = link.right_node.wait_completion();
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 9u);
  EXPECT_EQ(wait_event(link.right_node).event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(link.right->query_state(), IBV_QPS_ERR);
}

TEST_P(InjectedFailureTest, SilentErrorLeavesOnlyFlushes) {
  use_plan("error nth=2");
  InjectedLink link;
  ASSERT_EQ(link.left->post_receive(7, link.source, 0, 64), 0);
  link.post_writes(1, 1);
  EXPECT_EQ(link.left_node.wait_completion().status, IBV_WC_SUCCESS);
  link.post_writes(2, 2);
  for (const ibv_wc& wc : link.left_node.wait_completions(3)) {
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR) << wc.wr_id;
  }
  EXPECT_EQ(link.left->query_state(), IBV_QPS_ERR);
  EXPECT_FALSE(has_event(link.left_node, 20));
}

TEST_P(InjectedFailureTest, OnlyTheChosenRail) {
  use_plan("fail rail=1 status=RETRY_EXC nth=1");
  InjectedLink other(0), chosen(1);
  EXPECT_EQ(other.write_once(1).status, IBV_WC_SUCCESS);
  EXPECT_EQ(chosen.write_once(1).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(other.write_once(1).status, IBV_WC_SUCCESS);
}

TEST_P(InjectedFailureTest, OnlyTheChosenOpcode) {
  use_plan("fail opcode=SEND,RDMA_READ status=LOC_QP_OP nth=1");
  InjectedLink link;
  EXPECT_EQ(link.write_once(1).status, IBV_WC_SUCCESS);
  ASSERT_EQ(Send(IBV_WR_RDMA_READ, 2).from(link.source, 0, 8).to(link.target.remote()).post(*link.left), 0);
  EXPECT_EQ(link.left_node.wait_completion().status, IBV_WC_LOC_QP_OP_ERR);
}

TEST_P(InjectedFailureTest, EveryNthAfterSomeAndNotMoreThanTimes) {
  use_plan("fail status=GENERAL every=2 after=3 times=2");
  InjectedLink link;
  std::string seen;
  for (int i = 0; i < 12; ++i) {
    const bool is_good = link.write_once(1).status == IBV_WC_SUCCESS;
    seen += is_good ? '.' : 'x';
    if (!is_good) link.connect();
  }
  EXPECT_EQ(seen, "....x.x.....");
}

TEST_P(InjectedFailureTest, OnlyTheChosenQueuePair) {
  use_plan("fail status=GENERAL qp=3 nth=2");  // each link makes two on the rail, the left one first
  InjectedLink first, second;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first.write_once(1).status, IBV_WC_SUCCESS);
  EXPECT_EQ(second.write_once(1).status, IBV_WC_SUCCESS);
  EXPECT_EQ(second.write_once(1).status, IBV_WC_GENERAL_ERR);
}

TEST_P(InjectedFailureTest, AResetQueuePairWorksAgain) {
  use_plan("fail status=RETRY_EXC nth=2");
  InjectedLink link;
  link.post_writes(1, 3);
  link.left_node.wait_completions(3);
  for (QueuePair* qp : {link.left.get(), link.right.get()}) ASSERT_EQ(qp->to_state(IBV_QPS_RESET), 0);
  link.left->connect(link.right->address());
  link.right->connect(link.left->address());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(link.write_once(1).status, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace verbena::softverbs_test
