#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "fixture.h"

namespace verbena::softverbs_test {

// Plans and control files are read once per process, so each test has a separate process. Runs once in
// memory and once over the wire.
class InjectedTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) return;
    setenv("SOFTVERBS_NETDEVS", "127.0.0.1,127.0.0.2", 1);
    setenv("SOFTVERBS_FORCE_WIRE", "1", 1);
  }
  void TearDown() override {
    if (!rails_path_.empty()) unlink(rails_path_.c_str());
  }
  bool uses_wire() const { return GetParam(); }
  void use_plan(const std::string& plan) { setenv("SOFTVERBS_FAULTS", plan.c_str(), 1); }
  // The control file of the rails, with this text.
  void use_rails(const std::string& text) {
    rails_path_ = ::testing::TempDir() + "rails-" + std::to_string(getpid());
    order(text);
    setenv("SOFTVERBS_RAILS", rails_path_.c_str(), 1);
  }
  void order(const std::string& text) { std::ofstream(rails_path_) << text; }

 private:
  std::string rails_path_;
};

// Two connected queue pairs of one process on a rail.
struct InjectedLink : TwoNodes {
  explicit InjectedLink(int rail = 0, const QpOptions& with = {}) : TwoNodes(8192, rail), options(with) {
    connect();
  }
  void connect() { TwoNodes::connect(options); }
  void post_writes(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(write(first + i).post(*left), 0);
  }
  // Writes one after the other until one fails: its status.
  ibv_wc write_once(uint64_t wr_id) {
    EXPECT_EQ(write(wr_id).post(*left), 0);
    return left_node.wait_completion();
  }

  QpOptions options;
};

inline ibv_port_state query_port(const Node& node) {
  ibv_port_attr port{};
  EXPECT_EQ(ibv_query_port(node.context, 1, &port), 0);
  return port.state;
}

inline bool has_event(const Node& node, int timeout_ms) {
  pollfd ready{node.context->async_fd, POLLIN, 0};
  return poll(&ready, 1, timeout_ms) == 1;
}

// The next event, acknowledged; a zeroed one when none comes.
inline ibv_async_event wait_event(const Node& node) {
  ibv_async_event event{};
  EXPECT_TRUE(has_event(node, 10000));
  if (!has_event(node, 0)) return event;
  EXPECT_EQ(ibv_get_async_event(node.context, &event), 0);
  ibv_ack_async_event(&event);
  return event;
}

inline std::string name_way(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Wire" : "Memory";
}

}  // namespace verbena::softverbs_test
