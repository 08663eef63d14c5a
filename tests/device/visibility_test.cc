// What a call promises when it returns: every byte is there for every thread of the group, the heads for the
// next launch. The threads read with plain loads, and ThreadSanitizer judges.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device/support/run_kernel.h"
#include "verbena/device/bulk_unpack.cuh"
#include "verbena/device/nccl_unpack.cuh"

namespace verbena::device_test {
namespace {

constexpr uint32_t kThreads = 64;
const char scratch_key = 0, stages_key = 0, state_key = 0;

// One slot of one message in pages of 1 KiB.
struct Slot {
  std::unique_ptr<NetUnpackMeta> meta = std::make_unique<NetUnpackMeta>();
  std::vector<uint64_t> bounce, data;

  explicit Slot(uint32_t length_bytes)
      : bounce(length_bytes / 8, 0x0102030405060708), data(length_bytes / 8) {
    constexpr uint32_t kPageBytes = 1024;
    for (uint32_t begin = 0; begin < length_bytes; begin += kPageBytes)
      meta->mem[0][meta->cnt[0]++] = {begin, std::min(kPageBytes, length_bytes - begin), begin};
  }
  void read_all(uint32_t first) const {
    constexpr size_t kStride = 3;
    volatile uint64_t sum = 0;
    for (size_t i = first % kStride; i < data.size(); i += kStride) sum = sum + data[i];
  }
};

enum class Call { kWithCount, kWithoutCount };

class VisibilityTest : public testing::TestWithParam<std::tuple<Call, bool, uint32_t>> {
 protected:
  template <typename Copy>
  static void unpack_and_read(Slot& slot, Copy& copy) {
    using Scratch = device::UnpackScratch<32>;
    auto& scratch = *static_cast<Scratch*>(
        device::emulation::shared_memory(&scratch_key, sizeof(Scratch), alignof(Scratch)));
    const device::BlockGroup group;
    if (std::get<0>(GetParam()) == Call::kWithCount) {
      device::unpack_message(group, scratch, copy, slot.meta.get(), 0, slot.meta->cnt[0], slot.bounce.data(),
                             slot.data.data());
    } else {
      device::unpack_message(group, scratch, copy, slot.meta.get(), 0, slot.bounce.data(), slot.data.data());
    }
    slot.read_all(group.rank());
  }
};

TEST_P(VisibilityTest, AllThreadsReadAllBytes) {
  const auto [call, through_shared, length_bytes] = GetParam();
  Slot slot(length_bytes);
  emulator::run_kernel(1, 1, kThreads, [&, is_shared = through_shared] {
    if (is_shared) {
      constexpr uint32_t kStages = 2;
      const uint32_t bytes = device::CopyThroughShared::count_shared_bytes(kThreads / 32, kStages);
      device::CopyThroughShared copy(device::BlockGroup{},
                                     device::emulation::shared_memory(&stages_key, bytes, 128), kStages);
      unpack_and_read(slot, copy);
    } else {
      device::CopyThroughRegisters copy;
      unpack_and_read(slot, copy);
    }
  });
  EXPECT_EQ(slot.data, slot.bounce);
}

std::string name_case(const testing::TestParamInfo<VisibilityTest::ParamType>& given) {
  const auto [call, through_shared, length_bytes] = given.param;
  return std::string(call == Call::kWithCount ? "With" : "Without") + "CountThrough" +
         (through_shared ? "Shared" : "Registers") + std::to_string(length_bytes);
}

INSTANTIATE_TEST_SUITE_P(Calls, VisibilityTest,
                         testing::Combine(testing::Values(Call::kWithCount, Call::kWithoutCount),
                                          testing::Bool(), testing::Values(2048U, 16384U)),
                         name_case);

TEST(FinishKernel, SavesTheHeadsOfAllGroups) {
  using State = device::KernelState<2, 1, 32>;
  UnpackDeviceHandle handles[2] = {{nullptr, nullptr, 3}, {nullptr, nullptr, 5}};
  UnpackDeviceHandle* pointers[2] = {&handles[0], &handles[1]};
  device::KernelArguments arguments{};
  arguments.channel_mask[0] = 1;
  arguments.receive_handles = pointers;
  arguments.groups = 2;
  arguments.peers = 1;
  emulator::run_kernel(1, 1, kThreads, [&] {
    auto& state =
        *static_cast<State*>(device::emulation::shared_memory(&state_key, sizeof(State), alignof(State)));
    if (!device::start_kernel(state, &arguments)) return;
    const uint32_t group = device::thread_index() / 32;
    if (device::thread_index() % 32 == 0) device::ncclNetDeviceIncrementHead(state, group, 0);
    device::finish_kernel(state);
  });
  EXPECT_EQ(handles[0].head, 4U);
  EXPECT_EQ(handles[1].head, 6U);
}

}  // namespace
}  // namespace verbena::device_test
