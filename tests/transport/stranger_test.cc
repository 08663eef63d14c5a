// Who else may call at a listener's port, or answer at a peer's, and peers that never do.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log_capture.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using protocol::Handle;
using protocol::Hello;
using protocol::Welcome;

// A plain TCP connection to the listener, which knows nothing of us but the port.
class Stranger {
 public:
  explicit Stranger(const Handle& handle) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(handle.address.port);
    std::memcpy(&address.sin_addr, handle.address.address, 4);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Stranger() {
    if (fd_ >= 0) close(fd_);
  }

  void say(const void* data, size_t length_bytes) {
    send(fd_, data, length_bytes, MSG_NOSIGNAL);  // may have been hung up on
  }
  // Polls the listener meanwhile; what it answered, if anything, before it hung up.
  size_t hear(Listener& listener, void* answer, size_t length_bytes);

 private:
  int fd_;
};

Hello make_hello(uint64_t nonce) {
  Hello hello{};
  hello.header = protocol::make_header(sizeof(Hello), nonce);
  hello.rails = hello.queue_pairs = 1;
  hello.control_address = 0x1000;
  return hello;
}

class StrangerTest : public testing::Test {
 protected:
  StrangerTest() { listener_ = take(Listener::open(nic_, &handle_), "a listener"); }

  // No connection, no error.
  void expect_undisturbed() {
    for (int i = 0; i < 50; ++i) {
      auto receiver = listener_->poll({}, &device_handle_);
      ASSERT_TRUE(receiver);
      ASSERT_EQ(*receiver, nullptr);
      usleep(200);
    }
  }
  void expect_peer_served() {
    auto connector = take(Connector::start(nic_, handle_, -1), "a connector");
    ConnectedPair connection;
    ASSERT_TRUE(poll_until([&] {
      if (connection.sender == nullptr) connection.sender = take(connector->poll(), "a sender");
      auto& receiver = connection.receiving.receiver;
      if (receiver == nullptr) receiver = take(listener_->poll({}, &device_handle_), "a receiver");
      return connection.sender != nullptr && receiver != nullptr;
    })) << "strangers keep the peer out";
    Transfer transfer;
    transfer.messages.assign(5, {.length_bytes = 1000});
    expect_transfer_here(connection, nic_, nic_, transfer);
  }

  Host host_;
  const Nic& nic_ = host_.nic();
  Handle handle_;
  std::unique_ptr<Listener> listener_;
  void* device_handle_ = nullptr;
  base::LogCapture log_;
};

size_t Stranger::hear(Listener& listener, void* answer, size_t length_bytes) {
  size_t heard = 0;
  void* device_handle = nullptr;
  poll_until([&] {
    static_cast<void>(listener.poll({}, &device_handle));
    const ssize_t got = recv(fd_, static_cast<char*>(answer) + heard, length_bytes - heard, MSG_DONTWAIT);
    if (got > 0) heard += static_cast<size_t>(got);
    return got == 0 || heard == length_bytes || (got < 0 && errno != EAGAIN);
  });
  return heard;
}

// A scanner fills no log.
TEST_F(StrangerTest, OnlyTheFirstIsWarnedOf) {
  const auto wait_for_lines = [&](size_t count) {
    return poll_until([&] {
      void* device_handle = nullptr;
      EXPECT_EQ(take(listener_->poll({}, &device_handle), "nobody"), nullptr);
      return log_.lines_of(base::LogLevel::kInfo).size() + log_.warnings().size() >= count;
    });
  };
  for (size_t i = 0; i < 20; ++i) {
    Stranger stranger(handle_);
    const char junk[64] = "GET / HTTP/1.1";
    if (i % 2 == 0) stranger.say(junk, i % 4 == 0 ? sizeof(junk) : 3);
    { const Stranger gone = std::move(stranger); }
    EXPECT_TRUE(wait_for_lines(i + 1));
  }
  EXPECT_EQ(log_.warnings().size(), 1U);
}

TEST_F(StrangerTest, NoiseSilenceAndHalfAHelloDoNotDisturb) {
  Stranger silent(handle_), noisy(handle_), half(handle_), cut(handle_), web(handle_);
  uint8_t noise[sizeof(Hello)];
  protocol::Random random(3);
  for (auto& byte : noise) byte = static_cast<uint8_t>(random.next());
  noisy.say(noise, sizeof(noise));
  const Hello hello = make_hello(handle_.header.nonce);
  half.say(&hello, sizeof(hello) / 2);
  {
    Stranger gone = std::move(cut);
    gone.say(&hello, sizeof(hello) / 2);
  }
  constexpr char kRequest[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  web.say(kRequest, sizeof(kRequest) - 1);
  expect_undisturbed();
  expect_peer_served();
}

TEST_F(StrangerTest, APeerOfAnotherConnectionIsTurnedAway) {
  for (const uint64_t flipped : {uint64_t{1}, uint64_t{1} << 40}) {
    Stranger other(handle_);
    Hello hello = make_hello(handle_.header.nonce ^ flipped);
    other.say(&hello, sizeof(hello));
    Hello old = hello;
    Stranger older(handle_);
    --old.header.version;
    older.say(&old, sizeof(old));
    expect_undisturbed();
  }
  ASSERT_FALSE(log_.warnings().empty());
  EXPECT_NE(log_.warnings()[0].find("wrong nonce"), std::string::npos) << log_.warnings()[0];
  expect_peer_served();
}

TEST_F(StrangerTest, ACrowdOfSilentStrangersDoesNotKeepThePeerOut) {
  std::vector<Stranger> crowd;
  for (int i = 0; i < 40; ++i) crowd.emplace_back(handle_);
  expect_undisturbed();
  expect_peer_served();
}

// Our own peer, by its nonce, but of another release or damaged: both ends hear why.
TEST_F(StrangerTest, APeerThatWeCannotServeIsToldSo) {
  const auto expect_refusal = [&](Hello hello, protocol::Refusal refusal) {
    Stranger peer(handle_);
    peer.say(&hello, sizeof(hello));
    Welcome welcome{};
    EXPECT_EQ(peer.hear(*listener_, &welcome, sizeof(welcome)), sizeof(welcome));
    EXPECT_EQ(welcome.refusal, static_cast<uint32_t>(refusal));
    EXPECT_EQ(welcome.header.nonce, handle_.header.nonce);
  };
  Hello newer = make_hello(handle_.header.nonce);
  ++newer.header.version;
  expect_refusal(newer, protocol::Refusal::kVersion);
  Hello damaged = make_hello(handle_.header.nonce);
  damaged.queue_pairs = 9;
  expect_refusal(damaged, protocol::Refusal::kMalformed);
  // Well formed, but no port of its is up.
  Hello mute = make_hello(handle_.header.nonce);
  expect_refusal(mute, protocol::Refusal::kUnreachable);
  // There is no queue pair 0 to connect to.
  const verbs::PortAddress port = nic_.rails[0]->address();
  std::memcpy(mute.rail[0].bytes, &port, sizeof(port));
  expect_refusal(mute, protocol::Refusal::kResources);
}

TEST_F(StrangerTest, APeerThatLeavesBetweenHelloAndReadyIsAnError) {
  {
    auto connector = take(Connector::start(nic_, handle_, -1), "a connector");
    for (int i = 0; i < 50; ++i) ASSERT_EQ(take(connector->poll(), "a sender"), nullptr);  // says hello
  }
  base::Status status = base::Status::kOk;
  EXPECT_TRUE(poll_until([&] {
    auto receiver = listener_->poll({}, &device_handle_);
    if (!receiver) status = receiver.error().status;
    return !receiver;
  }));
  EXPECT_EQ(status, base::Status::kRemote);
}

// The other way round: what answers a connector is no listener of ours.
TEST_F(StrangerTest, AnImpostorThatAnswersIsNotBelieved) {
  const auto expect_error = [&](const Welcome& welcome, const char* text) {
    base::Listener impostor = take(base::Listener::open_at(std::bit_cast<base::SocketAddress>(
                                       protocol::AddressRecord{4, 0, 0, {127, 0, 0, 1}})),
                                   "an impostor");
    Handle handle = handle_;
    handle.address = std::bit_cast<protocol::AddressRecord>(impostor.address());
    auto connector = take(Connector::start(nic_, handle, -1), "a connector");
    std::optional<base::Socket> socket;
    size_t offset = 0;
    base::Status status = base::Status::kOk;
    log_.clear();
    EXPECT_TRUE(poll_until([&] {
      if (!socket) socket = take(impostor.accept(), "a caller");
      if (socket) static_cast<void>(socket->send_all(&welcome, sizeof(welcome), offset));
      auto sender = connector->poll();
      if (!sender) status = sender.error().status;
      return status != base::Status::kOk;
    }));
    EXPECT_EQ(status, base::Status::kRemote);
    ASSERT_EQ(log_.warnings().size(), 1U);
    EXPECT_NE(log_.warnings()[0].find(text), std::string::npos) << log_.warnings()[0];
  };
  Welcome welcome{};
  expect_error(welcome, "wrong magic");
  welcome.header = protocol::make_header(sizeof(Welcome), handle_.header.nonce ^ 2);
  expect_error(welcome, "wrong nonce");
  welcome.header = protocol::make_header(sizeof(Welcome), handle_.header.nonce);
  expect_error(welcome, "damaged");
  welcome.refusal = static_cast<uint32_t>(protocol::Refusal::kResources);
  expect_error(welcome, "could not create its end");
}

class DeadlineTest : public testing::Test {
 protected:
  template <typename Poll>
  void expect_timeout(Poll&& poll) {
    const int64_t start_ns = base::monotonic_ns();
    base::Status status = base::Status::kOk;
    EXPECT_TRUE(poll_until([&] { return (status = poll()) != base::Status::kOk; }));
    const int64_t waited_ms = (base::monotonic_ns() - start_ns) / base::kNsPerMs;
    EXPECT_EQ(status, base::Status::kTimeout);
    EXPECT_GE(waited_ms, 190);
    ASSERT_EQ(log_.warnings().size(), 1U);
    EXPECT_NE(log_.warnings()[0].find("VERBENA_CONNECT_TIMEOUT_MS 200 ms"), std::string::npos);
  }

  Host host_{Settings{{"VERBENA_CONNECT_TIMEOUT_MS", "200"}}};
  const Nic& nic_ = host_.nic();
  Handle handle_;
  std::unique_ptr<Listener> listener_ = take(Listener::open(nic_, &handle_), "a listener");
  base::LogCapture log_;
};

TEST_F(DeadlineTest, AListenerThatNobodyCallsGivesUp) {
  void* device_handle = nullptr;
  expect_timeout([&] {
    auto receiver = listener_->poll({}, &device_handle);
    return receiver ? base::Status::kOk : receiver.error().status;
  });
}

// It is connected, as the kernel answers for the listener, and then nothing comes.
TEST_F(DeadlineTest, AConnectorWithoutAnAnswerGivesUp) {
  auto connector = take(Connector::start(nic_, handle_, -1), "a connector");
  expect_timeout([&] {
    auto sender = connector->poll();
    return sender ? base::Status::kOk : sender.error().status;
  });
}

TEST_F(DeadlineTest, AConnectorToAClosedPortFailsAtOnce) {
  listener_.reset();
  auto connector = Connector::start(nic_, handle_, -1);
  base::Status status = connector ? base::Status::kOk : connector.error().status;
  EXPECT_TRUE(poll_until([&] {
    if (status != base::Status::kOk) return true;
    auto sender = (*connector)->poll();
    if (!sender) status = sender.error().status;
    return !sender;
  }));
  EXPECT_EQ(status, base::Status::kRemote);
}

}  // namespace
}  // namespace verbena::transport
