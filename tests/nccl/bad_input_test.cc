// What users and broken callers do wrong, on the built plugin: one clear line and the right result each, and
// after it everything else still works.
#include <sys/mman.h>

#include <climits>
#include <cstring>
#include <utility>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class BadInputTest : public LiveTest<NewestVersion> {
 protected:
  // One warning since the last look, with all of `parts` in it.
  void expect_one_line(const std::vector<std::string>& parts) {
    const std::vector<std::string> warnings = LogCapture::get().take_warnings();
    ASSERT_EQ(warnings.size(), 1u) << ::testing::PrintToString(warnings);
    EXPECT_TRUE(warnings[0].starts_with("verbena: ")) << warnings[0];
    EXPECT_FALSE(contains(warnings[0], "\n"));
    for (const std::string& part : parts)
      EXPECT_TRUE(contains(warnings[0], part)) << warnings[0] << "\nlacks " << part;
  }
  // NCCL asks for devices only when init succeeded; whichever finds the problem counts.
  abi::Result start_badly() {
    int count = 0;
    const abi::Result result = net_->init(&context_, 1, abi::kUndefined, &LogCapture::write);
    if (result != abi::kSuccess) {
      EXPECT_EQ((*net_)->finalize(context_), abi::kSuccess);  // NCCL 2.28 does this after a failed init
      return result;
    }
    is_up_ = true;
    return (*net_)->devices(&count);
  }
  void expect_recovery() {
    environment_.set("VERBENA_IBVERBS_LIB", "softverbs");
    if (is_up_) {
      EXPECT_EQ((*net_)->finalize(context_), abi::kSuccess);
    }
    auto* connection = start_connected();
    EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
  }
  LiveConnection<NewestVersion>* start_connection() {
    EXPECT_EQ(start(), 2);
    auto* connection = establish();
    LogCapture::get().take_lines();
    return connection;
  }
  // test() reports lengths as int.
  void expect_long_ones_refused() {
    auto* connection = start_connection();
    constexpr size_t kTooLong = size_t{INT_MAX} + 1, kMappedBytes = 2 * kTooLong + 4096;
    void* memory = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    for (void* const comm : {connection->send_comm, connection->recv_comm}) {
      const bool is_send = comm == connection->send_comm;
      void* mhandle = nullptr;
      ASSERT_EQ((*net_)->reg_mr(comm, memory, kMappedBytes, abi::kPtrHost, &mhandle), abi::kSuccess);
      for (const size_t length : {kTooLong, 2 * kTooLong, 2 * kTooLong + 8}) {
        void* request = this;
        int tag = 0;
        EXPECT_EQ(is_send ? net_->isend(comm, memory, length, 0, mhandle, &request)
                          : net_->irecv(comm, 1, &memory, &length, &tag, &mhandle, &request),
                  abi::kInvalidArgument)
            << length;
        EXPECT_EQ(request, nullptr);
        expect_one_line(
            {is_send ? "isend" : "irecv", std::to_string(length), "The maximum is 2147483647 bytes"});
      }
      EXPECT_EQ((*net_)->dereg_mr(comm, mhandle), abi::kSuccess);
    }
    EXPECT_EQ(munmap(memory, kMappedBytes), 0);
    EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
  }
};

TEST_F(BadInputTest, UnknownParameterIsAWarning) {
  environment_.set("VERBENA_UNPAK", "1");
  EXPECT_EQ(start(), 2);
  expect_one_line({"VERBENA_UNPAK", "VERBENA_UNPACK"});
}

TEST_F(BadInputTest, ParameterOutOfRange) {
  environment_.set("VERBENA_QPS_PER_CONNECTION", "99");
  EXPECT_EQ(start_badly(), abi::kInvalidUsage);
  expect_one_line({"VERBENA_QPS_PER_CONNECTION", "99", "1", "8"});
  environment_.unset("VERBENA_QPS_PER_CONNECTION");
  expect_recovery();
}

TEST_F(BadInputTest, ParameterThatIsNotANumber) {
  environment_.set("VERBENA_UNPACK_THRESHOLD", "12z");
  EXPECT_EQ(start_badly(), abi::kInvalidUsage);
  expect_one_line({"VERBENA_UNPACK_THRESHOLD", "12z"});
  environment_.unset("VERBENA_UNPACK_THRESHOLD");
  expect_recovery();
}

TEST_F(BadInputTest, NoDeviceMatches) {
  environment_.set("VERBENA_HCA", "mlx9_9");
  EXPECT_EQ(start_badly(), abi::kInvalidUsage);
  expect_one_line({"VERBENA_HCA", "mlx9_9", "soft"});
  environment_.unset("VERBENA_HCA");
  expect_recovery();
}

TEST_F(BadInputTest, MissingVerbsLibrary) {
  environment_.set("VERBENA_IBVERBS_LIB", "/nowhere/libibverbs.so.1");
  EXPECT_EQ(start_badly(), abi::kSystemError);
  expect_one_line({"/nowhere/libibverbs.so.1"});
  expect_recovery();
}

TEST_F(BadInputTest, DeviceThatDoesNotExist) {
  ASSERT_EQ(start(), 2);
  LogCapture::get().take_lines();
  abi::ncclNetProperties_v12_t properties{};
  char handle[abi::kHandleBytes] = {};
  void* comm = this;
  for (const int device : {2, -1, 1 << 20}) {
    const std::string number = std::to_string(device);
    EXPECT_EQ((*net_)->get_properties(device, &properties), abi::kInvalidArgument);
    expect_one_line({number});
    EXPECT_EQ(net_->listen(context_, device, handle, &comm), abi::kInvalidArgument);
    EXPECT_EQ(comm, nullptr);
    expect_one_line({number});
    EXPECT_EQ(net_->connect(context_, device, abi::kUndefined, handle, &comm, nullptr),
              abi::kInvalidArgument);
    expect_one_line({number});
  }
}

// NCCL would find no place for the joined device; told no, it uses both.
TEST_F(BadInputTest, DevicesOffThePciBusStayApartUnlessAsked) {
  for (const char* setting : {"0", "2"}) {
    environment_.set("VERBENA_MERGE_NICS", setting);
    ASSERT_EQ(start(), 2);
    LogCapture::get().take_lines();
    int joined = -1, count = 0;
    abi::ncclNetVDeviceProps_v12_t members{2, {0, 1}};
    EXPECT_EQ((*net_)->make_vdevice(&joined, &members), abi::kInvalidUsage) << setting;
    EXPECT_TRUE(LogCapture::get().take_warnings().empty());
    EXPECT_EQ((*net_)->devices(&count), abi::kSuccess);
    EXPECT_EQ(count, 2);
    ASSERT_EQ(net_->finalize(std::exchange(context_, nullptr)), abi::kSuccess);
  }
}

// NCCL 2.25 asks for it whatever the device, and takes a refusal for an error.
TEST_F(BadInputTest, ADeviceAloneBecomesAVirtualDevice) {
  environment_.set("VERBENA_MERGE_NICS", "2");
  ASSERT_EQ(start(), 2);
  int alone = -1, count = 0;
  abi::ncclNetVDeviceProps_v12_t members{1, {1}};
  EXPECT_EQ((*net_)->make_vdevice(&alone, &members), abi::kSuccess);
  EXPECT_EQ(alone, 2);
  EXPECT_EQ((*net_)->devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 3);
  abi::ncclNetProperties_v12_t properties{};
  ASSERT_EQ((*net_)->get_properties(alone, &properties), abi::kSuccess);
  EXPECT_EQ(properties.vprops.ndevs, 1);
  EXPECT_EQ(properties.vprops.devs[0], 1);
}

TEST_F(BadInputTest, VirtualDeviceOfNonsense) {
  ASSERT_EQ(start(), 2);
  LogCapture::get().take_lines();
  for (const abi::ncclNetVDeviceProps_v12_t& members :
       {abi::ncclNetVDeviceProps_v12_t{2, {0, 7}}, abi::ncclNetVDeviceProps_v12_t{2, {-1, 0}},
        abi::ncclNetVDeviceProps_v12_t{2, {1, 1}}}) {
    int joined = -1, count = 0;
    abi::ncclNetVDeviceProps_v12_t copy = members;
    EXPECT_EQ((*net_)->make_vdevice(&joined, &copy), abi::kInvalidArgument);
    expect_one_line({});
    EXPECT_EQ((*net_)->devices(&count), abi::kSuccess);
    EXPECT_EQ(count, 2);
  }
}

TEST_F(BadInputTest, ForeignHandle) {
  ASSERT_EQ(start(), 2);
  LogCapture::get().take_lines();
  char handle[abi::kHandleBytes];
  std::memset(handle, 0x5a, sizeof handle);
  void* comm = this;
  EXPECT_EQ(net_->connect(context_, 0, abi::kUndefined, handle, &comm, nullptr), abi::kInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  expect_one_line({"handle"});
}

TEST_F(BadInputTest, TruncatedHandle) {
  ASSERT_EQ(start(), 2);
  char handle[abi::kHandleBytes] = {};
  void *listen_comm = nullptr, *comm = nullptr;
  ASSERT_EQ(net_->listen(context_, 0, handle, &listen_comm), abi::kSuccess);
  LogCapture::get().take_lines();
  for (const size_t kept : {0, 4, 8, 16, 24}) {
    char cut[abi::kHandleBytes] = {};
    std::memcpy(cut, handle, kept);
    EXPECT_EQ(net_->connect(context_, 0, abi::kUndefined, cut, &comm, nullptr), abi::kInvalidArgument)
        << kept;
    EXPECT_EQ(comm, nullptr);
    expect_one_line({"handle"});
  }
  EXPECT_EQ((*net_)->close_listen(listen_comm), abi::kSuccess);
}

TEST_F(BadInputTest, ReceiveOfOtherThanOne) {
  auto* connection = start_connection();
  void* data[2] = {connection->received.bytes.data(), connection->received.bytes.data() + 4096};
  void* mhandles[2] = {connection->received.mhandle, connection->received.mhandle};
  size_t sizes[2] = {64, 64};
  int tags[2] = {};
  for (const int n : {0, 2, -1}) {
    void* request = this;
    const abi::Result result =
        (*net_)->irecv(connection->recv_comm, n, data, sizes, tags, mhandles, nullptr, &request);
    EXPECT_TRUE(result == abi::kInvalidUsage || result == abi::kInvalidArgument) << result;
    EXPECT_EQ(request, nullptr);
    expect_one_line({"irecv", std::to_string(n)});
  }
  EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
}

TEST_F(BadInputTest, NullCommunicators) {
  auto* connection = start_connection();
  void *request = this, *data = connection->received.bytes.data(), *mhandle = connection->received.mhandle;
  const size_t size = 64;
  int tag = 0;
  EXPECT_EQ(net_->isend(nullptr, data, 64, 0, mhandle, &request), abi::kInvalidArgument);
  EXPECT_EQ(request, nullptr);
  expect_one_line({"isend", "sendComm", "NULL"});
  EXPECT_EQ(net_->irecv(nullptr, 1, &data, &size, &tag, &mhandle, &request), abi::kInvalidArgument);
  expect_one_line({"irecv", "recvComm", "NULL"});
  EXPECT_EQ(net_->reg_mr(nullptr, data, 64, abi::kPtrHost, &request), abi::kInvalidArgument);
  expect_one_line({"regMr", "comm", "NULL"});
  EXPECT_EQ((*net_)->close_recv(nullptr), abi::kInvalidArgument);
  expect_one_line({"closeRecv", "NULL"});
  EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
}

TEST_F(BadInputTest, RegistrationThatFails) {
  auto* connection = start_connection();
  // Kept, so that no other memory is allocated at this address.
  void* const hole = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  for (void* comm : {connection->send_comm, connection->recv_comm}) {
    void* mhandle = this;
    EXPECT_EQ(net_->reg_mr(comm, hole, 8192, abi::kPtrHost, &mhandle), abi::kSystemError);
    EXPECT_EQ(mhandle, nullptr);
    expect_one_line({"8192 bytes"});
    EXPECT_EQ(net_->reg_mr(comm, connection->sent.bytes.data(), 64, 77, &mhandle), abi::kInvalidArgument);
    EXPECT_EQ(mhandle, nullptr);
    expect_one_line({"77"});
  }
  EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
  EXPECT_EQ(munmap(hole, 8192), 0);
}

TEST_F(BadInputTest, BytesOutsideTheRegistration) {
  auto* connection = start_connection();
  LiveBuffer small(4096);
  ASSERT_TRUE(connection->add_registration(connection->send_comm, small));
  void* request = this;
  EXPECT_EQ(net_->isend(connection->send_comm, small.bytes.data(), 4097, 0, small.mhandle, &request),
            abi::kInvalidArgument);
  EXPECT_EQ(request, nullptr);
  expect_one_line({"isend", "4097"});
  void* data = connection->received.bytes.data() - 1;
  void* mhandle = connection->received.mhandle;
  const size_t size = 64;
  int tag = 0;
  EXPECT_EQ(net_->irecv(connection->recv_comm, 1, &data, &size, &tag, &mhandle, &request),
            abi::kInvalidArgument);
  expect_one_line({"irecv", "64"});
  EXPECT_EQ((*net_)->dereg_mr(connection->send_comm, small.mhandle), abi::kSuccess);
  EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
}

TEST_F(BadInputTest, MessagesTooLongToBeReported) {
  expect_long_ones_refused();
}
TEST_F(BadInputTest, DatagramsTooLongToBeReported) {
  environment_.set("VERBENA_TRANSPORT", "datagram");
  expect_long_ones_refused();
}

TEST_F(BadInputTest, MessageLongerThanItsReceive) {
  auto* connection = start_connection();
  void* receive = connection->receive(100);
  void* send = connection->send(4096);
  ASSERT_TRUE(receive != nullptr && send != nullptr);
  EXPECT_FALSE(connection->wait(receive, nullptr));
  EXPECT_EQ(connection->result, abi::kInvalidUsage);
  expect_one_line({"4096", "100"});
}

}  // namespace
}  // namespace verbena::nccl::testing
