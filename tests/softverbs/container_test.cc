// Two containers of one host, made of namespaces: bytes go from either to the other, by shared memory where
// both see one /dev/shm and each other's process ids, and otherwise over the wire.
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "fixture.h"
#include "network.h"

namespace verbena::softverbs_test {
namespace {

constexpr int kFirstPort = 24200, kPorts = 256;
constexpr size_t kBytes = 1 << 20;

struct Containers {
  const char* name;
  bool has_own_shm, has_own_pids, has_own_network;
  bool has_wire;
  bool is_wire_taken;
};

bool has_connection(const char* name) {
  std::ifstream file(name);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    // Number, local and remote address with their ports, state; most in hexadecimal digits.
    char local[40], remote[40];
    unsigned local_port = 0, remote_port = 0, state = 0;
    if (sscanf(line.c_str(), " %*d: %39[^:]:%x %39[^:]:%x %x", local, &local_port, remote, &remote_port,
               &state) != 5)
      continue;
    constexpr unsigned kEstablished = 1;
    const auto is_ours = [](unsigned port) { return port >= kFirstPort && port < kFirstPort + kPorts; };
    if (state == kEstablished && (is_ours(local_port) || is_ours(remote_port))) return true;
  }
  return false;
}

// With /proc as the container sees it: of its own network.
bool is_wire_in_use() {
  return has_connection("/proc/self/net/tcp") || has_connection("/proc/self/net/tcp6");
}

class ContainerTest : public ::testing::TestWithParam<Containers> {
 protected:
  void SetUp() override {
    // A network of its own also where both share one: no other test's connections are seen in it.
    network_ = std::make_unique<Network>();
    if (!network_->problem().empty()) GTEST_SKIP() << network_->problem();
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, between_), 0);
    setenv("SOFTVERBS_PORT", std::to_string(kFirstPort).c_str(), 1);
    setenv("SOFTVERBS_INSECURE", "1", 1);
    setenv("SOFTVERBS_DEVICES", "1", 1);
  }

  // Tells whether the container could be made, and then, by each end's expectations, whether bytes came.
  std::unique_ptr<Child> start(int host) {
    return std::make_unique<Child>([this, host](int socket) {
      const Containers& containers = GetParam();
      const int flags = CLONE_NEWNS | CLONE_NEWIPC | (containers.has_own_pids ? CLONE_NEWPID : 0);
      const bool is_made = unshare(flags) == 0 &&
                           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                           (!containers.has_own_shm || mount("none", "/dev/shm", "tmpfs", 0, nullptr) == 0) &&
                           network_->enter(containers.has_own_network ? host : 0);
      tell(socket, is_made);
      if (!is_made) return;
      // Its first process, where it has process ids of its own.
      Child inside([this, host](int) {
        if (GetParam().has_own_pids) {
          ASSERT_EQ(mount("proc", "/proc", "proc", 0, nullptr), 0);
        }
        const std::string address = GetParam().has_own_network ? Network::get_address(host) : "127.0.0.1";
        setenv("SOFTVERBS_NETDEVS", GetParam().has_wire ? address.c_str() : "none", 1);
        exchange(between_[host], static_cast<uint8_t>(host));
      });
      inside.join();
    });
  }

  static void exchange(int socket, uint8_t host) {
    Node node;
    Buffer source(node, kBytes), target(node, kBytes);
    QueuePair pair(node);
    meet(socket, pair);
    source.fill(host);
    ASSERT_EQ(pair.post_receive(2, target, 0, 0), 0);
    tell(socket, target.remote());
    const auto remote = hear<RemoteMemory>(socket);
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE_WITH_IMM, 1)
                  .from(source, 0, kBytes)
                  .to(remote)
                  .with_immediate(host)
                  .post(pair),
              0);
    // What it has sent, and what it has received.
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_TRUE(target.matches(1 - host, kBytes));
    EXPECT_EQ(is_wire_in_use(), GetParam().is_wire_taken);
    tell(socket, true);
    hear<bool>(socket);
  }

  std::unique_ptr<Network> network_;
  int between_[2] = {-1, -1};
};

TEST_P(ContainerTest, BytesGoBothWays) {
  const std::unique_ptr<Child> hosts[] = {start(0), start(1)};
  network_->connect();
  const bool are_made[] = {hear<bool>(hosts[0]->socket()), hear<bool>(hosts[1]->socket())};
  for (const auto& host : hosts) host->join();
  if (!are_made[0] || !are_made[1]) GTEST_SKIP() << "no right to make namespaces";
}

INSTANTIATE_TEST_SUITE_P(Ways, ContainerTest,
                         ::testing::Values(Containers{"OneShmAndPids", false, false, false, true, false},
                                           Containers{"OneShmAndPidsTwoNetworksWithoutAWire", false, false,
                                                      true, false, false},
                                           Containers{"OneShmTwoPids", false, true, false, true, true},
                                           Containers{"TwoShmsOnePids", true, false, false, true, true},
                                           Containers{"TwoShmsAndPids", true, true, false, true, true},
                                           Containers{"OneShmTwoNetworks", false, false, true, true, true},
                                           Containers{"NothingInCommon", true, true, true, true, true}),
                         [](const auto& containers) { return std::string(containers.param.name); });

}  // namespace
}  // namespace verbena::softverbs_test
