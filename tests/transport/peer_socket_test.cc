// One control socket for all connections between two processes: how many there are, what closes when, and
// what a peer may send over it.
#include "transport/peer_socket.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>

#include "base/log_capture.h"
#include "transport/peer_channel.h"
#include "transport/support/job_key.h"
#include "transport/support/processes.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using protocol::FrameHeader;
using protocol::FrameKind;

#ifdef __SANITIZE_THREAD__
constexpr size_t kMany = 100;  // each with memory that the sanitizer shadows
#else
constexpr size_t kMany = 2000;
#endif

// Ends of TCP connections that this process has.
size_t count_connected_sockets() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        (address.ss_family == AF_INET || address.ss_family == AF_INET6))
      ++count;
  }
  closedir(folder);
  return count;
}

Transfer make_transfer() {
  Transfer transfer;
  transfer.messages.assign(10, {.length_bytes = 3000});
  return transfer;
}

void expect_it_works(ConnectedPair& connection, const Nic& nic) {
  expect_transfer_here(connection, nic, nic, make_transfer());
}

// An end that waits for a message learns that its peer is gone.
void expect_receiver_learns(AcceptedEnd& end, const Nic& nic) {
  const Transfer transfer = make_transfer();
  ReceivingSide side(end, nic, transfer);
  EXPECT_TRUE(poll_until([&] { return side.step(); }));
  EXPECT_EQ(side.status(), base::Status::kRemote);
}

TEST(PeerSocket, ThousandsOfConnectionsOfAProcessToItselfHaveTwo) {
  auto [host, nic] = OwnNic();
  const size_t before = count_connected_sockets();
  std::vector<ConnectedPair> connections;
  for (size_t i = 0; i < kMany; ++i) connections.push_back(connect_here(nic, nic, false));
  EXPECT_EQ(count_connected_sockets(), before + 2) << "one an end";
  for (const size_t i : {size_t{0}, kMany / 2, kMany - 1}) expect_it_works(connections[i], nic);
  connections.clear();
  EXPECT_EQ(count_connected_sockets(), before);
}

// A handshake does not wait for another for ever (kMaxPlacingMs): on a machine that is slow just then there
// are more sockets.
constexpr int kRounds = 5;

// Many listeners, and the calls of many: the handshakes advance in any order.
class Meeting {
 public:
  Meeting(const Nic& nic, size_t count) : nic_(nic), handles_(count), senders_(count), receivers_(count) {
    for (auto& handle : handles_) listeners_.push_back(take(Listener::open(nic, &handle), "a listener"));
  }
  const std::vector<protocol::Handle>& handles() const { return handles_; }
  void call(const std::vector<protocol::Handle>& handles) {
    for (const auto& handle : handles)
      connectors_.push_back(take(Connector::start(nic_, handle, -1), "a connector"));
  }
  // Nobody has accepted yet.
  void say_hello() {
    for (int i = 0; i < 20; ++i)
      for (auto& connector : connectors_) EXPECT_EQ(take(connector->poll(), "a sender"), nullptr);
  }
  // All at a time, until every connection stands.
  void finish(
      bool backwards, const std::function<void(int)>& meanwhile = [](int) {}) {
    int round = 0;
    EXPECT_TRUE(poll_until([&] {
      meanwhile(round++);
      size_t standing = 0;
      for (size_t i = 0; i < handles_.size(); ++i) {
        const size_t own = backwards ? handles_.size() - 1 - i : i;
        void* device_handle = nullptr;
        if (senders_[own] == nullptr) senders_[own] = take(connectors_[own]->poll(), "a sender");
        if (receivers_[i] == nullptr)
          receivers_[i] = take(listeners_[i]->poll({}, &device_handle), "a receiver");
        standing += senders_[own] != nullptr && receivers_[i] != nullptr;
      }
      return standing == handles_.size();
    }));
    connectors_.clear();
    listeners_.clear();
  }
  std::vector<std::unique_ptr<Sender>>& senders() { return senders_; }
  std::vector<std::unique_ptr<Receiver>>& receivers() { return receivers_; }

 private:
  const Nic& nic_;
  std::vector<protocol::Handle> handles_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Connector>> connectors_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
};

TEST(PeerSocket, HandshakesAtTheSameTimeEndUpOnOne) {
  auto [host, nic] = OwnNic();
  for (const bool backwards : {false, true}) {
    int rounds_with_two = 0;
    for (int round = 0; round < kRounds; ++round) {
      Meeting meeting(nic, 40);
      meeting.call(meeting.handles());
      meeting.finish(backwards);
      rounds_with_two += count_connected_sockets() == 2;
    }
    EXPECT_GT(rounds_with_two, 0) << (backwards ? "backwards" : "forwards");
  }
  EXPECT_EQ(count_connected_sockets(), 0U);
}

// Each calls the other while it is being called.
TEST(PeerSocket, TwoProcessesThatCallEachOtherHaveOne) {
  constexpr size_t kEachWay = 20;
  const Part part{[](Channel& channel) {
    auto [host, nic] = OwnNic();
    int rounds_with_one = 0;
    for (int round = 0; round < kRounds; ++round) {
      Meeting meeting(nic, kEachWay);
      channel.send(meeting.handles().data(), kEachWay * sizeof(protocol::Handle));
      std::vector<protocol::Handle> handles(kEachWay);
      channel.receive(handles.data(), kEachWay * sizeof(protocol::Handle));
      meeting.call(handles);
      meeting.say_hello();
      channel.meet();
      meeting.finish(false);
      channel.meet();
      rounds_with_one += count_connected_sockets() == 1;
      channel.meet();
    }
    EXPECT_GT(rounds_with_one, 0);
  }};
  run_processes(part, part);
}

TEST(PeerSocket, ThousandsOfConnectionsBetweenTwoProcessesHaveOne) {
  const auto check = [](Channel& channel) {
    channel.meet();
    EXPECT_EQ(count_connected_sockets(), 1U);
    channel.meet();
  };
  const Part sending{[&](Channel& channel) {
    auto [host, nic] = OwnNic();
    std::vector<std::unique_ptr<Sender>> senders;
    for (size_t i = 0; i < kMany; ++i) senders.push_back(connect(nic, channel.hear<protocol::Handle>()));
    check(channel);
  }};
  const Part receiving{[&](Channel& channel) {
    auto [host, nic] = OwnNic();
    std::vector<AcceptedEnd> ends;
    for (size_t i = 0; i < kMany; ++i) ends.push_back(accept(channel, nic, false));
    check(channel);
  }};
  run_processes(sending, receiving);
}

TEST(PeerSocket, AllThatAreOnItLearnOfADeath) {
  constexpr size_t kConnections = 5;
  const Part sending{[](Channel& channel) {
                       auto [host, nic] = OwnNic();
                       std::vector<std::unique_ptr<Sender>> senders;
                       for (size_t i = 0; i < kConnections; ++i)
                         senders.push_back(connect(nic, channel.hear<protocol::Handle>()));
                       channel.meet();
                       die();
                     },
                     End::kKilled};
  const Part receiving{[](Channel& channel) {
    auto [host, nic] = OwnNic();
    std::vector<AcceptedEnd> ends;
    for (size_t i = 0; i < kConnections; ++i) ends.push_back(accept(channel, nic, false));
    EXPECT_EQ(count_connected_sockets(), 1U);
    channel.meet();
    for (auto& end : ends) expect_receiver_learns(end, nic);
  }};
  run_processes(sending, receiving);
}

// Whichever it is: also the one whose handshake made the socket.
TEST(PeerSocket, TheCloseOfOneIsLearntByItsPeerAlone) {
  auto [host, nic] = OwnNic();
  for (const size_t closing : {0, 1, 2}) {
    std::vector<ConnectedPair> connections;
    for (int i = 0; i < 3; ++i) connections.push_back(connect_here(nic, nic, false));
    const base::LogCapture log;
    connections[closing].sender.reset();
    expect_receiver_learns(connections[closing].receiving, nic);
    for (size_t i = 0; i < connections.size(); ++i)
      if (i != closing) expect_it_works(connections[i], nic);
    EXPECT_EQ(log.warnings().size(), 1U);
    connections.push_back(connect_here(nic, nic, false));
    expect_it_works(connections.back(), nic);
    EXPECT_EQ(count_connected_sockets(), 2U);
  }
}

TEST(PeerSocket, BothEndsOfEachCloseInAnyOrder) {
  auto [host, nic] = OwnNic();
  protocol::Random random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<ConnectedPair> connections;
    for (int i = 0; i < 4; ++i) connections.push_back(connect_here(nic, nic, false));
    for (int ends = 0; ends < 4; ++ends) {
      auto& connection = connections[random.between(0, 3)];
      random.happens(50) ? connection.sender.reset() : connection.receiving.receiver.reset();
    }
    // As long as anything is open at either end, a new connection finds its way.
    ConnectedPair next = connect_here(nic, nic, false);
    expect_it_works(next, nic);
  }
  EXPECT_EQ(count_connected_sockets(), 0U);
}

TEST(PeerSocket, WithAJobKeyAndEncryptionToo) {
  const JobKeyFile key("peer_socket_key", "Xyzzy-plugh-secret-0123456789");
  for (const char* encrypts : {"0", "1"}) {
    Settings settings = key.settings();
    settings.emplace_back("VERBENA_ENCRYPTION", encrypts);
    auto [host, nic] = OwnNic(1, settings);
    ConnectedPair first = connect_here(nic, nic, false), next = connect_here(nic, nic, false);
    EXPECT_EQ(count_connected_sockets(), 2U);
    expect_it_works(first, nic);
    expect_it_works(next, nic);
    {
      Meeting meeting(nic, 20);
      meeting.call(meeting.handles());
      meeting.finish(true);
      EXPECT_EQ(count_connected_sockets(), 2U);
    }
    const base::LogCapture log;
    next.sender.reset();
    expect_receiver_learns(next.receiving, nic);
  }
}

// A handshake that fails, or that nobody goes on with, takes nobody with it.
TEST(PeerSocket, AHandshakeThatIsGivenUpHurtsNoOther) {
  auto [host, nic] = OwnNic();
  const base::LogCapture log;
  Meeting meeting(nic, 10);
  protocol::Handle handle;
  auto listener = take(Listener::open(nic, &handle), "a listener");
  auto connector = take(Connector::start(nic, handle, -1), "a connector");
  // It says hello, and is answered; then it waits for its next turn. The others are offered its socket.
  for (int i = 0; i < 20; ++i) ASSERT_EQ(take(connector->poll(), "a sender"), nullptr);
  void* device_handle = nullptr;
  for (int i = 0; i < 20; ++i) ASSERT_EQ(take(listener->poll({}, &device_handle), "a receiver"), nullptr);
  meeting.call(meeting.handles());
  meeting.finish(false, [&](int round) {
    if (round == 20) connector.reset();
    if (round == 40) listener.reset();
  });
  ConnectedPair next = connect_here(nic, nic, false);
  expect_it_works(next, nic);
}

// --- What a peer sends.

class Listens final : public PeerSocket::User {
 public:
  void take(std::span<const uint8_t> bytes) override {
    heard.insert(heard.end(), bytes.begin(), bytes.end());
  }
  void note_closed() override { is_closed = true; }

  std::vector<uint8_t> heard;
  bool is_closed = false;
};

class FrameTest : public testing::Test {
 protected:
  FrameTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    peer_.reset(ends[1]);
    socket_ = PeerSocket::create(base::Socket(base::FileDescriptor(ends[0]), {}), ConnectionEnd::kSender);
    socket_->open();
    EXPECT_TRUE(socket_->add(1, &first_));
    EXPECT_TRUE(socket_->add(2, &second_));
  }
  void say(const void* bytes, size_t length) {
    ASSERT_EQ(send(peer_.get(), bytes, length, MSG_NOSIGNAL), static_cast<ssize_t>(length));
    socket_->read();
  }
  void say(uint64_t connection, FrameKind kind, uint32_t length, const std::string& text = {}) {
    const FrameHeader header{connection, length, kind};
    say(&header, sizeof(header));
    if (!text.empty()) say(text.data(), text.size());
  }
  static std::string as_text(const Listens& user) { return {user.heard.begin(), user.heard.end()}; }

  Host host_;
  base::LogCapture log_;
  base::FileDescriptor peer_;
  std::shared_ptr<PeerSocket> socket_;
  Listens first_, second_;
};

TEST_F(FrameTest, EachHearsItsOwn) {
  say(1, FrameKind::kBytes, 5, "hel");
  say("lo", 2);
  say(2, FrameKind::kBytes, 3, "you");
  say(1, FrameKind::kBytes, 1, "!");
  EXPECT_EQ(as_text(first_), "hello!");
  EXPECT_EQ(as_text(second_), "you");
  say(1, FrameKind::kClosed, 0);
  EXPECT_TRUE(first_.is_closed);
  EXPECT_FALSE(second_.is_closed);
}

TEST_F(FrameTest, AFrameMayComeByteByByte) {
  const FrameHeader header{2, 2, FrameKind::kBytes};
  for (size_t i = 0; i < sizeof(header); ++i) say(reinterpret_cast<const uint8_t*>(&header) + i, 1);
  say("o", 1);
  say("k", 1);
  EXPECT_EQ(as_text(second_), "ok");
}

TEST_F(FrameTest, WhatIsForNobodyIsDropped) {
  say(77, FrameKind::kBytes, 3, "huh");
  say(77, FrameKind::kClosed, 0);
  say(1, FrameKind::kBytes, 2, "ok");
  EXPECT_EQ(as_text(first_), "ok");
  EXPECT_TRUE(log_.warnings().empty());
  EXPECT_FALSE(socket_->is_closed());
}

TEST_F(FrameTest, NoConnectionIsOnItTwice) {
  Listens third;
  EXPECT_FALSE(socket_->add(1, &third));
  say(1, FrameKind::kBytes, 2, "ok");
  EXPECT_EQ(as_text(first_), "ok");
}

TEST_F(FrameTest, WhatMakesNoSenseEndsAll) {
  const struct {
    FrameKind kind;
    uint32_t length;
  } wrong[] = {{FrameKind{0}, 1},
               {FrameKind{3}, 0},
               {FrameKind::kBytes, 0},
               {FrameKind::kBytes, protocol::kMaxFrameBytes + 1},
               {FrameKind::kClosed, 1}};
  for (const auto& [kind, length] : wrong) {
    SCOPED_TRACE(length);
    EXPECT_FALSE(is_sane(FrameHeader{1, length, kind}));
  }
  say(1, FrameKind::kBytes, protocol::kMaxFrameBytes + 1);
  EXPECT_TRUE(first_.is_closed && second_.is_closed);
  ASSERT_EQ(log_.warnings().size(), 1U);
  EXPECT_NE(log_.warnings()[0].find("invalid frame"), std::string::npos);
  say(2, FrameKind::kBytes, 2, "no");
  EXPECT_EQ(as_text(second_), "");
  Listens late;
  EXPECT_TRUE(socket_->add(3, &late));
  EXPECT_TRUE(late.is_closed);
}

TEST_F(FrameTest, ThePeersEndEndsAllAfterWhatItSaid) {
  const FrameHeader header{1, 3, FrameKind::kBytes};
  ASSERT_EQ(send(peer_.get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  ASSERT_EQ(send(peer_.get(), "bye", 3, 0), 3);
  peer_.reset();
  socket_->read();
  EXPECT_EQ(as_text(first_), "bye");
  EXPECT_TRUE(first_.is_closed && second_.is_closed);
}

// Nobody takes what it says: it is not kept without end.
TEST_F(FrameTest, APeerThatNeverStopsEndsItsOwnConnection) {
  const auto channel = PeerChannel::join(socket_, 3, "a talker");
  ASSERT_NE(channel, nullptr);
  const std::string much(protocol::kMaxFrameBytes, 'x');
  for (int i = 0; i < 200; ++i) say(3, FrameKind::kBytes, protocol::kMaxFrameBytes, much);
  EXPECT_TRUE(channel->is_closed());
  EXPECT_FALSE(first_.is_closed);
  EXPECT_EQ(PeerChannel::join(socket_, 3, "a second"), nullptr);
}

// The kernel's buffer is full: what is left over leaves without another call once the peer reads.
TEST_F(FrameTest, WhatDoesNotFitIsSentLater) {
  ASSERT_TRUE(socket_->start());
  const std::vector<uint8_t> much(protocol::kMaxFrameBytes, 7);
  size_t frames = 0;
  for (; !socket_->has_unsent(); ++frames) socket_->send(1, much);
  socket_->remove(2);
  size_t heard = 0;
  const size_t all = frames * (sizeof(FrameHeader) + much.size()) + sizeof(FrameHeader);
  EXPECT_TRUE(poll_until([&] {
    std::vector<uint8_t> bytes(1 << 16);
    const ssize_t count = recv(peer_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) heard += static_cast<size_t>(count);
    return heard >= all;
  }));
  EXPECT_EQ(heard, all);
}

}  // namespace
}  // namespace verbena::transport
