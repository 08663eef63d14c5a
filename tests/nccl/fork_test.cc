// A forked child of a process that has connections: it can use none of them, and does the parent no harm.
#include "base/child.h"
#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

constexpr size_t kBytes = 1 << 20;

using ForkTest = LiveTest<NewestVersion>;

// Whether what the child finds is true.
template <typename Find>
bool ask_child(Find&& find) {
  return base::run_child([&] { return find() ? 0 : 1; }) == 0;
}

TEST_F(ForkTest, InheritedConnectionsAreTheParents) {
  ASSERT_GT(start(), 0);
  LiveConnection<NewestVersion>* c = establish();
  ASSERT_STREQ(c->transfer(kBytes, 0, 0), nullptr);
  void* const open = c->receive(kBytes);
  ASSERT_NE(open, nullptr);
  const auto& net = *net_;
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(ask_child([&] {
      void *request = nullptr, *context = nullptr, *data = c->received.bytes.data(), *mhandle = nullptr;
      size_t size = kBytes;
      int done = 0, tag = 0, devices = 0, sizes[abi::kMaxTestSizes] = {};
      return net.isend(c->send_comm, c->sent.bytes.data(), kBytes, 0, c->sent.mhandle, &request) !=
                 abi::kSuccess &&
             net.irecv(c->recv_comm, 1, &data, &size, &tag, &c->received.mhandle, &request) !=
                 abi::kSuccess &&
             net->test(open, &done, sizes) != abi::kSuccess &&
             net.reg_mr(c->recv_comm, data, kBytes, abi::kPtrHost, &mhandle) != abi::kSuccess &&
             net->dereg_mr(c->recv_comm, c->received.mhandle) != abi::kSuccess &&
             net->close_send(c->send_comm) != abi::kSuccess &&
             net->close_recv(c->recv_comm) != abi::kSuccess && net->devices(&devices) != abi::kSuccess &&
             net.init(&context, 1, abi::kUndefined, &LogCapture::write) != abi::kSuccess &&
             net.finalize(context_) != abi::kSuccess;
    }));
  }
  void* const sent = c->send(kBytes);
  int sizes[abi::kMaxTestSizes] = {};
  EXPECT_TRUE(c->wait(open, sizes));
  EXPECT_TRUE(c->wait(sent, sizes));
  EXPECT_EQ((*net_)->irecv_consumed(c->recv_comm, 1, open), abi::kSuccess);
}

TEST_F(ForkTest, AParentThatIsDoneLeavesNothingToInherit) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "softverbs' threads last, and TSAN starts none in a child of a process that has any";
#endif
  ASSERT_GT(start(), 0);
  ASSERT_NE(establish(), nullptr);
  connections_.clear();
  ASSERT_EQ(net_->finalize(context_), abi::kSuccess);
  is_up_ = false;
  EXPECT_TRUE(ask_child([&] {
    if (start() == 0) return false;
    LiveConnection<NewestVersion>* c = establish();
    return c != nullptr && c->transfer(kBytes, 0, 0) == nullptr;
  }));
}

}  // namespace
}  // namespace verbena::nccl::testing
