#include <cerrno>
#include <ctime>

#include "fixture.h"

// ibv_create_cq_ex, and polling with ibv_start_poll and the read functions.
namespace verbena::softverbs_test {
namespace {

uint64_t read_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// A node whose queue pairs complete into an extended queue.
struct ExtendedNode : Node {
  ibv_cq* plain = cq;
  ibv_cq_ex* extended = nullptr;

  explicit ExtendedNode(uint64_t fields) {
    ibv_cq_init_attr_ex init{};
    init.cqe = 64;
    init.wc_flags = fields;
    extended = ibv_create_cq_ex(context, &init);
    EXPECT_NE(extended, nullptr);
    cq = ibv_cq_ex_to_cq(extended);
  }
  ~ExtendedNode() {
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    cq = plain;
  }
};

int start_poll(ibv_cq_ex* cq) {
  ibv_poll_cq_attr attributes{};
  return ibv_start_poll(cq, &attributes);
}

// A queue pair that is connected to itself.
struct ExtendedEnd {
  explicit ExtendedEnd(uint64_t flags) : node(flags) { pair.connect(pair.address()); }
  void exchange() {
    ASSERT_EQ(pair.post_receive(1, buffer, 0, 64), 0);
    ASSERT_EQ(Send(IBV_WR_SEND_WITH_IMM, 2).from(buffer, 64, 40).with_immediate(77).post(pair), 0);
  }

  ExtendedNode node;
  Buffer buffer{node, 128};
  QueuePair pair{node};
};

TEST(CompletionExtendedTest, ReadsWhatItPolls) {
  ExtendedEnd end(IBV_WC_STANDARD_FLAGS);
  auto& [node, buffer, pair] = end;
  EXPECT_EQ(start_poll(node.extended), ENOENT);
  end.exchange();
  ASSERT_EQ(start_poll(node.extended), 0);
  EXPECT_EQ(node.extended->wr_id, 1u);
  EXPECT_EQ(node.extended->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(node.extended), IBV_WC_RECV);
  EXPECT_EQ(ibv_wc_read_byte_len(node.extended), 40u);
  EXPECT_EQ(ibv_wc_read_imm_data(node.extended), 77u);
  EXPECT_EQ(ibv_wc_read_wc_flags(node.extended), static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(ibv_wc_read_qp_num(node.extended), pair.qp->qp_num);
  EXPECT_EQ(ibv_wc_read_src_qp(node.extended), pair.qp->qp_num);
  ASSERT_EQ(ibv_next_poll(node.extended), 0);
  EXPECT_EQ(node.extended->wr_id, 2u);
  EXPECT_EQ(ibv_wc_read_opcode(node.extended), IBV_WC_SEND);
  EXPECT_EQ(ibv_next_poll(node.extended), ENOENT);
  ibv_end_poll(node.extended);
  EXPECT_EQ(start_poll(node.extended), ENOENT) << "must not have kept its lock";
}

TEST(CompletionExtendedTest, ServesTheOlderPollToo) {
  ExtendedEnd end(0);
  end.exchange();
  EXPECT_EQ(end.node.wait_completions(2).size(), 2u);
}

// `clock` is the one of the stamps that `flag` asks for.
void expect_stamps(uint64_t flag, clockid_t clock, uint64_t (*read)(ibv_cq_ex*)) {
  ExtendedEnd end(flag);
  const uint64_t before_ns = read_ns(clock);
  end.exchange();
  const uint64_t after_ns = read_ns(clock);
  ASSERT_EQ(start_poll(end.node.extended), 0);
  const uint64_t stamp_ns = read(end.node.extended);
  EXPECT_GE(stamp_ns, before_ns);
  EXPECT_LE(stamp_ns, after_ns);
  ibv_end_poll(end.node.extended);
}

TEST(CompletionExtendedTest, StampsAreOfTheCompletion) {
  expect_stamps(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, CLOCK_MONOTONIC_RAW, ibv_wc_read_completion_ts);
}

TEST(CompletionExtendedTest, StampsOfTheWallClock) {
  expect_stamps(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, CLOCK_REALTIME,
                ibv_wc_read_completion_wallclock_ns);
}

TEST(CompletionExtendedTest, RefusesWhatItDoesNotHave) {
  Node node;
  ibv_cq_init_attr_ex init{};
  init.cqe = 8;
  init.wc_flags = IBV_WC_EX_WITH_CVLAN;
  EXPECT_EQ(ibv_create_cq_ex(node.context, &init), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  init.wc_flags = 0;
  init.comp_vector = 1;
  EXPECT_EQ(ibv_create_cq_ex(node.context, &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace verbena::softverbs_test
