// NCCL's profiler: the events that it gets, by the tables that have its callback. Without VERBENA_PROFILER
// the plugin does not call it.
#include <cstring>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

// What NCCL's callback gets, call by call. The data thread calls it.
struct Recorded {
  int type = 0;
  void* phandle = nullptr;
  void* handle = nullptr;  // on the way in
  int64_t plugin = 0;
  abi::NetIbEvent event;
};
std::vector<Recorded> calls;
bool wants_events = true;
char handles[256];

abi::Result record(void** handle, int type, void* phandle, int64_t plugin, void* extra) {
  Recorded call{type, phandle, *handle, plugin, {}};
  if (extra != nullptr) std::memcpy(&call.event, extra, sizeof(call.event));
  if (type == abi::kProfilerStart && wants_events) *handle = &handles[calls.size()];
  calls.push_back(call);
  return abi::kSuccess;
}

template <typename V>
class ProfilerTest : public LiveTest<V> {
 protected:
  ProfilerTest() {
    calls.clear();
    wants_events = true;
    this->environment_.set("VERBENA_PROFILER", "1");
  }
  LiveConnection<V>* establish() {
    this->net_->profiler = &record;
    this->net_->phandle = &phandle_;
    return this->start_connected();
  }
  static std::vector<Recorded> select(int type) {
    std::vector<Recorded> selected;
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(selected),
                 [&](const Recorded& call) { return call.type == type; });
    return selected;
  }

  char phandle_ = 0;
};

using Versions = ::testing::Types<Version<10, abi::ncclNet_v10_t>, Version<11, abi::ncclNet_v11_t>,
                                  Version<12, abi::ncclNet_v12_t>>;
TYPED_TEST_SUITE(ProfilerTest, Versions, VersionNames);

TYPED_TEST(ProfilerTest, EachMessageBeginsAndEnds) {
  auto* connection = this->establish();
  ASSERT_EQ(connection->transfer(100'000, 0, 0), nullptr);  // direct
  ASSERT_EQ(connection->transfer(3000, 0, 0), nullptr);     // staged
  const auto begun = this->select(abi::kProfilerStart), ended = this->select(abi::kProfilerStop);
  ASSERT_EQ(begun.size(), 4U);
  ASSERT_EQ(ended.size(), 4U);
  for (const Recorded& call : begun) {
    EXPECT_EQ(call.phandle, &this->phandle_);
    EXPECT_EQ(call.handle, nullptr);
    EXPECT_EQ(call.plugin, (int64_t{1} << 16) + 1);
    EXPECT_EQ(call.event.type, 1);
    EXPECT_EQ(call.event.device, 0);
    EXPECT_NE(call.event.qp_number, 0);
  }
  // irecv, then isend, twice.
  EXPECT_EQ(begun[0].event.opcode, -1);
  EXPECT_EQ(begun[0].event.length_bytes, 100'000U);
  EXPECT_EQ(begun[1].event.opcode, 1) << "RDMA write with immediate";
  EXPECT_EQ(begun[1].event.length_bytes, 100'000U);
  EXPECT_EQ(begun[2].event.work_request, 1U);
  EXPECT_EQ(begun[3].event.opcode, 3) << "send with immediate";
  EXPECT_EQ(begun[3].event.length_bytes, 3000U);
  std::vector<void*> ended_handles;
  for (const Recorded& call : ended) {
    EXPECT_EQ(call.phandle, nullptr);
    EXPECT_GE(call.handle, static_cast<void*>(handles));
    EXPECT_EQ(std::count(ended_handles.begin(), ended_handles.end(), call.handle), 0) << "each ends once";
    ended_handles.push_back(call.handle);
  }
}

// NCCL follows the handle: bootstrap traffic has none.
TYPED_TEST(ProfilerTest, WithoutAHandleItIsNotCalled) {
  auto* connection = this->establish();
  this->net_->phandle = nullptr;
  ASSERT_EQ(connection->transfer(100'000, 0, 0), nullptr);
  EXPECT_TRUE(calls.empty());
}

// A profiler that wants none of it leaves the handle null, and is not asked to stop it.
TYPED_TEST(ProfilerTest, WhatHasNotBegunDoesNotEnd) {
  wants_events = false;
  auto* connection = this->establish();
  ASSERT_EQ(connection->transfer(100'000, 0, 0), nullptr);
  EXPECT_EQ(this->select(abi::kProfilerStart).size(), 2U);
  EXPECT_TRUE(this->select(abi::kProfilerStop).empty());
}

TYPED_TEST(ProfilerTest, NobodyIsToldUnasked) {
  this->environment_.unset("VERBENA_PROFILER");
  auto* connection = this->establish();
  ASSERT_EQ(connection->transfer(100'000, 0, 0), nullptr);
  EXPECT_TRUE(calls.empty());
}

// A message in packets is one event of each end: they leave from whichever thread has the engine.
TYPED_TEST(ProfilerTest, AMessageOfDatagramsIsOneEvent) {
  this->environment_.set("VERBENA_TRANSPORT", "datagram");
  this->net_->profiler = &record;
  this->net_->phandle = &this->phandle_;
  ASSERT_EQ(this->start(), 2);
  auto* connection = LiveTest<TypeParam>::establish(0, HandleShape::kNull);
  ASSERT_NE(connection, nullptr);
  ASSERT_EQ(connection->transfer(100'000, 0, 0), nullptr);
  const auto begun = this->select(abi::kProfilerStart);
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_EQ(begun[0].event.opcode, -1);
  EXPECT_EQ(begun[1].event.opcode, 3);
  for (const Recorded& call : begun) {
    EXPECT_EQ(call.phandle, &this->phandle_);
    EXPECT_EQ(call.event.length_bytes, 100'000U);
    EXPECT_NE(call.event.qp_number, 0);
  }
  EXPECT_EQ(this->select(abi::kProfilerStop).size(), 2U);
}

}  // namespace
}  // namespace verbena::nccl::testing
