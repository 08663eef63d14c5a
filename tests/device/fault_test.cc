// What a kernel does when a test plants faults in it.
#define VERBENA_DEVICE_FAULTS
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "device/support/run_kernel.h"
#include "verbena/device/nccl_unpack.cuh"

namespace verbena::device_test {
namespace {

using device::ErrorCode;
using device::ErrorWord;
using device::Fault;
using device::KernelArguments;
using device::WaitResult;
using State = device::KernelState<1, 1, 32>;

constexpr uint32_t kThreads = 64;
constexpr uint32_t kMessageBytes = 1000;
const char state_key = 0;

// One receive of one complete message by one group.
struct Receive {
  std::unique_ptr<NetUnpackMeta> meta = std::make_unique<NetUnpackMeta>();
  alignas(16) char bounce[1024];
  alignas(16) char data[1024] = {};
  UnpackDeviceHandle handle{meta.get(), bounce, kUnpackFreshHead};
  UnpackDeviceHandle* handles[1] = {&handle};
  ErrorWord error{};
  WaitResult first = WaitResult::kReached, second = WaitResult::kReached;

  explicit Receive(Fault fault) {
    for (uint32_t i = 0; i < sizeof(bounce); ++i) bounce[i] = static_cast<char>(i * 7 + 1);
    for (uint32_t slot = 0; slot < 2; ++slot) {
      meta->mem[slot][0] = {0, kMessageBytes, 0};
      meta->cnt[slot] = 1;
    }
    KernelArguments arguments{};
    arguments.channel_mask[0] = 1;
    arguments.receive_handles = handles;
    arguments.error = &error;
    arguments.groups = arguments.peers = 1;
    arguments.timeout_ns = uint64_t{1} << 50;
    arguments.faults = static_cast<uint64_t>(fault);
    emulator::run_kernel(1, 1, kThreads, [&] {
      auto& state = *static_cast<State*>(device::emulation::shared_memory(&state_key, sizeof(State), 16));
      if (!device::start_kernel(state, &arguments)) return;
      const device::WarpsGroup group{0, kThreads, 1};
      device::CopyThroughRegisters copy;
      const WaitResult result = device::receive_message(state, group, copy, 0, 0, data);
      const WaitResult next = device::receive_message(state, group, copy, 0, 0, data);
      if (group.rank() == 0) first = result, second = next;
      device::finish_kernel(state);
    });
  }

  bool is_placed() const { return std::memcmp(data, bounce, kMessageBytes) == 0; }
  bool is_untouched() const {
    const char nothing[sizeof(data)] = {};
    return std::memcmp(data, nothing, sizeof(data)) == 0;
  }
};

TEST(Faults, ADelayLosesNothing) {
  const Receive receive(Fault::kDelayPlacing);
  EXPECT_EQ(receive.first, WaitResult::kReached);
  EXPECT_TRUE(receive.is_placed());
  EXPECT_EQ(receive.error.bits, 0U);
}

TEST(Faults, AForcedAbortEndsThisAndEveryLaterReceive) {
  const Receive receive(Fault::kForceAbort);
  EXPECT_EQ(receive.first, WaitResult::kAborted);
  EXPECT_EQ(receive.second, WaitResult::kAborted);
  EXPECT_TRUE(receive.is_untouched());
  EXPECT_EQ(ErrorWord::get_code(receive.error.bits), ErrorCode::kAborted);
}

TEST(Faults, ACountThatIsTooLargeIsReportedAndWritesNothing) {
  const Receive receive(Fault::kCorruptCount);
  EXPECT_EQ(receive.first, WaitResult::kAborted);
  EXPECT_TRUE(receive.is_untouched());
  EXPECT_EQ(ErrorWord::get_code(receive.error.bits), ErrorCode::kBadCount);
}

}  // namespace
}  // namespace verbena::device_test
