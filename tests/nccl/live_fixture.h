// A typed fixture over the built plugin, on softverbs by default: loaded, initialised, and at the end
// finalized and unloaded.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/rails_file.h"
#include "nccl/live_connection.h"
#include "nccl/loaded_plugin.h"
#include "nccl/log_capture.h"

namespace verbena::nccl::testing {

using NewestVersion = Version<12, abi::ncclNet_v12_t>;

// Takes rails of softverbs down and up, from its first device on.
class RailSwitch {
 public:
  explicit RailSwitch(ScopedEnvironment& environment) {
    environment.set("SOFTVERBS_RAILS", file_.path().c_str());
  }
  // Returns once the plugin has been told, and has said so. What was logged is taken.
  bool set(int rail, const std::string& state) const {
    file_.write(std::to_string(rail) + " " + state + "\n");
    const std::string words = ":1: port is " + std::string(state == "down" ? "down" : "up again");
    return poll_until([&] {
      return std::ranges::any_of(LogCapture::get().take_warnings(), [&](const std::string& line) {
        return line.find("softverbs" + std::to_string(rail) + words) != std::string::npos;
      });
    });
  }

 private:
  tests::RailsFile file_;
};

class LiveEnvironment : public ::testing::Test {
 protected:
  LiveEnvironment() {
    for (const char* name : {"NCCL_IB_HCA", "VERBENA_UNPACK_THRESHOLD", "NCCL_NET_DEVICE_UNPACK_ENABLED",
                             "NCCL_NET_DEVICE_UNPACK_THRESHOLD"}) {
      environment_.unset(name);
    }
    environment_.set("VERBENA_UNPACK", "1");
    environment_.set("VERBENA_TUNING_FILE", "none");
    // Unless the environment names a library, and two of its devices.
    if (std::getenv("VERBENA_IBVERBS_LIB") == nullptr) {
      environment_.set("VERBENA_IBVERBS_LIB", "softverbs");
      environment_.unset("VERBENA_HCA");
    }
    environment_.set("SOFTVERBS_DEVICES", "2");
    environment_.set("VERBENA_SOCKET_IFNAME", "lo");
    environment_.set("VERBENA_MERGE_NICS", "1");  // softverbs has no PCI path
    LogCapture::get().take_lines();
  }
  ScopedEnvironment environment_;
};

template <typename V>
class LiveTest : public LiveEnvironment {
 protected:
  void SetUp() override {
    plugin_ = std::make_unique<LoadedPlugin>();
    ASSERT_NE(plugin_->table<V>(), nullptr) << plugin_->problem();
    net_ = std::make_unique<Caller<V>>(*plugin_->table<V>());
  }
  void TearDown() override {
    connections_.clear();
    if (std::exchange(is_up_, false)) {
      EXPECT_EQ(net_->finalize(context_), abi::kSuccess);
    }
    net_.reset();
    plugin_.reset();
  }

  // The number of devices, 0 if anything failed.
  int start() {
    int count = 0;
    is_up_ = net_->init(&context_, 0x5eed, abi::kUndefined, &LogCapture::write) == abi::kSuccess;
    if (!is_up_ || (*net_)->devices(&count) != abi::kSuccess) return 0;
    return count;
  }
  LiveConnection<V>& add_connection() {
    return *connections_.emplace_back(std::make_unique<LiveConnection<V>>(*net_, context_));
  }
  // Two rails as one device: its number, or -1.
  int start_joined() {
    EXPECT_EQ(start(), 2);
    abi::ncclNetVDeviceProps_v12_t members{2, {0, 1}};
    int joined = -1;
    EXPECT_EQ((*net_)->make_vdevice(&joined, &members), abi::kSuccess);
    return joined;
  }
  // For what a test cannot go on without: throws.
  LiveConnection<V>* establish(int device = 0, HandleShape shape = HandleShape::kFilled) {
    LiveConnection<V>& connection = add_connection();
    if (!connection.establish(device, shape)) throw std::runtime_error("no connection is made");
    return &connection;
  }
  LiveConnection<V>* start_connected(int device = 0, HandleShape shape = HandleShape::kFilled) {
    if (start() != 2) throw std::runtime_error("the plugin does not start with two devices");
    return establish(device, shape);
  }

  std::unique_ptr<LoadedPlugin> plugin_;
  std::unique_ptr<Caller<V>> net_;
  void* context_ = nullptr;
  bool is_up_ = false;
  std::vector<std::unique_ptr<LiveConnection<V>>> connections_;
};

}  // namespace verbena::nccl::testing
