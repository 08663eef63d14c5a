// Nothing listens on an interface that was not asked for: in a network of its own, with two interfaces, the
// kernel's own list of listeners. Skipped without the right to make one.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <fstream>
#include <set>
#include <sstream>

#include "transport/support/connection.h"

namespace verbena::transport {
namespace {

constexpr char kAsked[] = "10.99.1.1", kOther[] = "10.99.2.1";
constexpr char kListening[] = "0A", kUnconnectedDatagrams[] = "07";

bool run(const std::string& command) {
  return system((command + " >/dev/null 2>&1").c_str()) == 0;
}

bool make_network() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  return run("ip link set lo up") && run("ip link add asked0 type veth peer name other0") &&
         run(std::string("ip addr add ") + kAsked + "/24 dev asked0") &&
         run(std::string("ip addr add ") + kOther + "/24 dev other0") &&
         run("ip -6 addr add fd99::1/64 dev other0 nodad || true") && run("ip link set asked0 up") &&
         run("ip link set other0 up");
}

// Addresses that something of this network waits at, as /proc writes them.
std::set<std::string> list_listeners() {
  std::set<std::string> found;
  for (const char* table : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream file(std::string("/proc/self/net/") + table);
    const std::string wanted = table[0] == 't' ? kListening : kUnconnectedDatagrams;
    std::string line;
    std::getline(file, line);  // the head
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      if (state == wanted) found.insert(std::string(table) + " " + local.substr(0, local.find(':')));
    }
  }
  return found;
}

std::string show_as_kernel_does(const char* address) {
  in_addr raw{};
  inet_pton(AF_INET, address, &raw);
  char text[16];
  std::snprintf(text, sizeof(text), "tcp %08X", raw.s_addr);
  return text;
}

class ListeningTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!make_network()) GTEST_SKIP() << "no right to make a network";
    ASSERT_TRUE(list_listeners().empty());
  }

  // Everything that a process of a job has open: devices, queue pairs, a listener, a connection.
  static std::set<std::string> listen(const char* interface) {
    auto [host, nic] = OwnNic(1, Settings{{"VERBENA_SOCKET_IFNAME", interface}});
    protocol::Handle handle;
    const auto listener = take(Listener::open(nic, &handle), "a listener");
    const ConnectedPair connection = connect_here(nic, nic, true);
    return list_listeners();
  }
};

TEST_F(ListeningTest, TheHandshakeWaitsAtTheInterfaceThatWasNamed) {
  EXPECT_EQ(listen("=asked0"), std::set<std::string>{show_as_kernel_does(kAsked)});
}

// softverbs between hosts waits for streams, at its rails' addresses.
TEST_F(ListeningTest, TheWireWaitsAtItsRails) {
  setenv("SOFTVERBS_NETDEVS", "other0", 1);
  setenv("SOFTVERBS_INSECURE", "1", 1);
  setenv("SOFTVERBS_FORCE_WIRE", "1", 1);
  EXPECT_EQ(listen("=asked0"),
            (std::set<std::string>{show_as_kernel_does(kAsked), show_as_kernel_does(kOther)}));
}

}  // namespace
}  // namespace verbena::transport
