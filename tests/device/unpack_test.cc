// unpack.cuh and bulk_unpack.cuh: messages of every form, placed by every kind of group, in both ways of
// copying; the pages are there when the kernel begins.
#include "verbena/device/unpack.cuh"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/message.h"
#include "device/support/run_kernel.h"
#include "verbena/device/bulk_unpack.cuh"

namespace verbena::device_test {
namespace {

using device::UnpackResult;
using device::UnpackScratch;

constexpr uint32_t kStages = 3;
const char scratch_key = 0, stages_key = 0;

template <typename Group>
device::CopyThroughShared make_shared_copy(const Group& group, uint32_t groups, uint32_t group_index) {
  const uint32_t warps = group.size() / device::kWarpLanes;
  const uint32_t each_bytes =
      (device::CopyThroughShared::count_shared_bytes(warps, kStages) + 127) / 128 * 128;
  auto* stages = static_cast<char*>(device::emulation::shared_memory(&stages_key, each_bytes * groups, 128));
  return {group, stages + group_index * each_bytes, kStages};
}

struct Job {
  const NetUnpackMeta* meta;
  uint32_t slot;
  const uint8_t* bounce;
  uint8_t* data;
  bool is_count_known;
};

template <int kBatch, typename Group, typename Copy>
void unpack(const Group& group, UnpackScratch<kBatch>& scratch, Copy&& copy, const Job& job) {
  const UnpackResult result =
      job.is_count_known
          ? device::unpack_message(group, scratch, copy, job.meta, job.slot, job.meta->cnt[job.slot],
                                   job.bounce, job.data)
          : device::unpack_message(group, scratch, copy, job.meta, job.slot, job.bounce, job.data);
  emulator::require(result == UnpackResult::kDone, "done");
}

enum class Way { kRegisters, kShared };
struct Case {
  const char* name;
  uint32_t threads;
  void (*kernel)(Way way, const Job& job);
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

// Thread blocks of which only one group unpacks; the others have ended.
template <int kBatch, typename Group>
void run_group(const Group& group, Way way, const Job& job) {
  auto* scratch = static_cast<UnpackScratch<kBatch>*>(
      device::emulation::shared_memory(&scratch_key, sizeof(UnpackScratch<kBatch>), 16));
  if (way == Way::kRegisters) {
    unpack(group, *scratch, device::CopyThroughRegisters(), job);
  } else {
    unpack(group, *scratch, make_shared_copy(group, 1, 0), job);
  }
}

template <int kBatch>
void run_warp(Way way, const Job& job) {
  run_group<kBatch>(device::WarpGroup{}, way, job);
}
template <int kBatch>
void run_block(Way way, const Job& job) {
  run_group<kBatch>(device::BlockGroup{}, way, job);
}
void run_warps(Way way, const Job& job) {
  const uint32_t thread = device::thread_index();
  if (thread >= 32 && thread < 96) run_group<64>(device::WarpsGroup{32, 64, 3}, way, job);
}

constexpr Case kCases[] = {
    {"warp_batch_32", 32, run_warp<32>},
    {"warp_batch_256", 32, run_warp<256>},
    {"warps_batch_64", 128, run_warps},
    {"block_of_96_batch_64", 96, run_block<64>},
    {"block_of_96_batch_256", 96, run_block<256>},
    {"block_of_288_batch_256", 288, run_block<256>},
};

void check(const Case& one, Way way, const MessageShape& shape, uint64_t seed) {
  Random random(seed);
  const Message message = make_message(shape, seed);
  const auto slot = random.between(0, kUnpackQueueDepthSlots - 1);
  const auto meta = std::make_unique<NetUnpackMeta>();
  Bounce bounce(message.bounce_bytes);
  std::copy(message.pieces.begin(), message.pieces.end(), meta->mem[slot]);
  meta->cnt[slot] = message.pieces.size();
  GuardedBuffer destination(message.length_bytes, random.between(0, 15));
  const Job job = {meta.get(), slot, bounce.data(), destination.data(), seed % 2 == 0};
  emulator::run_kernel(seed, 1, one.threads, [&] { one.kernel(way, job); });
  ASSERT_EQ(destination.compare(bounce.place(message, kUntouched)), "");
}

class UnpackTest : public testing::TestWithParam<std::tuple<Case, Way>> {
 protected:
  void check_shape(const MessageShape& shape) {
    SCOPED_TRACE(std::to_string(shape.pieces) + " pieces of " + std::to_string(shape.shortest_bytes) +
                 " to " + std::to_string(shape.longest_bytes));
    check(std::get<0>(GetParam()), std::get<1>(GetParam()), shape, seed_++);
  }

 private:
  uint64_t seed_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Groups, UnpackTest,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(Way::kRegisters, Way::kShared)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) +
                                  (std::get<1>(one.param) == Way::kRegisters ? "_registers" : "_shared");
                         });

// Around every batch, and up to the most that a slot holds.
TEST_P(UnpackTest, EveryNumberOfPieces) {
  for (const uint32_t pieces :
       {0, 1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97, 255, 256, 257, 511, 512, 513, 2047, 2048}) {
    if (emulator::kSanitizer && pieces > 300) continue;
    check_shape({.pieces = pieces,
                 .shortest_bytes = 0,
                 .longest_bytes = 70,
                 .is_shifted = true,
                 .has_gaps = true,
                 .is_shuffled = true});
    if (HasFatalFailure()) return;
  }
}

TEST_P(UnpackTest, EveryPageSize) {
  for (const uint32_t bytes : {1, 15, 16, 17, 64, 500, 512, 1000, 2048, 4096, 4097, 16384, 65536}) {
    if (emulator::kSanitizer && bytes > 5000) continue;
    const uint32_t pieces = bytes > 10000 ? 3 : 17;
    check_shape({.pieces = pieces, .shortest_bytes = bytes, .longest_bytes = bytes});
    check_shape({.pieces = pieces, .shortest_bytes = bytes, .longest_bytes = bytes, .is_shifted = true});
    if (HasFatalFailure()) return;
  }
}

// Nothing, or next to nothing, beside whole pages.
TEST_P(UnpackTest, MixedSizes) {
  for (uint32_t round = 0; round < (emulator::kSanitizer ? 2 : 8); ++round) {
    check_shape({.pieces = 40 + 7 * round,
                 .shortest_bytes = 0,
                 .longest_bytes = round % 2 == 0 ? 4096u : 9000u,
                 .is_shifted = round % 3 != 0,
                 .has_gaps = true,
                 .is_shuffled = round % 4 == 1});
    if (HasFatalFailure()) return;
  }
}

TEST_P(UnpackTest, PiecesOfNoLength) {
  check_shape({.pieces = 50, .shortest_bytes = 0, .longest_bytes = 0});
}

TEST(UnpackCountTest, MoreThanASlotHoldsWritesNothing) {
  const auto meta = std::make_unique<NetUnpackMeta>();
  meta->cnt[5] = kUnpackMaxDescriptors + 1;
  for (LoadMeta& piece : meta->mem[5]) piece = {0, 16, 0};
  Bounce bounce(64);
  GuardedBuffer destination(64);
  emulator::run_kernel(0, 1, 32, [&] {
    auto* scratch = static_cast<UnpackScratch<32>*>(
        device::emulation::shared_memory(&scratch_key, sizeof(UnpackScratch<32>), 16));
    device::CopyThroughRegisters copy;
    const auto result = device::unpack_message(device::WarpGroup{}, *scratch, copy, meta.get(), 5,
                                               bounce.data(), destination.data());
    emulator::require(result == UnpackResult::kBadCount, "bad count");
  });
  EXPECT_EQ(destination.compare(std::vector<uint8_t>(64, kUntouched)), "");
}

// Its barriers end with it, and the memory may be another object's, with its stages elsewhere.
TEST(CopyThroughSharedTest, LeavesNoBarrierBehind) {
  constexpr uint32_t kThreads = 64;
  const Message message =
      make_message({.pieces = 20, .shortest_bytes = 3000, .longest_bytes = 5000, .is_shifted = true}, 3);
  Bounce bounce(message.bounce_bytes);
  std::vector<uint8_t> data(message.length_bytes);
  auto meta = std::make_unique<NetUnpackMeta>();
  std::copy(message.pieces.begin(), message.pieces.end(), meta->mem[0]);
  meta->cnt[0] = message.pieces.size();
  emulator::run_kernel(1, 1, kThreads, [&] {
    using Scratch = UnpackScratch<32>;
    auto& scratch = *static_cast<Scratch*>(
        device::emulation::shared_memory(&scratch_key, sizeof(Scratch), alignof(Scratch)));
    const device::BlockGroup group;
    const uint32_t stages_bytes = kThreads / 32 * kStages * device::CopyThroughShared::kStageBytes;
    auto* const memory = static_cast<char*>(
        device::emulation::shared_memory(&stages_key, stages_bytes + 8 * kThreads / 32 * kStages, 128));
    for (int object = 0; object < 2; ++object) {
      {
        device::CopyThroughShared copy(group, memory, kStages);
        emulator::require_done(
            device::unpack_message(group, scratch, copy, meta.get(), 0, bounce.data(), data.data()),
            "unpack");
      }
      group.sync();
      const auto* const words = reinterpret_cast<const uint64_t*>(memory + stages_bytes);
      for (uint32_t i = 0; i < kThreads / 32 * kStages; ++i) emulator::require(words[i] == 0, "no barrier");
      group.sync();
    }
  });
}

}  // namespace
}  // namespace verbena::device_test
