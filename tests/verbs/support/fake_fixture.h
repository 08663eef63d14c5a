// A fresh script and record of the fake library for each test; at the end nothing may be left open or
// misused.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fake/fake_ibverbs.h"
#include "tests/base/log_capture.h"
#include "verbs/device_opener.h"
#include "verbs/queues.h"

namespace verbena::verbs {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Devices = std::vector<std::unique_ptr<Device>>;

fake::Hooks& fake_hooks(const char* library_path);

fake::Gid make_ipv4_gid(uint8_t last_byte, uint32_t type = IBV_GID_TYPE_ROCE_V2);
fake::Gid make_global_gid(uint8_t last_byte);  // 2001:db8::, RoCE v2
fake::Gid make_link_local_gid(uint32_t type = IBV_GID_TYPE_ROCE_V2);
// A RoCE card as it is found in the field: one active port, link-local and IPv4 GIDs.
fake::Device make_card(const std::string& name, size_t ports = 1);

class FakeTest : public testing::Test {
 protected:
  FakeTest();
  ~FakeTest() override;

  fake::Script& script() { return hooks_.script; }
  fake::Record& record() { return hooks_.record; }
  // Devices of the fake with these settings; the test fails if there are none.
  Devices discover();
  base::Result<Devices> try_discover() { return discover_devices(settings_); }

  fake::Hooks& hooks_;
  DiscoverySettings settings_;
  base::LogCapture log_;
};

// One device, found before the test starts.
class FakeDeviceTest : public FakeTest {
 protected:
  FakeDeviceTest();

  Device& device() { return *devices_.at(0); }

  Devices devices_;
};

}  // namespace verbena::verbs
