#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "gpu_fixture.h"

// Copies to and from a GPU that CUDA refuses while a message is on the wire: the request fails with the
// status that says where, no byte arrives that was not sent, and other queue pairs of the same connections go
// on. Runs with every message on the wire, against the stand-in for CUDA.
namespace verbena::softverbs_test {
namespace {

constexpr uint8_t kSeed = 77;

// One end: a queue pair that will fail, one that must not, and memory.
struct End {
  explicit End(Kind kind) : failing(node), other(node), side(node, kind, 0), host(node, Kind::kPageable, 0) {
    side.memory.fill(kSeed);
    host.memory.fill(kSeed);
  }
  void join(int socket) {
    meet(socket, failing);
    meet(socket, other);
  }
  Send make(ibv_wr_opcode opcode, const RemoteMemory& far) { return make(opcode, far, side); }
  Send make(ibv_wr_opcode opcode, const RemoteMemory& far, const Registered& from) {
    Send send(opcode, 1);
    send.from(from.piece(0, kBytes)).to(far);
    return send;
  }
  Node node;
  QueuePair failing, other;
  Registered side, host;
};

enum class Verb {
  kClear,
  kRefuse,
  kAllow,
  kPostReceive,
  kHoldsOnly,
  kMatches,
  kHasFailed,
  kHasReceived,
  kEnd
};
struct Command {
  Verb verb;
  int value;
};

bool obey(End& end, const Command& command) {
  ibv_wc wc{};
  switch (command.verb) {
    case Verb::kClear:
      end.side.memory.clear();
      return true;
    case Verb::kRefuse:
      return refuse_copies_after(command.value);
    case Verb::kAllow:
      return refuse_copies_after(INT32_MAX);
    case Verb::kPostReceive:
      return end.failing.post_receive(0, end.side.piece(0, kBytes)) == 0;
    case Verb::kHoldsOnly:
      return end.side.memory.holds_only(kSeed);
    case Verb::kMatches:
      return end.side.memory.matches(kSeed, 0, kBytes);
    case Verb::kHasFailed:  // soon: the requester may get the error first
      for (int i = 0; i < 5000 && end.failing.query_state() != IBV_QPS_ERR; ++i) usleep(1000);
      return end.failing.query_state() == IBV_QPS_ERR;
    case Verb::kHasReceived:
      return ibv_poll_cq(end.node.cq, 1, &wc) > 0 && wc.status == IBV_WC_SUCCESS;
    case Verb::kEnd:
      break;
  }
  return true;
}

bool ask(int socket, Verb verb, int value = 0) {
  tell(socket, Command{verb, value});
  return hear<bool>(socket);
}

// Two processes with one kind of memory each; `near` drives.
void run_pair(Kind near_kind, Kind far_kind, const std::function<void(int, End&, RemoteMemory)>& body) {
  Child far([&](int socket) {
    start_cuda();
    End end(far_kind);
    end.join(socket);
    tell(socket, end.side.remote());
    for (;;) {
      const auto command = hear<Command>(socket);
      tell(socket, obey(end, command));
      if (command.verb == Verb::kEnd || ::testing::Test::HasFailure()) return;
    }
  });
  Child near([&](int) {  // CUDA does not survive a fork
    start_cuda();
    End end(near_kind);
    end.join(far.socket());
    const auto remote = hear<RemoteMemory>(far.socket());
    body(far.socket(), end, remote);
    EXPECT_TRUE(ask(far.socket(), Verb::kEnd));
  });
}

// The connections, which both queue pairs share, do not wait for what will never come.
void expect_others_go_on(int socket, End& end, const RemoteMemory& far) {
  EXPECT_TRUE(ask(socket, Verb::kAllow));
  refuse_copies_after(INT32_MAX);
  end.side.memory.fill(kSeed);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(end.make(IBV_WR_RDMA_WRITE, far).post(end.other), 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(end.node.wait_completion().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(ask(socket, Verb::kMatches));
}

// Once for each number of copies before the refusals begin.
void refuse_in_pair(Kind near_kind, Kind far_kind,
                    const std::function<void(int, End&, RemoteMemory, int allowed)>& body) {
  for (const int allowed : {0, 1, 3}) {
    SCOPED_TRACE(allowed);
    run_pair(near_kind, far_kind, [&](int socket, End& end, RemoteMemory far) {
      body(socket, end, far, allowed);
      expect_others_go_on(socket, end, far);
    });
  }
}

class WireGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (getenv("SOFTVERBS_FORCE_WIRE") == nullptr) GTEST_SKIP() << "SOFTVERBS_FORCE_WIRE is not set: skipped";
    Child probe([](int socket) { tell(socket, count_gpus() > 0 && refuse_copies_after(INT32_MAX)); });
    if (!hear<bool>(probe.socket())) GTEST_SKIP() << "the stand-in for CUDA is not loaded: skipped";
  }
};

TEST_F(WireGpuTest, RefusedAtTheRequestersSource) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_SEND}) {
    refuse_in_pair(Kind::kDevice, Kind::kPageable, [&](int socket, End& end, RemoteMemory far, int allowed) {
      EXPECT_TRUE(ask(socket, Verb::kClear));
      EXPECT_TRUE(ask(socket, Verb::kPostReceive));
      refuse_copies_after(allowed);
      ASSERT_EQ(end.make(opcode, far).post(end.failing), 0);
      // These may be on the wire already when the first one fails.
      for (int i = 0; i < 2; ++i) ASSERT_EQ(end.make(opcode, far, end.host).post(end.failing), 0);
      EXPECT_EQ(end.node.wait_completion().status, IBV_WC_GENERAL_ERR);
      EXPECT_EQ(end.node.wait_completion().status, IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(end.node.wait_completion().status, IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(end.failing.query_state(), IBV_QPS_ERR);
      EXPECT_FALSE(ask(socket, Verb::kHasReceived));
      EXPECT_TRUE(ask(socket, Verb::kHoldsOnly));
    });
  }
}

TEST_F(WireGpuTest, RefusedAtTheRespondersTarget) {
  refuse_in_pair(Kind::kPageable, Kind::kDevice, [&](int socket, End& end, RemoteMemory far, int allowed) {
    EXPECT_TRUE(ask(socket, Verb::kClear));
    EXPECT_TRUE(ask(socket, Verb::kRefuse, allowed));
    ASSERT_EQ(end.make(IBV_WR_RDMA_WRITE, far).post(end.failing), 0);
    EXPECT_EQ(end.node.wait_completion().status, IBV_WC_REM_OP_ERR);
    EXPECT_TRUE(ask(socket, Verb::kHasFailed));
    EXPECT_TRUE(ask(socket, Verb::kHoldsOnly));
  });
}

TEST_F(WireGpuTest, RefusedAtTheRespondersSource) {
  refuse_in_pair(Kind::kPageable, Kind::kDevice, [&](int socket, End& end, RemoteMemory far, int allowed) {
    end.side.memory.clear();
    EXPECT_TRUE(ask(socket, Verb::kRefuse, allowed));
    ASSERT_EQ(end.make(IBV_WR_RDMA_READ, far).post(end.failing), 0);
    EXPECT_EQ(end.node.wait_completion().status, IBV_WC_REM_OP_ERR);
    EXPECT_TRUE(ask(socket, Verb::kHasFailed));
    EXPECT_TRUE(end.side.memory.holds_only(kSeed));
  });
}

TEST_F(WireGpuTest, RefusedAtTheRequestersTarget) {
  refuse_in_pair(Kind::kDevice, Kind::kPageable, [&](int, End& end, RemoteMemory far, int allowed) {
    end.side.memory.clear();
    refuse_copies_after(allowed);
    ASSERT_EQ(end.make(IBV_WR_RDMA_READ, far).post(end.failing), 0);
    EXPECT_EQ(end.node.wait_completion().status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(end.failing.query_state(), IBV_QPS_ERR);
    EXPECT_TRUE(end.side.memory.holds_only(kSeed));
  });
}

}  // namespace
}  // namespace verbena::softverbs_test
