#include <thread>

#include "injected.h"

// Rails that go down and come up again.
namespace verbena::softverbs_test {
namespace {

constexpr QpOptions kPatient{.timeout = 14, .retry_count = 7};  // 0.5 s
constexpr QpOptions kForever{.timeout = 0};
constexpr QpOptions kHasty{.timeout = 10, .retry_count = 1};  // 8 ms

void expect_nothing(Node& node) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(node.cq, 1, &wc), 0);
}

class RailTest : public InjectedTest {
 protected:
  // Writes the control file and waits until the port of the node is so.
  void pull(const Node& node, uint32_t rail) {
    order(std::to_string(rail) + " down\n");
    EXPECT_EQ(wait_event(node).event_type, IBV_EVENT_PORT_ERR);
    EXPECT_EQ(query_port(node), IBV_PORT_DOWN);
  }
  void plug(const Node& node, uint32_t rail) {
    order(std::to_string(rail) + " up\n");
    EXPECT_EQ(wait_event(node).event_type, IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(query_port(node), IBV_PORT_ACTIVE);
  }
};
INSTANTIATE_TEST_SUITE_P(Way, RailTest, ::testing::Bool(), name_way);

TEST_P(RailTest, RequestsWaitWhileItIsDown) {
  use_rails("");
  InjectedLink link(0, kForever), other(1);
  EXPECT_EQ(query_port(link.left_node), IBV_PORT_ACTIVE);
  pull(link.left_node, 0);
  EXPECT_EQ(wait_event(link.right_node).event_type, IBV_EVENT_PORT_ERR) << "each context hears of it";
  EXPECT_EQ(query_port(other.left_node), IBV_PORT_ACTIVE);
  link.source.fill(3);
  link.post_writes(1, 3);
  expect_nothing(link.left_node);
  EXPECT_FALSE(link.target.matches(3, 64));
  EXPECT_EQ(other.write_once(1).status, IBV_WC_SUCCESS) << "the other rail works";
  plug(link.left_node, 0);
  for (const ibv_wc& wc : link.left_node.wait_completions(3)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_TRUE(link.target.matches(3, 64));
}

TEST_P(RailTest, RequestsFailWhenTheirRetriesAreUsedUp) {
  use_rails("");
  InjectedLink link(1, kHasty);
  pull(link.left_node, 1);
  link.post_writes(1, 3);
  const auto completions = link.left_node.wait_completions(3);
  EXPECT_EQ(completions[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(completions[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(completions[2].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(link.left->query_state(), IBV_QPS_ERR);
  EXPECT_EQ(link.right->query_state(), IBV_QPS_RTS);
  plug(link.left_node, 1);
  link.connect();
  EXPECT_EQ(link.write_once(4).status, IBV_WC_SUCCESS);
}

TEST_P(RailTest, UnreliableMessagesAreLost) {
  if (uses_wire()) return;  // such queue pairs are refused there
  use_rails("0 down\n");
  InjectedLink link(0, {.type = IBV_QPT_UC});
  link.source.fill(6);
  EXPECT_EQ(link.write_once(1).status, IBV_WC_SUCCESS);
  EXPECT_FALSE(link.target.matches(6, 64));
  plug(link.left_node, 0);
  EXPECT_EQ(link.write_once(2).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(link.target.matches(6, 64));
}

TEST_P(RailTest, DownFromTheStart) {
  use_rails("* down\n1 up\n");
  InjectedLink down(0, kHasty), up(1);
  EXPECT_EQ(query_port(down.left_node), IBV_PORT_DOWN);
  EXPECT_EQ(down.write_once(1).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(up.write_once(1).status, IBV_WC_SUCCESS);
}

TEST_P(RailTest, UnfinishedAndWrongFilesChangeNothing) {
  use_rails("0 down\n");
  InjectedLink link(0, kPatient);
  ASSERT_EQ(query_port(link.left_node), IBV_PORT_DOWN);
  for (const char* text : {"", "0 up", "0 sideways\n", "9 up\n"}) {
    order(text);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(query_port(link.left_node), IBV_PORT_DOWN) << text;
  }
  plug(link.left_node, 0);
}

// The process whose rail is down need not be the one that sends.
void test_two_processes(const std::string& path, bool pulls_far) {
  Child child([&](int socket) {
    if (pulls_far) setenv("SOFTVERBS_RAILS", path.c_str(), 1);
    Node node;
    Buffer memory(node, 64);
    QueuePair pair(node, kForever);
    meet(socket, pair);
    tell(socket, memory.remote());
    hear<bool>(socket);
    if (pulls_far) {
      EXPECT_EQ(wait_event(node).event_type, IBV_EVENT_PORT_ERR);
    }
    tell(socket, true);
    hear<bool>(socket);
    EXPECT_FALSE(memory.matches(5, 64));
    tell(socket, true);
    hear<bool>(socket);
    EXPECT_TRUE(memory.matches(5, 64));
  });
  if (!pulls_far) setenv("SOFTVERBS_RAILS", path.c_str(), 1);
  Node node;
  Buffer memory(node, 64);
  memory.fill(5);
  QueuePair pair(node, kForever);
  meet(child.socket(), pair);
  const auto remote = hear<RemoteMemory>(child.socket());
  std::ofstream(path) << "0 down\n";
  tell(child.socket(), true);
  hear<bool>(child.socket());
  if (!pulls_far) {
    EXPECT_EQ(wait_event(node).event_type, IBV_EVENT_PORT_ERR);
  }
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 64).to(remote).post(pair), 0);
  expect_nothing(node);
  tell(child.socket(), true);
  hear<bool>(child.socket());
  EXPECT_EQ(query_port(node), pulls_far ? IBV_PORT_ACTIVE : IBV_PORT_DOWN);
  std::ofstream(path) << "0 up\n";
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  tell(child.socket(), true);
}

TEST_P(RailTest, TheSendersRailOfTwoProcesses) {
  const std::string path = ::testing::TempDir() + "rails-near-" + std::to_string(getpid());
  test_two_processes(path, false);
  unlink(path.c_str());
}

TEST_P(RailTest, TheReceiversRailOfTwoProcesses) {
  const std::string path = ::testing::TempDir() + "rails-far-" + std::to_string(getpid());
  test_two_processes(path, true);
  unlink(path.c_str());
}

TEST_P(RailTest, DownAtANumberOfRequestsAndUpAgain) {
  use_plan("down rail=0 nth=3 for=30ms");
  InjectedLink link(0, kForever);
  link.post_writes(1, 5);
  for (const ibv_wc& wc : link.left_node.wait_completions(5)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wait_event(link.left_node).event_type, IBV_EVENT_PORT_ERR);
  EXPECT_EQ(wait_event(link.left_node).event_type, IBV_EVENT_PORT_ACTIVE);
}

TEST_P(RailTest, TheRequestThatTakesItDownIsTheFirstThatFails) {
  use_plan("down rail=0 nth=3");
  InjectedLink link(0, kHasty);
  link.post_writes(1, 2);
  for (const ibv_wc& wc : link.left_node.wait_completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  link.post_writes(3, 2);
  const auto completions = link.left_node.wait_completions(2);
  EXPECT_EQ(completions[0].status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(completions[1].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(query_port(link.left_node), IBV_PORT_DOWN);
}

TEST_P(RailTest, Flaps) {
  use_plan("down rail=1 at=200ms for=10ms up=10ms flaps=3");
  Node node({.device = 1}), other({.device = 0});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(wait_event(node).event_type, IBV_EVENT_PORT_ERR);
    EXPECT_EQ(wait_event(node).event_type, IBV_EVENT_PORT_ACTIVE);
  }
  EXPECT_EQ(query_port(node), IBV_PORT_ACTIVE);
  EXPECT_FALSE(has_event(node, 60)) << "not a fourth time";
  EXPECT_FALSE(has_event(other, 0));
}

}  // namespace
}  // namespace verbena::softverbs_test
