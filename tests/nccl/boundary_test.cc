// Null arguments, the mapping of errors, exceptions, and the way of log lines to NCCL.
#include <new>
#include <stdexcept>

#include "base/log.h"
#include "nccl/adapters_fixture.h"
#include "nccl/logger_adapter.h"

namespace verbena::nccl::testing {
namespace {

template <typename V>
class NullArgumentTest : public AdaptersTest<V> {
 protected:
  // One warning, naming entry and argument, and the core not called.
  void expect_refused(abi::Result result, const std::string& entry, const std::string& argument) {
    EXPECT_EQ(result, abi::kInvalidArgument) << entry << ' ' << argument;
    const std::vector<std::string> warnings = LogCapture::get().take_warnings();
    ASSERT_EQ(warnings.size(), 1u) << entry << ' ' << argument;
    EXPECT_EQ(warnings[0], "verbena: " + entry + ": invalid argument: " + argument + " is NULL");
    EXPECT_TRUE(fake_core().calls.empty()) << fake_core().calls.back();
  }
  void SetUp() override {
    AdaptersTest<V>::SetUp();
    fake_core().calls.clear();
  }
};
TYPED_TEST_SUITE(NullArgumentTest, AllVersions, VersionNames);

TYPED_TEST(NullArgumentTest, Control) {
  auto& net = this->net_;
  void* comm = &this->comm_;
  void* made = nullptr;
  this->expect_refused(net->devices(nullptr), "devices", "ndev");
  this->expect_refused(net->get_properties(0, nullptr), "getProperties", "props");
  this->expect_refused(net.listen(nullptr, 0, nullptr, &made), "listen", "handle");
  this->expect_refused(net.listen(nullptr, 0, this->handle_, nullptr), "listen", "listenComm");
  this->expect_refused(net.connect(nullptr, 0, -1, nullptr, &made, nullptr), "connect", "handle");
  this->expect_refused(net.connect(nullptr, 0, -1, this->handle_, nullptr, nullptr), "connect", "sendComm");
  this->expect_refused(net->accept(nullptr, &made, nullptr), "accept", "listenComm");
  this->expect_refused(net->accept(comm, nullptr, nullptr), "accept", "recvComm");
  this->expect_refused(net->close_send(nullptr), "closeSend", "sendComm");
  this->expect_refused(net->close_recv(nullptr), "closeRecv", "recvComm");
  this->expect_refused(net->close_listen(nullptr), "closeListen", "listenComm");
  if constexpr (TypeParam::kHasContext) {
    this->expect_refused(net.init(nullptr, 0, -1, &LogCapture::write), "init", "ctx");
    this->expect_refused(net->set_net_attr(nullptr, nullptr), "setNetAttr", "netAttr");
  }
  if constexpr (TypeParam::kHasVDevice) {
    int device = 0;
    decltype(typename TypeParam::Properties{}.vprops) members{};
    this->expect_refused(net->make_vdevice(nullptr, &members), "makeVDevice", "d");
    this->expect_refused(net->make_vdevice(&device, nullptr), "makeVDevice", "props");
  }
}

TYPED_TEST(NullArgumentTest, Memory) {
  auto& net = this->net_;
  void *comm = &this->comm_, *made = nullptr;
  this->expect_refused(net.reg_mr(nullptr, &this->data_, 1, abi::kPtrHost, &made), "regMr", "comm");
  this->expect_refused(net.reg_mr(comm, &this->data_, 1, abi::kPtrHost, nullptr), "regMr", "mhandle");
  this->expect_refused(net->reg_mr_dmabuf(nullptr, &this->data_, 1, abi::kPtrCuda, 0, 3, &made),
                       "regMrDmaBuf", "comm");
  this->expect_refused(net->reg_mr_dmabuf(comm, &this->data_, 1, abi::kPtrCuda, 0, 3, nullptr), "regMrDmaBuf",
                       "mhandle");
  this->expect_refused(net->dereg_mr(nullptr, &this->mhandle_), "deregMr", "comm");
  this->expect_refused(net->dereg_mr(comm, nullptr), "deregMr", "mhandle");
  this->expect_refused(net->get_device_mr(nullptr, &this->mhandle_, &made), "getDeviceMr", "comm");
  this->expect_refused(net->get_device_mr(comm, &this->mhandle_, nullptr), "getDeviceMr", "dptr_mhandle");
}

TYPED_TEST(NullArgumentTest, Data) {
  auto& net = this->net_;
  void *comm = &this->comm_, *data = &this->data_, *mhandle = &this->mhandle_, *request = nullptr,
       *none = nullptr;
  const size_t size = 8;
  int tag = 0, done = 0, flush_size = 8;
  this->expect_refused(net.isend(nullptr, data, size, 0, mhandle, &request), "isend", "sendComm");
  this->expect_refused(net.isend(comm, data, size, 0, nullptr, &request), "isend", "mhandle");
  this->expect_refused(net.isend(comm, data, size, 0, mhandle, nullptr), "isend", "request");
  this->expect_refused(net.irecv(nullptr, 1, &data, &size, &tag, &mhandle, &request), "irecv", "recvComm");
  this->expect_refused(net.irecv(comm, 1, nullptr, &size, &tag, &mhandle, &request), "irecv", "data");
  this->expect_refused(net.irecv(comm, 1, &data, nullptr, &tag, &mhandle, &request), "irecv", "sizes");
  this->expect_refused(net.irecv(comm, 1, &data, &size, &tag, nullptr, &request), "irecv", "mhandles");
  this->expect_refused(net.irecv(comm, 1, &data, &size, &tag, &none, &request), "irecv", "mhandles[0]");
  this->expect_refused(net.irecv(comm, 1, &data, &size, &tag, &mhandle, nullptr), "irecv", "request");
  this->expect_refused(net->iflush(nullptr, 1, &data, &flush_size, &mhandle, &request), "iflush", "recvComm");
  this->expect_refused(net->iflush(comm, 1, nullptr, &flush_size, &mhandle, &request), "iflush", "data");
  this->expect_refused(net->iflush(comm, 1, &data, nullptr, &mhandle, &request), "iflush", "sizes");
  this->expect_refused(net->iflush(comm, 1, &data, &flush_size, nullptr, &request), "iflush", "mhandles");
  this->expect_refused(net->iflush(comm, 1, &data, &flush_size, &mhandle, nullptr), "iflush", "request");
  this->expect_refused(net->test(nullptr, &done, nullptr), "test", "request");
  this->expect_refused(net->test(comm, nullptr, nullptr), "test", "done");
  this->expect_refused(net->irecv_consumed(nullptr, 1, &this->request_), "irecvConsumed", "recvComm");
  this->expect_refused(net->irecv_consumed(comm, 1, nullptr), "irecvConsumed", "request");
}

using BoundaryTest = AdaptersTest<Version<12, abi::ncclNet_v12_t>>;

TEST_F(BoundaryTest, EveryStatusHasItsResult) {
  using base::Status;
  const std::pair<Status, abi::Result> expected[] = {
      {Status::kCuda, abi::kUnhandledCudaError},   {Status::kSystem, abi::kSystemError},
      {Status::kInternal, abi::kInternalError},    {Status::kInvalidArgument, abi::kInvalidArgument},
      {Status::kInvalidUsage, abi::kInvalidUsage}, {Status::kRemote, abi::kRemoteError},
      {Status::kTimeout, abi::kRemoteError},
  };
  for (const auto& [status, result] : expected) {
    fake_core().answer = [status = status] { return base::Error{status}; };
    EXPECT_EQ(net_->close_send(&comm_), result);
  }
  EXPECT_TRUE(LogCapture::get().take_lines().empty());  // the core logged where it found them
}

TEST_F(BoundaryTest, ExceptionsStopHereWithOneLineEach) {
  int done = 9;
  fake_core().answer = []() -> Outcome { throw std::bad_alloc(); };
  EXPECT_EQ(net_->test(&request_, &done, nullptr), abi::kSystemError);
  EXPECT_EQ(done, 0);
  fake_core().answer = []() -> Outcome { throw std::runtime_error("broken"); };
  EXPECT_EQ(net_->close_recv(&comm_), abi::kInternalError);
  fake_core().answer = []() -> Outcome { throw 5; };
  EXPECT_EQ(net_->close_listen(&comm_), abi::kInternalError);
  EXPECT_EQ(LogCapture::get().take_warnings(),
            (std::vector<std::string>{"verbena: test: out of host memory",
                                      "verbena: closeRecv: unexpected exception: broken",
                                      "verbena: closeListen: unexpected exception of an unknown type"}));
}

TEST_F(BoundaryTest, LinesCarryNcclsLevelAndSubsystem) {
  base::log_warn("w %d", 1);
  base::log_info("i %s", "100%s");
  base::log_trace("t");
  const std::vector<LogLine> lines = LogCapture::get().take_lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].level, abi::kLogWarn);
  EXPECT_EQ(lines[0].flags, abi::kSubsystemAll);
  EXPECT_EQ(lines[0].text, "verbena: w 1");
  EXPECT_EQ(lines[1].level, abi::kLogInfo);
  EXPECT_EQ(lines[1].flags, abi::kSubsystemInit | abi::kSubsystemNet);
  EXPECT_EQ(lines[1].text, "verbena: i 100%s");  // a line is never a format
  EXPECT_EQ(lines[2].level, abi::kLogTrace);
}

TEST_F(BoundaryTest, WithoutALoggerLinesGoToStderr) {
  attach_logger(nullptr);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(net_->close_send(nullptr), abi::kInvalidArgument);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "verbena: closeSend: invalid argument: sendComm is NULL\n");
  EXPECT_TRUE(LogCapture::get().take_lines().empty());
}

}  // namespace
}  // namespace verbena::nccl::testing
