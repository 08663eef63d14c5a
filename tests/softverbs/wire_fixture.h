#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "fixture.h"
#include "network.h"

namespace verbena::softverbs_test {

// Two hosts, each a network namespace, with processes that share everything else: /dev/shm, the boot id,
// the job. Only their addresses say that they are two.
class WireTest : public ::testing::Test {
 protected:
  void SetUp() override {
    network = std::make_unique<Network>();
    if (!network->problem().empty()) GTEST_SKIP() << network->problem();
  }
  // This process becomes host 0, the child host 1.
  std::unique_ptr<Child> start_far(const std::function<void(int)>& body) {
    setenv("SOFTVERBS_DEVICES", "1", 1);
    auto child = std::make_unique<Child>([&](int socket) {
      ASSERT_TRUE(network->enter(1));
      choose_address(1);
      body(socket);
    });
    network->connect();
    EXPECT_TRUE(network->enter(0));
    choose_address(0);
    return child;
  }
  void choose_address(int host) {
    const std::string address = use_v6 ? Network::get_address_v6(host) : Network::get_address(host);
    setenv("SOFTVERBS_NETDEVS", address.c_str(), 1);
    setenv("SOFTVERBS_INSECURE", "1", 1);
  }
  std::unique_ptr<Network> network;
  bool use_v6 = false;
};

}  // namespace verbena::softverbs_test
