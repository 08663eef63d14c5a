#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "fixture.h"
#include "softverbs/shared_layout.h"
#include "softverbs/wire/frame.h"

// Callers that break the wire's protocol: each loses its own connection and nothing else.
namespace verbena::softverbs_test {
namespace {

using namespace softverbs::wire;

constexpr int kPort = 24999;
constexpr size_t kBytes = 64 << 10;
constexpr uint32_t kHostileQp = 0x500009, kHonestQp = 0x50000a;  // as the callers call theirs

// One end of a TCP connection to the victim, from 127.0.0.2.
class Caller {
 public:
  explicit Caller(uint32_t slot) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f000002);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(kPort + slot));
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
    is_connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Caller() { close(fd_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void say(const void* data, size_t bytes) { send(fd_, data, bytes, MSG_NOSIGNAL); }
  template <typename T>
  void say(const T& value) {
    say(&value, sizeof(value));
  }
  void say_frame(const Header& header) {
    say(header);
    say(std::vector<uint8_t>(header.length, 0xee).data(), header.length);
  }
  template <typename T>
  bool hear(T& value, int timeout_ms = 10000) {
    pollfd ready{fd_, POLLIN, 0};
    return poll(&ready, 1, timeout_ms) == 1 && recv(fd_, &value, sizeof(value), MSG_WAITALL) == sizeof(value);
  }
  // Whatever it still says.
  bool has_ended(int timeout_ms = 10000) {
    char ignored[4096];
    for (;;) {
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, timeout_ms) != 1) return false;
      if (recv(fd_, ignored, sizeof(ignored), 0) <= 0) return true;
    }
  }
  bool is_connected() const { return is_connected_; }

 private:
  int fd_;
  bool is_connected_ = false;
};

struct Victim {
  uint32_t hostile_qp, honest_qp;
  RemoteMemory memory;
};

Hello make_hello(const Victim& victim, uint64_t link) {
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kProtocolVersion;
  hello.link = link;
  hello.streams = 1;
  hello.slot = softverbs::get_qp_slot(victim.hostile_qp);
  const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  memcpy(hello.source, mapped, sizeof(mapped));
  memcpy(hello.destination, mapped, sizeof(mapped));
  hello.source[15] = 2;
  strncpy(hello.job, getenv("SOFTVERBS_JOB"), sizeof(hello.job) - 1);
  return hello;
}

class WireHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SOFTVERBS_DEVICES", "1", 1);
    setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
    setenv("SOFTVERBS_PORT", std::to_string(kPort).c_str(), 1);
    child_ = std::make_unique<Child>([](int socket) {
      Node node;
      QueuePair hostile(node), honest(node);
      Buffer memory(node, kBytes);
      Address far = hostile.address();
      far.gid.raw[15] = 2;
      far.qp_number = kHostileQp;
      hostile.connect(far);
      far.qp_number = kHonestQp;
      honest.connect(far);
      tell(socket, Victim{hostile.qp->qp_num, honest.qp->qp_num, {memory.address(), memory.mr()->rkey}});
      hear<bool>(socket);
      tell(socket, hostile.query_state() == IBV_QPS_ERR);
    });
    victim_ = hear<Victim>(child_->socket());
    slot_ = softverbs::get_qp_slot(victim_.hostile_qp);
    honest_ = welcome();
  }
  void TearDown() override {
    expect_honest_goes_on();
    tell(child_->socket(), true);
    EXPECT_EQ(hear<bool>(child_->socket()), expects_error_);
  }
  std::unique_ptr<Caller> welcome() {
    auto caller = std::make_unique<Caller>(slot_);
    caller->say(make_hello(victim_, ++links_));
    Hello answer{};
    EXPECT_TRUE(caller->hear(answer));
    EXPECT_EQ(answer.refusal, kWelcome);
    return caller;
  }
  void expect_turned_away(const Hello& hello) {
    Caller caller(slot_);
    caller.say(hello);
    Hello answer{};
    EXPECT_TRUE(caller.hear(answer));
    EXPECT_NE(answer.refusal, kWelcome);
    EXPECT_TRUE(caller.has_ended());
  }
  // A WRITE of a new session.
  Header make_write(uint32_t bytes = 4096) {
    Header header{};
    header.length = header.bytes = bytes;
    header.kind = Kind::kRequest;
    header.code = IBV_WR_RDMA_WRITE;
    header.source_qp = kHostileQp;
    header.target_qp = victim_.hostile_qp;
    header.session = ++sessions_;
    header.address = victim_.memory.address;
    header.key = victim_.memory.rkey;
    return header;
  }
  void expect_ends(const Header& header) {
    const auto caller = welcome();
    caller->say(header);
    EXPECT_TRUE(caller->has_ended());
    expect_honest_goes_on();
  }
  void expect_honest_goes_on() {
    Header header = make_write(512), answer{};
    header.session = 1;
    header.sequence = honest_writes_++;
    header.source_qp = kHonestQp;
    header.target_qp = victim_.honest_qp;
    honest_->say_frame(header);
    ASSERT_TRUE(honest_->hear(answer)) << "the honest caller is not served any more";
    EXPECT_EQ(answer.kind, Kind::kAcknowledge);
    EXPECT_EQ(answer.sequence, header.sequence);
  }
  void expect_refusal(Caller& caller, const Header& header, Reason reason) {
    Header answer{};
    caller.say_frame(header);
    ASSERT_TRUE(caller.hear(answer));
    EXPECT_EQ(answer.kind, Kind::kRefusal);
    EXPECT_EQ(answer.code, reason);
  }
  std::unique_ptr<Child> child_;
  Victim victim_{};
  uint32_t slot_ = 0;
  std::unique_ptr<Caller> honest_;
  uint64_t links_ = 100, sessions_ = 0, honest_writes_ = 0;
  bool expects_error_ = false;
};

TEST_F(WireHostileTest, StrangeHellosAreTurnedAway) {
  const auto spoil = [&](auto&& change) {
    Hello hello = make_hello(victim_, ++links_);
    change(hello);
    expect_turned_away(hello);
  };
  spoil([](Hello& hello) { hello.magic ^= 1; });
  spoil([](Hello& hello) { ++hello.version; });
  spoil([](Hello& hello) { hello.job[0] ^= 1; });
  spoil([](Hello& hello) { ++hello.slot; });
  spoil([](Hello& hello) { hello.streams = 0; });
  spoil([](Hello& hello) { hello.streams = kMaxStreams + 1; });
  spoil([](Hello& hello) { hello.stream = hello.streams; });
  spoil([](Hello& hello) { hello.source[15] = 3; });
  spoil([](Hello& hello) { hello.destination[15] = 3; });
  spoil([](Hello& hello) { memset(&hello, 0xa5, sizeof(hello)); });
}

TEST_F(WireHostileTest, HalfAHelloIsNotWaitedForForEver) {
  Caller caller(slot_), leaving(slot_);
  const Hello hello = make_hello(victim_, 7);
  leaving.say(&hello, sizeof(hello) / 2);
  caller.say(&hello, sizeof(hello) / 2);
  EXPECT_TRUE(caller.has_ended(20000));
}

TEST_F(WireHostileTest, FramesThatCannotBe) {
  const auto spoil = [&](auto&& change) {
    Header header = make_write();
    change(header);
    expect_ends(header);
  };
  spoil([](Header& header) { header.kind = static_cast<Kind>(0); });
  spoil([](Header& header) { header.kind = static_cast<Kind>(99); });
  spoil([](Header& header) { header.kind = Kind::kResponse; });
  spoil([](Header& header) { header.kind = Kind::kAcknowledge; });
  spoil([](Header& header) { header.code = 0xff; });
  spoil([](Header& header) { header.length = header.bytes = kMaxFrameBytes + 1; });
  spoil([](Header& header) { header.length = UINT32_MAX; });
  spoil([](Header& header) { header.bytes = UINT32_MAX; });
  spoil([](Header& header) { header.offset = 1; });
  spoil([](Header& header) { header.offset = UINT32_MAX; });
  spoil([](Header& header) { header.length = 0; });
  spoil([](Header& header) { header.code = IBV_WR_RDMA_READ; });
  spoil([](Header& header) { header.code = IBV_WR_ATOMIC_FETCH_AND_ADD; });
  spoil([](Header& header) { header.kind = Kind::kDatagram; });
  spoil([](Header& header) { header.kind = Kind::kAbandon; });
}

TEST_F(WireHostileTest, Garbage) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const auto caller = welcome();
    std::vector<uint8_t> noise(8192);
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    caller->say(noise.data(), noise.size());
    EXPECT_TRUE(caller->has_ended());
  }
}

TEST_F(WireHostileTest, ATruncatedFrameEndsWithItsConnection) {
  const Header header = make_write();
  for (const size_t bytes : {sizeof(header) / 2, sizeof(header), sizeof(header) + 100}) {
    std::vector<uint8_t> part(bytes, 1);
    memcpy(part.data(), &header, std::min(bytes, sizeof(header)));
    welcome()->say(part.data(), part.size());
    expect_honest_goes_on();
  }
}

TEST_F(WireHostileTest, WrongKeysAreRefused) {
  Header header = make_write();
  ++header.key;
  expect_refusal(*welcome(), header, kAccessError);
  expects_error_ = true;
}

TEST_F(WireHostileTest, OutsideOfTheMemoryIsRefused) {
  Header header = make_write();
  header.address += kBytes - 4095;
  expect_refusal(*welcome(), header, kAccessError);
  expects_error_ = true;
}

TEST_F(WireHostileTest, OtherQueuePairsAreRefused) {
  const auto caller = welcome();
  Header unknown = make_write(), foreign = make_write();
  unknown.target_qp += 77;
  expect_refusal(*caller, unknown, kGone);
  foreign.source_qp = kHonestQp;  // that queue pair is another one's peer
  expect_refusal(*caller, foreign, kGone);
}

TEST_F(WireHostileTest, SequencesOutOfOrder) {
  const auto ahead = welcome();
  Header header = make_write(), answer{};
  header.sequence = 5;
  ahead->say_frame(header);
  EXPECT_FALSE(ahead->hear(answer, 300)) << "held: messages 0 to 4 come first";
  const auto behind = welcome();
  header = make_write();
  behind->say_frame(header);
  ASSERT_TRUE(behind->hear(answer));
  EXPECT_EQ(answer.kind, Kind::kAcknowledge);
  behind->say_frame(header);
  EXPECT_TRUE(behind->has_ended()) << "message 0 once more";
}

TEST_F(WireHostileTest, ChunksThatDisagree) {
  const auto spoil = [&](auto&& change) {
    const auto caller = welcome();
    Header header = make_write(8192);
    header.length = 4096;
    caller->say_frame(header);
    header.offset = 4096;
    change(header);
    caller->say_frame(header);
    EXPECT_TRUE(caller->has_ended());
  };
  spoil([](Header& header) { header.bytes = 16384; });
  spoil([](Header& header) { header.address += 8; });
  spoil([](Header& header) { ++header.key; });
  spoil([](Header& header) { header.code = IBV_WR_SEND; });
  spoil([](Header& header) { header.offset = 0, header.length = 8192; });  // more bytes than it has
}

TEST_F(WireHostileTest, SilentCallersAreBounded) {
  constexpr int kCallers = 600, kMost = 256;
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < kCallers; ++i) callers.push_back(std::make_unique<Caller>(slot_));
  expect_honest_goes_on();
  int waiting = 0;
  for (const auto& caller : callers) waiting += caller->is_connected() && !caller->has_ended(0) ? 1 : 0;
  EXPECT_LE(waiting, kMost);
  EXPECT_GT(waiting, 0);
  for (const auto& caller : callers) EXPECT_TRUE(caller->has_ended(20000));
  welcome();
}

}  // namespace
}  // namespace verbena::softverbs_test
