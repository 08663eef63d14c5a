#include <sched.h>

#include <random>

#include "wire_caller.h"

// Connections that do not come from a peer, as any host that reaches the port can make them.
namespace verbena::softverbs_test {
namespace {

using namespace softverbs::wire;

using WireStrangerTest = WireHostileTest;

// Neither of a later session nor of a later round, whatever numbers it guesses.
TEST_F(WireStrangerTest, AStrangersFramesDoNotStopAQueuePair) {
  Header header = make_write();
  header.target_qp = victim_.honest_qp;
  header.session = UINT64_MAX;
  header.round = UINT32_MAX;
  header.source_qp = kHonestQp;
  expect_refusal(*welcome(kOtherHost), header, kGone);
  expect_honest_goes_on();
  header.source_qp = kHostileQp;
  expect_refusal(*welcome(), header, kGone);
  expect_honest_goes_on();
  header.session = 1;
  expect_refusal(*welcome(), header, kGone);
}

// The part of a message that has come is not lost to it either.
TEST_F(WireStrangerTest, AStrangersFrameDoesNotEndAMessage) {
  const auto peer = welcome();
  Header first = make_write(8192), second;
  first.length = 4096;
  second = first;
  second.offset = 4096;
  peer->say_frame(first);
  Header foreign = first;
  foreign.source_qp = kHonestQp;
  foreign.session = first.session;
  expect_refusal(*welcome(), foreign, kGone);
  expect_acknowledgement(*peer, second);
}

TEST_F(WireStrangerTest, AnOlderSessionIsRefused) {
  const auto caller = welcome();
  Header header = make_write();
  header.session = 7;
  expect_acknowledgement(*caller, header);
  header.session = 6;
  expect_refusal(*caller, header, kGone);
}

TEST_F(WireStrangerTest, SilentCallersAreBounded) {
  constexpr int kMost = kVictimDescriptors / 8;
  const int callers = count_attacks("silent callers", 600, 1500);
  for (int i = 0; i < callers; ++i) crowd_.push_back(std::make_unique<Caller>(slot_));
  welcome();
  expect_honest_goes_on();
  int waiting = 0;
  for (const auto& caller : crowd_) waiting += caller->is_connected() && !caller->has_ended(0) ? 1 : 0;
  EXPECT_LE(waiting, kMost);
  EXPECT_GT(waiting, 0);
  for (const auto& caller : crowd_) EXPECT_TRUE(caller->has_ended(20000));
  welcome();
}

TEST_F(WireStrangerTest, LinksOfStrangersLeaveDescriptors) {
  const int callers = count_attacks("callers with a hello and a frame each, which stay", 400, 1500);
  Header header = make_write(64), answer{};
  header.target_qp += 77;
  for (int i = 0; i < callers; ++i) {
    crowd_.push_back(welcome(kOtherHost));
    crowd_.back()->say_frame(header);
    ASSERT_TRUE(crowd_.back()->hear(answer));
    EXPECT_EQ(answer.code, kGone);
  }
  expect_honest_goes_on();
  expect_refusal(*welcome(), header, kGone);
}

// From the peer's own address, with the numbers that it would use, or nearly.
TEST_F(WireStrangerTest, RandomFramesHarmNobodyElse) {
  constexpr int kFramesOfACaller = 13;
  const int frames = count_attacks("random frames, on a connection for each 13", 4000, 265'094);
  std::mt19937_64 random(19);
  const auto happens = [&](uint32_t percent) { return random() % 100 < percent; };
  std::unique_ptr<Caller> caller;
  for (int i = 0; i < frames; ++i) {
    if (i % kFramesOfACaller == 0) caller = welcome();
    Header header = make_write(static_cast<uint32_t>(random() % 64));
    if (happens(30)) header.kind = static_cast<Kind>(random() % 8);
    if (happens(50)) header.code = static_cast<uint8_t>(random() % 16);
    if (happens(20)) header.flags = static_cast<uint16_t>(random() % 5);
    if (happens(50)) header.session = random() % 5;
    if (happens(30)) header.sequence = random() % 4;
    if (happens(10)) header.round = static_cast<uint32_t>(random() % 3);
    if (happens(20)) header.offset = static_cast<uint32_t>(random());
    if (happens(20)) header.bytes = static_cast<uint32_t>(random());
    if (happens(20)) header.address = happens(50) ? random() : header.address + random() % kBytes;
    if (happens(20)) header.key ^= static_cast<uint32_t>(1 << random() % 32);
    if (happens(10)) header.target_qp ^= static_cast<uint32_t>(1 << random() % 4);
    if (happens(5)) header.length = static_cast<uint32_t>(random() % kBytes);
    if (header.target_qp == victim_.honest_qp) header.source_qp = kHostileQp;
    caller->say_frame(header);
    if (i % (100 * kFramesOfACaller) == 0) expect_honest_goes_on();
  }
  caller.reset();
  expects_error_ = true;  // of the queue pair whose peer this is
}

TEST_F(WireStrangerTest, AListenerOutlastsALackOfDescriptors) {
  order(Order::kExhaust);
  constexpr int kCallers = 20;
  for (int i = 0; i < kCallers; ++i) crowd_.push_back(std::make_unique<Caller>(slot_));
  expect_honest_goes_on();
  order(Order::kRelease);
  welcome();
}

TEST_F(WireStrangerTest, HalfAHelloIsNotWaitedForForEver) {
  Caller caller(slot_), leaving(slot_);
  const Hello hello = make_hello(victim_, 7);
  leaving.say(&hello, sizeof(hello) / 2);
  caller.say(&hello, sizeof(hello) / 2);
  EXPECT_TRUE(caller.has_ended(20000));
}

// What a process that has too many callers does to some of them.
TEST(WireSentAwayTest, ARequesterCallsAgain) {
  setenv("SOFTVERBS_DEVICES", "1", 1);
  setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
  setenv("SOFTVERBS_PORT", std::to_string(kPort).c_str(), 1);
  uint32_t slot = 0;
  const int listener = listen_somewhere(slot);
  const uint32_t far_qp = softverbs::make_qp_number(slot, 20);
  const auto take_call = [&] {
    pollfd ready{listener, POLLIN, 0};
    return poll(&ready, 1, 10000) == 1 ? accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) : -1;
  };
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  Address far = pair.address();
  far.gid.raw[15] = kPeerHost;
  far.qp_number = far_qp;
  pair.connect(far);
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(0x1000, 1).post(pair), 0);
  for (const int seconds : {0, -1}) {  // a reset, and an end
    const int fd = take_call();
    ASSERT_GE(fd, 0);
    const linger reset{seconds == 0 ? 1 : 0, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
  }
  const int fd = take_call();
  ASSERT_GE(fd, 0) << "it does not call again";
  Hello hello{};
  receive_bytes(fd, &hello, sizeof(hello));
  EXPECT_EQ(hello.magic, kMagic);
  send_bytes(fd, &hello, sizeof(hello));
  const auto header = hear<Header>(fd);
  EXPECT_EQ(header.target_qp, far_qp);
  Header answer{};
  answer.kind = Kind::kAcknowledge;
  answer.source_qp = header.target_qp;
  answer.target_qp = header.source_qp;
  answer.session = header.session;
  tell(fd, answer);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  close(fd);
  close(listener);
}

TEST(WirePortsTest, WhoeverTakesAllPortsIsNamed) {
  Child child([](int socket) {
    const rlimit many{4096, 4096};
    const bool is_alone = unshare(CLONE_NEWNET) == 0 && setrlimit(RLIMIT_NOFILE, &many) == 0 &&
                          system("ip link set lo up") == 0;
    tell(socket, is_alone);
    if (!is_alone) return;
    setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
    setenv("SOFTVERBS_PORT", std::to_string(kPort).c_str(), 1);
    // A process of the same job, if only one that has just ended, has a place, whose port is not asked for.
    setenv("SOFTVERBS_JOB", ("ports-" + std::string(getenv("SOFTVERBS_JOB"))).c_str(), 1);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (uint32_t slot = 0; slot < softverbs::kProcessSlots; ++slot) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      at.sin_port = htons(static_cast<uint16_t>(kPort + slot));
      ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
      ASSERT_EQ(listen(fd, 1), 0);
    }
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    ASSERT_GT(count, 0);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ibv_open_device(devices[0]), nullptr);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(
        said.find("all TCP ports from 24999 to 25254 are in use. Other programs use 256 of these ports"),
        std::string::npos)
        << said;
    EXPECT_NE(said.find("SOFTVERBS_PORT"), std::string::npos) << said;
  });
  if (!hear<bool>(child.socket())) GTEST_SKIP() << "no right to make a network namespace";
}

}  // namespace
}  // namespace verbena::softverbs_test
