#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "wire_caller.h"

// VERBENA_ENCRYPTION=1: what peers say to each other can be neither read nor changed on the way.
namespace verbena::softverbs_test {
namespace {

using namespace softverbs::wire;

std::string make_key() {
  const auto path =
      std::filesystem::temp_directory_path() / ("softverbs-encryption-" + std::to_string(getpid()));
  std::ofstream(path) << "a secret of this test\n";
  EXPECT_EQ(chmod(path.c_str(), 0600), 0);
  setenv("VERBENA_JOB_KEY_FILE", path.c_str(), 1);
  return path;
}

class WireEncryptionTest : public WireHostileTest {
 protected:
  void SetUp() override {
    path_ = make_key();
    setenv("VERBENA_ENCRYPTION", "1", 1);
    ASSERT_TRUE(load_key());
    WireHostileTest::SetUp();
  }
  void TearDown() override {
    WireHostileTest::TearDown();
    std::filesystem::remove(path_);
  }
  // A whole write of a new session, as it would go over the network.
  std::vector<uint8_t> make_record(Caller& caller) {
    const Header header = make_write(64);
    std::vector<uint8_t> frame(sizeof(header) + header.length, 0xee);
    memcpy(frame.data(), &header, sizeof(header));
    return caller.seal(frame.data(), frame.size());
  }
  std::string path_;
};

TEST_F(WireEncryptionTest, WhoEncryptsIsHeard) {
  const auto caller = welcome_with_key();
  expect_acknowledgement(*caller, make_write());
  Header answer{};
  const auto record = make_record(*caller);
  caller->say_raw(record.data(), record.size());
  ASSERT_TRUE(caller->hear(answer));
  EXPECT_EQ(answer.kind, Kind::kAcknowledge) << "the tests below change such a record";
}

TEST_F(WireEncryptionTest, WhoHasTheKeyAndDoesNotEncryptIsRefused) {
  Caller caller(slot_);
  Hello hello = make_hello(victim_, ++links_), answer{};
  hello.protection = kKeyed;
  caller.say(hello);
  ASSERT_TRUE(caller.hear(answer));
  EXPECT_EQ(answer.refusal, kEncryptionMissing);
  EXPECT_TRUE(caller.has_ended());
}

TEST_F(WireEncryptionTest, PlainFramesAreNotHeard) {
  const auto caller = welcome_with_key();
  caller->encrypt(nullptr);
  caller->say_frame(make_write());
  EXPECT_TRUE(caller->has_ended());
}

TEST_F(WireEncryptionTest, AnyBitThatIsChangedEndsTheConnection) {
  size_t bytes = 0;
  for (size_t at = 0; at == 0 || at < bytes; at += 11) {
    const auto caller = welcome_with_key();
    auto record = make_record(*caller);
    bytes = record.size();
    record[at] ^= 1;
    caller->say_raw(record.data(), record.size());
    // A length that is longer waits for more of it.
    const std::vector<uint8_t> more(1024);
    caller->say_raw(more.data(), more.size());
    Header answer{};
    EXPECT_FALSE(caller->hear(answer)) << "byte " << at << " was taken";
    EXPECT_TRUE(caller->has_ended()) << "byte " << at;
  }
  EXPECT_GT(bytes, 128u);
}

TEST_F(WireEncryptionTest, ARecordThatIsSaidAgainEndsTheConnection) {
  const auto caller = welcome_with_key();
  const auto record = make_record(*caller);
  Header answer{};
  caller->say_raw(record.data(), record.size());
  ASSERT_TRUE(caller->hear(answer));
  EXPECT_EQ(answer.kind, Kind::kAcknowledge);
  caller->say_raw(record.data(), record.size());
  EXPECT_TRUE(caller->has_ended());
}

TEST_F(WireEncryptionTest, ARecordOfAnotherConnectionEndsThisOne) {
  const auto one = welcome_with_key(), other = welcome_with_key();
  const auto record = make_record(*one);
  other->say_raw(record.data(), record.size());
  EXPECT_TRUE(other->has_ended());
}

TEST_F(WireEncryptionTest, ARecordThatIsCutShortIsNotTaken) {
  for (const size_t missing : {size_t{1}, size_t{16}, size_t{100}}) {
    const auto caller = welcome_with_key();
    const auto record = make_record(*caller);
    caller->say_raw(record.data(), record.size() - missing);
    caller->stop_saying();
    EXPECT_TRUE(caller->has_ended());
  }
}

// A process that calls says which setting to look at.
TEST_F(WireEncryptionTest, TheCallerIsToldThatOnlyOneEncrypts) {
  for (const bool refuses : {true, false}) {
    Child requester([&](int socket) {
      ::testing::internal::CaptureStderr();
      call_peer(socket);
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find("VERBENA_ENCRYPTION must be the same"), std::string::npos) << said;
      const std::string peer =
          "cannot reach the process at 127.0.0." + std::to_string(kPeerHost) + ", TCP port ";
      EXPECT_NE(said.find(peer), std::string::npos) << said;
    });
    TakenCall call(requester);
    auto& [listener, fd, hello] = call;
    EXPECT_EQ(hello.protection, kEncrypted);
    hello.protection = kKeyed;
    hello.refusal = refuses ? kEncryptionUnknown : kWelcome;
    tell(fd, hello);
    requester.join();
  }
}

// Two processes of one host, over TCP; this one listens to all that goes over the loopback device.
struct Captured {
  bool is_possible = false;
  size_t bytes = 0, plain = 0;  // of our ports; how often what was written stands there
};

Captured capture_transfer(const char* encryption) {
  static constexpr char kMarker[] = "what nobody else may read";
  constexpr size_t kWritten = 256 << 10;
  setenv("VERBENA_ENCRYPTION", encryption, 1);
  const auto fill = [](Buffer& memory) {
    for (size_t at = 0; at < memory.size(); ++at)
      memory.data()[at] = static_cast<uint8_t>(kMarker[at % sizeof(kMarker)]);
  };
  Child far([&](int socket) {
    Node node;
    Buffer memory(node, kWritten);
    QueuePair pair(node);
    Buffer expected(node, kWritten);
    fill(expected);
    meet(socket, pair);
    pair.post_receive(0, memory, 0, 8);
    tell(socket, memory.remote());
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    hear<bool>(socket);
    EXPECT_EQ(memcmp(memory.data(), expected.data(), kWritten), 0);
  });
  Child near([&](int socket) {
    Node node;
    Buffer memory(node, kWritten);
    fill(memory);
    QueuePair pair(node);
    meet(socket, pair);
    const auto target = hear<RemoteMemory>(socket);
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE_WITH_IMM, 1).from(memory, 0, kWritten).to(target).run(pair),
              IBV_WC_SUCCESS);
    tell(socket, true);
  });
  Captured captured;
  const int listener = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
  sockaddr_ll loopback{};
  loopback.sll_family = AF_PACKET;
  loopback.sll_protocol = htons(ETH_P_ALL);
  loopback.sll_ifindex = static_cast<int>(if_nametoindex("lo"));
  captured.is_possible =
      listener >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  constexpr int kRoom = 8 << 20;
  setsockopt(listener, SOL_SOCKET, SO_RCVBUFFORCE, &kRoom, sizeof(kRoom));
  const auto far_address = hear<Address>(far.socket()), near_address = hear<Address>(near.socket());
  tell(far.socket(), near_address);
  tell(near.socket(), far_address);
  tell(near.socket(), hear<bool>(far.socket()));
  tell(far.socket(), hear<bool>(near.socket()));
  tell(near.socket(), hear<RemoteMemory>(far.socket()));
  hear<bool>(near.socket());
  tell(far.socket(), true);
  far.join();
  near.join();
  std::string packet(1 << 17, '\0');
  for (ssize_t count; (count = recv(listener, packet.data(), packet.size(), 0)) > 0;) {
    constexpr size_t kIpHeader = ETH_HLEN + 20;
    if (static_cast<size_t>(count) < kIpHeader + 4) continue;
    const auto port_at = [&](size_t at) {
      return static_cast<uint8_t>(packet[at]) << 8 | static_cast<uint8_t>(packet[at + 1]);
    };
    const auto is_ours = [](int port) { return port >= kPort && port < kPort + 1024; };
    if (!is_ours(port_at(kIpHeader)) && !is_ours(port_at(kIpHeader + 2))) continue;
    captured.bytes += static_cast<size_t>(count);
    const std::string_view seen(packet.data(), static_cast<size_t>(count));
    for (size_t at = 0; (at = seen.find(kMarker, at)) != seen.npos; ++at) ++captured.plain;
  }
  close(listener);
  return captured;
}

// In a network of its own: what other programs send over the loopback device would take the room of what is
// captured.
TEST(WireCaptureTest, NothingPlainGoesOverTheNetwork) {
  if (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up") != 0)
    GTEST_SKIP() << "no right to make a network";
  const std::string path = make_key();
  setenv("SOFTVERBS_DEVICES", "1", 1);
  setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
  setenv("SOFTVERBS_FORCE_WIRE", "1", 1);
  setenv("SOFTVERBS_PORT", std::to_string(kPort).c_str(), 1);
  const Captured plain = capture_transfer("0");
  if (!plain.is_possible) GTEST_SKIP() << "no right to listen to a device";
  EXPECT_GT(plain.plain, 1000u) << "the test does not see what goes over the network";
  const Captured encrypted = capture_transfer("1");
  EXPECT_GT(encrypted.bytes, 256u << 10);
  EXPECT_EQ(encrypted.plain, 0u);
  std::filesystem::remove(path);
}

// More than a turn takes, on one stream: what was read ahead is worked off although the socket has nothing
// any more.
TEST(WireEncryptionBulkTest, NothingStaysBehind) {
  constexpr size_t kBytes = 1 << 20;
  constexpr int kRounds = 20, kAtATime = 32;
  const std::string path = make_key();
  setenv("VERBENA_ENCRYPTION", "1", 1);
  setenv("SOFTVERBS_DEVICES", "1", 1);
  setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
  setenv("SOFTVERBS_FORCE_WIRE", "1", 1);
  setenv("SOFTVERBS_STREAMS", "1", 1);
  Child near([&](int) {
    Child far([&](int socket) {
      auto [node, memory, pair] = ConnectedMemory(socket, kBytes);
      tell(socket, memory.remote());
      hear<bool>(socket);
    });
    auto [node, memory, pair] = ConnectedMemory(far.socket(), kBytes);
    const auto target = hear<RemoteMemory>(far.socket());
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kAtATime; ++i)
        ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, kBytes).to(target).post(pair), 0);
      ASSERT_EQ(node.wait_completions(kAtATime, 10000).size(), size_t{kAtATime}) << "round " << round;
    }
    tell(far.socket(), true);
    far.join();
  });
  near.join();
  std::filesystem::remove(path);
}

TEST(WireWithoutKeyTest, EncryptionNeedsAKey) {
  setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
  setenv("VERBENA_ENCRYPTION", "1", 1);
  unsetenv("VERBENA_JOB_KEY_FILE");
  ::testing::internal::CaptureStderr();
  expect_unopened();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("VERBENA_ENCRYPTION=1 needs a job key"), std::string::npos) << said;
}

}  // namespace
}  // namespace verbena::softverbs_test
