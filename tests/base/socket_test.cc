#include "base/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <numeric>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/parameters.h"
#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"

namespace verbena::base {
namespace {

constexpr int64_t kTestTimeoutMs = 10'000;

SocketAddress loopback(IpFamily family) {
  SocketAddress address{.family = family};
  if (family == IpFamily::kV4) {
    address.bytes[0] = 127;
    address.bytes[3] = 1;
  } else {
    address.bytes[15] = 1;
  }
  return address;
}

// Asks again until the answer is neither "not now" nor too late.
template <typename Ask>
bool becomes_true(Ask ask) {
  const Deadline deadline = Deadline::after_ms(kTestTimeoutMs);
  while (!deadline.has_passed()) {
    if (ask()) return true;
  }
  return false;
}

struct Pair {
  Socket client;
  Socket server;
};

Pair connect_pair(Listener& listener) {
  Pair pair;
  auto client = Socket::start_connect(listener.address());
  EXPECT_TRUE(client);
  pair.client = *std::move(client);
  EXPECT_TRUE(becomes_true([&] {
    auto accepted = listener.accept();
    if (accepted && *accepted) pair.server = std::move(**accepted);
    return static_cast<bool>(pair.server);
  }));
  EXPECT_TRUE(becomes_true([&] {
    const auto connected = pair.client.finish_connect();
    return connected && *connected;
  }));
  return pair;
}

class SocketTest : public ::testing::TestWithParam<IpFamily> {
 protected:
  void SetUp() override {
    auto listener = [] {
      const LogCapture quiet;
      return Listener::open_at(loopback(GetParam()));
    }();
    if (!listener && GetParam() == IpFamily::kV6) GTEST_SKIP() << "no IPv6 on this machine";
    ASSERT_TRUE(listener);
    listener_ = *std::move(listener);
  }
  Listener listener_;
};

TEST_P(SocketTest, ListenerHasAPortAndNobodyWaiting) {
  EXPECT_NE(listener_.address().port, 0);
  auto accepted = listener_.accept();
  ASSERT_TRUE(accepted);
  EXPECT_FALSE(*accepted);
}

// A flood of callers, or many connections: whoever knocks waits, and nothing has failed.
TEST_P(SocketTest, WithoutADescriptorLeftAcceptingIsForLater) {
  const LogCapture log;
  auto client = Socket::start_connect(listener_.address());
  ASSERT_TRUE(client);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none_left = before;
  none_left.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  EXPECT_TRUE(becomes_true([&] {
    const auto accepted = listener_.accept();
    return !accepted || *accepted || !log.warnings().empty();
  }));
  const auto again = listener_.accept();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(again);
  EXPECT_FALSE(*again);
  ASSERT_EQ(log.warnings().size(), 1U);
  EXPECT_NE(log.warnings()[0].find("ulimit -n"), std::string::npos) << log.warnings()[0];
  EXPECT_TRUE(becomes_true([&] {
    const auto accepted = listener_.accept();
    return accepted && *accepted;
  }));
}

TEST_P(SocketTest, SocketsNeitherBlockNorDelayNorAreInherited) {
  const Pair pair = connect_pair(listener_);
  for (const int fd : {pair.client.fd(), pair.server.fd(), listener_.fd()}) {
    EXPECT_TRUE(fcntl(fd, F_GETFL) & O_NONBLOCK);
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  }
  for (const int fd : {pair.client.fd(), pair.server.fd()}) {
    int no_delay = 0;
    socklen_t length = sizeof no_delay;
    ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length), 0);
    EXPECT_TRUE(no_delay);
  }
}

// More than the kernel buffers: both sides see "not now" on the way.
TEST_P(SocketTest, MovesABulkMessageInSteps) {
  Pair pair = connect_pair(listener_);
  std::vector<uint32_t> sent(8 << 20), received(sent.size());
  std::iota(sent.begin(), sent.end(), 1u);
  const size_t length_bytes = sent.size() * sizeof(uint32_t);
  size_t sent_bytes = 0, received_bytes = 0;
  ASSERT_FALSE(*pair.client.send_all(sent.data(), length_bytes, sent_bytes));
  EXPECT_GT(sent_bytes, 0u);
  EXPECT_LT(sent_bytes, length_bytes);
  EXPECT_TRUE(becomes_true([&] {
    const auto out = pair.client.send_all(sent.data(), length_bytes, sent_bytes);
    const auto in = pair.server.receive_exact(received.data(), length_bytes, received_bytes);
    return out && in && *out && *in;
  }));
  EXPECT_EQ(sent, received);
}

TEST_P(SocketTest, ReceiveIsNotReadyBeforeDataComes) {
  Pair pair = connect_pair(listener_);
  char byte = 0;
  size_t offset = 0;
  const auto result = pair.server.receive_exact(&byte, 1, offset);
  ASSERT_TRUE(result);
  EXPECT_FALSE(*result);
  EXPECT_FALSE(pair.server.is_peer_closed());
}

TEST_P(SocketTest, NothingIsCompleteAtOnce) {
  Pair pair = connect_pair(listener_);
  size_t offset = 0;
  EXPECT_TRUE(*pair.client.send_all(nullptr, 0, offset));
  EXPECT_TRUE(*pair.server.receive_exact(nullptr, 0, offset));
}

TEST_P(SocketTest, DeliversWhatWasSentBeforeThePeerClosed) {
  Pair pair = connect_pair(listener_);
  size_t sent_bytes = 0;
  ASSERT_TRUE(*pair.client.send_all("abc", 3, sent_bytes));
  pair.client = Socket();
  EXPECT_TRUE(becomes_true([&] { return pair.server.is_peer_closed(); })) << "although data is unread";
  char data[4] = {};
  size_t received_bytes = 0;
  EXPECT_TRUE(becomes_true([&] { return *pair.server.receive_exact(data, 3, received_bytes); }));
  EXPECT_STREQ(data, "abc");
}

TEST_P(SocketTest, ReportsAPeerThatClosedInTheMiddle) {
  Pair pair = connect_pair(listener_);
  size_t sent_bytes = 0;
  ASSERT_TRUE(*pair.client.send_all("abc", 3, sent_bytes));
  pair.client = Socket();
  const LogCapture capture;
  char data[8];
  size_t received_bytes = 0;
  Status status = Status::kOk;
  EXPECT_TRUE(becomes_true([&] {
    const auto result = pair.server.receive_exact(data, sizeof data, received_bytes);
    if (!result) status = result.error().status;
    return !result;
  }));
  EXPECT_EQ(status, Status::kRemote);
  EXPECT_EQ(received_bytes, 3u);
  ASSERT_EQ(capture.warnings().size(), 1u);
  EXPECT_NE(capture.warnings()[0].find("the peer closed the connection (3 of 8 bytes received)"),
            std::string::npos);
}

TEST_P(SocketTest, SendingToAClosedPeerIsAnErrorNotASignal) {
  Pair pair = connect_pair(listener_);
  pair.server = Socket();
  const LogCapture capture;
  EXPECT_TRUE(becomes_true([&] {
    size_t sent_bytes = 0;
    const auto result = pair.client.send_all("abc", 3, sent_bytes);
    return !result && result.error().status == Status::kRemote;
  }));
  EXPECT_TRUE(pair.client.is_peer_closed());
}

TEST_P(SocketTest, ConnectingToNobodyFails) {
  const SocketAddress nobody = listener_.address();
  listener_ = Listener();
  const LogCapture capture;
  auto client = Socket::start_connect(nobody);
  if (!client) {
    EXPECT_EQ(client.error().status, Status::kRemote);
    return;
  }
  EXPECT_TRUE(becomes_true([&] {
    const auto connected = client->finish_connect();
    return !connected && connected.error().status == Status::kRemote;
  }));
  EXPECT_EQ(capture.warnings().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Families, SocketTest, ::testing::Values(IpFamily::kV4, IpFamily::kV6),
                         [](const auto& param) { return param.param == IpFamily::kV4 ? "IPv4" : "IPv6"; });

TEST(Socket, RefusesAHandleWithoutAddress) {
  const LogCapture capture;
  SocketAddress foreign;
  foreign.family = static_cast<IpFamily>(0x1234);
  EXPECT_EQ(Socket::start_connect(foreign).error().status, Status::kInvalidArgument);
  EXPECT_EQ(Listener::open_at(SocketAddress()).error().status, Status::kInvalidArgument);
}

TEST(Listener, OpensOnTheInterfaceOfTheParameter) {
  {
    ScopedEnvironment environment;
    environment.set("VERBENA_SOCKET_IFNAME", "=lo");
    ASSERT_TRUE(load_parameters());
    const auto listener = Listener::open();
    ASSERT_TRUE(listener);
    EXPECT_EQ(listener->address().bytes[0], 127);
    environment.set("VERBENA_SOCKET_IFNAME", "=nosuchinterface");
    ASSERT_TRUE(load_parameters());
    const LogCapture capture;
    EXPECT_EQ(Listener::open().error().status, Status::kInvalidUsage);
    ASSERT_EQ(capture.warnings().size(), 1u);
    EXPECT_NE(capture.warnings()[0].find("=nosuchinterface"), std::string::npos);
    EXPECT_NE(capture.warnings()[0].find(" lo"), std::string::npos);
  }
  ASSERT_TRUE(load_parameters());
  EXPECT_TRUE(Listener::open());
}

// A port for each of thousands of listeners, kept by what they accepted, would use up the host's.
TEST(Listener, PortsAreUsedAgainWhileTheirConnectionsLive) {
  constexpr int kListeners = 300;
  ScopedEnvironment environment;
  environment.set("VERBENA_SOCKET_IFNAME", "lo");
  ASSERT_TRUE(load_parameters());
  std::set<uint16_t> ports;
  std::vector<Pair> pairs;
  for (int i = 0; i < kListeners; ++i) {
    Result<Listener> listener = Listener::open(), other = Listener::open();
    ASSERT_TRUE(listener && other);
    EXPECT_NE(listener->address().port, other->address().port) << "both are awaited";
    ports.insert({listener->address().port, other->address().port});
    pairs.push_back(connect_pair(*listener));
  }
  // 65 or so: the kernel may give one of ours again, and somebody else may take one.
  EXPECT_LE(ports.size(), kListeners / 2U);
  EXPECT_GE(ports.size(), 32U) << "a peer has only so many ports for connections to one of ours";
  for (size_t i = 0; i < pairs.size(); ++i) {
    size_t sent = 0, received = 0;
    uint64_t out = i, in = 0;
    EXPECT_TRUE(becomes_true([&] { return *pairs[i].client.send_all(&out, sizeof out, sent); }));
    EXPECT_TRUE(becomes_true([&] { return *pairs[i].server.receive_exact(&in, sizeof in, received); }));
    EXPECT_EQ(in, i);
  }
}

// Somebody else may have taken it meanwhile.
TEST(Listener, AnotherPortIsTakenIfOneIsNotFreeAnyMore) {
  ScopedEnvironment environment;
  environment.set("VERBENA_SOCKET_IFNAME", "lo");
  ASSERT_TRUE(load_parameters());
  std::vector<Listener> squatters;
  for (int i = 0; i < 200; ++i) {
    Result<Listener> listener = Listener::open();
    ASSERT_TRUE(listener);
    const SocketAddress address = listener->address();
    *listener = Listener();
    Result<Listener> squatter = Listener::open_at(address);
    ASSERT_TRUE(squatter);
    squatters.push_back(*std::move(squatter));
  }
}

}  // namespace
}  // namespace verbena::base
