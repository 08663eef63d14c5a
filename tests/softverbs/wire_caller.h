#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fixture.h"
#include "softverbs/shared/random.h"
#include "softverbs/shared/shared_layout.h"
#include "softverbs/wire/frame.h"
#include "softverbs/wire/secret.h"

namespace verbena::softverbs_test {

// Raw connections to the wire of a victim, a process with two queue pairs and some memory.
using softverbs::wire::Header, softverbs::wire::Hello, softverbs::wire::Kind, softverbs::wire::Reason;

inline constexpr int kPort = 24999;
inline constexpr size_t kBytes = 64 << 10;
inline constexpr uint32_t kHostileQp = 0x500009, kHonestQp = 0x50000a;  // as the callers call theirs

inline constexpr rlim_t kVictimDescriptors = 256;
inline constexpr uint8_t kPeerHost = 2, kOtherHost = 3;  // of 127.0.0.0

// One end of a TCP connection to the victim, from the address of its peers or from another one.
class Caller {
 public:
  explicit Caller(uint32_t slot, uint8_t host = kPeerHost)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f000000 | host);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(kPort + slot));
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
    is_connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Caller() { close(fd_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // From here on what it says and hears is encrypted.
  void encrypt(std::shared_ptr<crypto::EncryptedStream> encryption) { encryption_ = std::move(encryption); }
  // What it would say next, as it would go over the network.
  std::vector<uint8_t> seal(const void* data, size_t bytes) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_EQ(encryption_->send(ends[0], data, bytes), static_cast<ssize_t>(bytes));
    std::vector<uint8_t> record(bytes + 100);
    record.resize(static_cast<size_t>(recv(ends[1], record.data(), record.size(), 0)));
    for (const int end : ends) close(end);
    return record;
  }
  void say_raw(const void* data, size_t bytes) { send(fd_, data, bytes, MSG_NOSIGNAL); }
  void say(const void* data, size_t bytes) {
    if (encryption_ == nullptr) return say_raw(data, bytes);
    for (size_t at = 0; at < bytes;) {
      const ssize_t sent = encryption_->send(fd_, static_cast<const char*>(data) + at, bytes - at);
      if (sent > 0) at += static_cast<size_t>(sent);
      if (sent < 0 && errno != EAGAIN) return;
    }
  }
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
    if (encryption_ == nullptr)
      return poll(&ready, 1, timeout_ms) == 1 &&
             recv(fd_, &value, sizeof(value), MSG_WAITALL) == sizeof(value);
    for (size_t at = 0; at < sizeof(value);) {
      const ssize_t count =
          encryption_->receive(fd_, reinterpret_cast<char*>(&value) + at, sizeof(value) - at);
      if (count == 0 || (count < 0 && (errno != EAGAIN || poll(&ready, 1, timeout_ms) != 1))) return false;
      if (count > 0) at += static_cast<size_t>(count);
    }
    return true;
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
  void stop_saying() { shutdown(fd_, SHUT_WR); }
  bool is_connected() const { return is_connected_; }

 private:
  int fd_;
  bool is_connected_ = false;
  std::shared_ptr<crypto::EncryptedStream> encryption_;
};

// The body of a process that writes once to the queue pair whose number the test tells it, and fails.
inline void call_peer(int socket) {
  Node node;
  Buffer memory(node, 64);
  QueuePair pair(node);
  Address far = pair.address();
  far.gid.raw[15] = kPeerHost;
  far.qp_number = hear<uint32_t>(socket);
  pair.connect(far);
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(0x1000, 1).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_RETRY_EXC_ERR);
}

// In the place of a process of the peers' host: its port and its slot.
inline int listen_somewhere(uint32_t& slot) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(0x7f000000 | kPeerHost);
  slot = softverbs::kProcessSlots / 2;
  do {
    at.sin_port = htons(static_cast<uint16_t>(kPort + ++slot));
  } while (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0 &&
           slot < softverbs::kProcessSlots);
  EXPECT_EQ(listen(listener, 4), 0);
  return listener;
}

// Listens in the place of a peer, and takes the call of a process that runs call_peer().
struct TakenCall {
  explicit TakenCall(const Child& caller) {
    uint32_t slot = 0;
    listener = listen_somewhere(slot);
    tell(caller.socket(), softverbs::make_qp_number(slot, 20));
    fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(fd, 0);
    hello = hear<Hello>(fd);
  }
  ~TakenCall() {
    close(fd);
    close(listener);
  }
  TakenCall(const TakenCall&) = delete;
  TakenCall& operator=(const TakenCall&) = delete;

  int listener, fd;
  Hello hello;  // the caller's
};

// A setting is wrong: no device can be opened.
inline void expect_unopened() {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  ASSERT_GT(count, 0);
  EXPECT_EQ(ibv_open_device(devices[0]), nullptr);
  ibv_free_device_list(devices);
}

struct Victim {
  uint32_t hostile_qp, honest_qp;
  RemoteMemory memory;
};

inline Hello make_hello(const Victim& victim, uint64_t link, uint8_t host = kPeerHost) {
  Hello hello{};
  hello.magic = softverbs::wire::kMagic;
  hello.version = softverbs::wire::kProtocolVersion;
  hello.link = link;
  hello.streams = 1;
  hello.slot = softverbs::get_qp_slot(victim.hostile_qp);
  const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  memcpy(hello.source, mapped, sizeof(mapped));
  memcpy(hello.destination, mapped, sizeof(mapped));
  hello.source[15] = host;
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
      const rlimit few{kVictimDescriptors, kVictimDescriptors};
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
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
      far.qp_number = kHostileQp;
      obey(socket, hostile, far);
      tell(socket, hostile.query_state() == IBV_QPS_ERR);
    });
    victim_ = hear<Victim>(child_->socket());
    slot_ = softverbs::get_qp_slot(victim_.hostile_qp);
    honest_ = softverbs::wire::has_key() ? welcome_with_key() : welcome();
    expect_honest_goes_on();
  }
  // Orders that the victim executes: use up all file descriptors, release them, reset the hostile caller's
  // queue pair, connect it, exit.
  enum class Order : uint8_t { kExhaust, kRelease, kReset, kConnect, kEnd };
  static void obey(int socket, QueuePair& hostile, const Address& far) {
    std::vector<int> taken;
    for (Order order; (order = hear<Order>(socket)) != Order::kEnd;) {
      if (order == Order::kExhaust) {
        for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(fd);
      } else if (order == Order::kRelease) {
        for (const int fd : taken) close(fd);
        taken.clear();
      } else if (order == Order::kReset) {
        EXPECT_EQ(hostile.to_state(IBV_QPS_RESET), 0);
      } else {
        hostile.connect(far);
      }
      tell(socket, true);
    }
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0) << "no descriptor is left to the victim";
    close(fd);
  }
  void order(Order order) {
    tell(child_->socket(), order);
    hear<bool>(child_->socket());
  }
  void TearDown() override {
    expect_honest_goes_on();
    tell(child_->socket(), Order::kEnd);
    EXPECT_EQ(hear<bool>(child_->socket()), expects_error_);
  }
  std::unique_ptr<Caller> welcome(uint8_t host = kPeerHost) {
    auto caller = std::make_unique<Caller>(slot_, host);
    caller->say(make_hello(victim_, ++links_, host));
    Hello answer{};
    EXPECT_TRUE(caller->hear(answer));
    EXPECT_EQ(answer.refusal, softverbs::wire::kWelcome);
    return caller;
  }
  // The same with a job key; keeps the exchanged messages for tests that replay them.
  std::unique_ptr<Caller> welcome_with_key() {
    auto caller = std::make_unique<Caller>(slot_);
    Hello hello = make_hello(victim_, ++links_), answer{};
    hello.protection = softverbs::wire::get_protection();
    EXPECT_TRUE(softverbs::draw(hello.challenge));
    caller->say(hello);
    EXPECT_TRUE(caller->hear(answer));
    EXPECT_TRUE(softverbs::wire::check_welcome(hello, answer));
    softverbs::wire::Ready ready{};
    EXPECT_TRUE(softverbs::wire::sign_ready(hello, answer, ready));
    caller->say(ready);
    said_ = {hello, ready};
    if (softverbs::wire::get_protection() == softverbs::wire::kEncrypted)
      caller->encrypt(softverbs::wire::make_encryption(hello, answer, true));
    return caller;
  }
  void expect_turned_away(const Hello& hello) {
    Caller caller(slot_);
    caller.say(hello);
    Hello answer{};
    EXPECT_TRUE(caller.hear(answer));
    EXPECT_NE(answer.refusal, softverbs::wire::kWelcome);
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
  void expect_acknowledgement(Caller& caller, const Header& header) {
    Header answer{};
    caller.say_frame(header);
    ASSERT_TRUE(caller.hear(answer));
    EXPECT_EQ(answer.kind, Kind::kAcknowledge);
    EXPECT_EQ(answer.sequence, header.sequence);
  }
  void expect_honest_goes_on() { expect_honest_goes_on(*honest_); }
  void expect_honest_goes_on(Caller& honest) {
    SCOPED_TRACE("the honest caller must be served");
    Header header = make_write(512);
    header.session = 1;
    header.sequence = honest_writes_++;
    header.source_qp = kHonestQp;
    header.target_qp = victim_.honest_qp;
    expect_acknowledgement(honest, header);
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
  std::vector<std::unique_ptr<Caller>> crowd_;  // whose connections stay to the end
  struct {
    Hello hello;
    softverbs::wire::Ready ready;
  } said_{};
  uint64_t links_ = 100, sessions_ = 0, honest_writes_ = 0;
  bool expects_error_ = false;
};

}  // namespace verbena::softverbs_test
