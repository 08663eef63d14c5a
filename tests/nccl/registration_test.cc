// Memory that several communicators registered: each has its own mhandle, and the device has one region.
#include <algorithm>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

class RegistrationTest : public LiveTest<NewestVersion> {
 protected:
  using Connection = LiveConnection<NewestVersion>;

  void* register_again(void* comm, const LiveBuffer& buffer) {
    void* mhandle = nullptr;
    EXPECT_EQ(net_->reg_mr(comm, buffer.bytes.data(), buffer.bytes.size(), abi::kPtrHost, &mhandle),
              abi::kSuccess);
    return mhandle;
  }
  // Both ends of the connection have done with one message from `sent` to `received`.
  void expect_transfer(Connection& connection) { EXPECT_EQ(connection.transfer(1 << 20, 0, 0), nullptr); }
};

TEST_F(RegistrationTest, AnMhandleIsOfOneCommunicator) {
  ASSERT_EQ(start(), 2);
  Connection *first = establish(), *second = establish();
  void* mhandle = register_again(second->send_comm, first->sent);
  ASSERT_NE(mhandle, nullptr);
  EXPECT_NE(mhandle, first->sent.mhandle);
  LogCapture::get().take_lines();
  EXPECT_EQ((*net_)->dereg_mr(first->send_comm, mhandle), abi::kInvalidArgument);
  EXPECT_EQ((*net_)->dereg_mr(second->send_comm, first->sent.mhandle), abi::kInvalidArgument);
  const std::vector<std::string> warnings = LogCapture::get().take_warnings();
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("not a memory registration of this communicator"), std::string::npos)
      << warnings[0];
  EXPECT_EQ((*net_)->dereg_mr(second->send_comm, mhandle), abi::kSuccess);
  EXPECT_EQ((*net_)->dereg_mr(second->send_comm, mhandle), abi::kInvalidArgument) << "twice";
  expect_transfer(*first);
}

// The first user closes, with its communicators; the messages of the others continue.
TEST_F(RegistrationTest, SharedMemoryStaysForWhoIsLeft) {
  ASSERT_EQ(start(), 2);
  Connection *first = establish(), *second = establish();
  void *source = register_again(second->send_comm, first->sent),
       *target = register_again(second->recv_comm, first->received);
  expect_transfer(*first);
  EXPECT_TRUE(first->close());
  void* receive = second->receive(first->received.bytes, target, Protocol::kLl);  // direct: by its key
  void* send = second->send(first->sent.bytes, source);
  ASSERT_TRUE(receive != nullptr && send != nullptr);
  int size = 0;
  EXPECT_TRUE(second->wait(send, nullptr));
  EXPECT_TRUE(second->wait(receive, &size));
  EXPECT_EQ(size, static_cast<int>(Connection::kBufferBytes));
  EXPECT_TRUE(std::ranges::equal(first->sent.bytes, first->received.bytes));
  EXPECT_EQ((*net_)->dereg_mr(second->send_comm, source), abi::kSuccess);
  EXPECT_EQ((*net_)->dereg_mr(second->recv_comm, target), abi::kSuccess);
}

}  // namespace
}  // namespace verbena::nccl::testing
