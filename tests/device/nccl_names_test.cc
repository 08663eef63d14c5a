// A kernel that was written against NCCL's header, with its signatures and its shared memory.
#include <common.h>
#include <device.h>
#include <gtest/gtest.h>
#include <network/unpack/unpack.h>

#include <memory>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/message.h"
#include "device/support/run_kernel.h"

namespace verbena::device_test {
namespace {

constexpr int kGroup = 3;

// A message that has come to slot (head + 1) % 16, as NCCL calls us behind its own wait.
struct ArrivedMessage {
  ArrivedMessage(const MessageShape& shape, uint64_t seed, uint64_t head, uint32_t bounce_begin = 0)
      : message(make_message(shape, seed, bounce_begin)),
        destination(message.length_bytes, seed % 16),
        handle{reinterpret_cast<netUnpackMeta*>(meta.get()), nullptr, head} {
    const uint64_t slot = (head + 1) % kUnpackQueueDepthSlots;
    std::copy(message.pieces.begin(), message.pieces.end(), meta->mem[slot]);
    meta->cnt[slot] = message.pieces.size();
  }

  Message message;
  GuardedBuffer destination;
  std::unique_ptr<NetUnpackMeta> meta = std::make_unique<NetUnpackMeta>();
  unpackNetDeviceHandle handle;
};

// One primitive as NCCL's generic operation makes it: thread 0 sets up, all meet, the workers unpack, all
// meet.
void run_primitive(std::vector<ArrivedMessage*> peers, int mask, int workers, int source) {
  const auto tid = static_cast<int>(device::thread_index());
  if (tid == 0) {
    ncclShmem = {};
    for (int index = 0; index < static_cast<int>(peers.size()); ++index) {
      ncclShmem.groups[kGroup].srcs[index + source] = peers[static_cast<size_t>(index)]->destination.data();
      ncclNetDeviceUnpackSetup(&peers[static_cast<size_t>(index)]->handle, kGroup, index);
      ncclNetDeviceIncrementHead(kGroup, index);
    }
    ncclShmem.groups[kGroup].devicePlugin.unpack.unpackNetDeviceIndexMask = mask;
  }
  device::sync_block();
  if (tid < workers) {
    mask = ncclShmem.groups[kGroup].devicePlugin.unpack.unpackNetDeviceIndexMask;
    ncclNetDeviceUnpack</*Recv=*/0>(tid, tid, workers, kGroup, mask, source, 0);
    ncclNetDeviceUnpack</*Recv=*/1>(tid, tid, workers, kGroup, mask, source, 1 << 20);
  }
  device::sync_block();
  if (tid == 0) {
    for (int index = 0; index < static_cast<int>(peers.size()); ++index)
      ncclNetDeviceSaveHead(&peers[static_cast<size_t>(index)]->handle, kGroup, index);
  }
}

struct Case {
  MessageShape shape;
  int workers;
};
class NcclNamesTest : public testing::TestWithParam<Case> {};
// Nothing, a few rows, whole pieces, more descriptors than lanes, many more; by one warp and by several.
INSTANTIATE_TEST_SUITE_P(
    Messages, NcclNamesTest,
    testing::Values(Case{{.pieces = 0}, 64},
                    Case{{.pieces = 3, .shortest_bytes = 1, .longest_bytes = 90, .is_shifted = true}, 32},
                    Case{{.pieces = 20, .shortest_bytes = 0, .longest_bytes = 9000, .is_shifted = true}, 96},
                    Case{{.pieces = 32, .is_shuffled = true}, 160},
                    Case{{.pieces = 33, .shortest_bytes = 1, .longest_bytes = 700, .has_gaps = true}, 64},
                    Case{{.pieces = 257, .shortest_bytes = 1, .longest_bytes = 64, .is_shifted = true}, 96},
                    Case{{.pieces = 100, .shortest_bytes = 64, .longest_bytes = 64}, 32}));

TEST_P(NcclNamesTest, PlacesMessages) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    // Both in one bounce region; heads that begin anywhere.
    ArrivedMessage first(GetParam().shape, seed, kUnpackFreshHead);
    ArrivedMessage second(GetParam().shape, seed + 50, 29, first.message.bounce_bytes);
    Bounce bounce(first.message.bounce_bytes + second.message.bounce_bytes);
    first.handle.bounce_buf = second.handle.bounce_buf = bounce.data();
    emulator::run_kernel(seed, 1, 192, [&] {
      run_primitive({&first, &second}, 0b11, GetParam().workers, 4);
    });
    for (ArrivedMessage* peer : {&first, &second})
      EXPECT_EQ(peer->destination.compare(bounce.place(peer->message, kUntouched)), "");
    EXPECT_EQ(first.handle.head, 0u);
    EXPECT_EQ(second.handle.head, 30u);
  }
}

// What NCCL's own code would follow into memory that is not there.
TEST(NcclNames, PlacesNothingWhereThereIsNothing) {
  const MessageShape shape{.pieces = 4};
  ArrivedMessage told(shape, 1, 4), silent(shape, 2, 4);
  Bounce bounce(told.message.bounce_bytes);
  told.handle.bounce_buf = silent.handle.bounce_buf = bounce.data();
  silent.meta->cnt[5] = kUnpackMaxDescriptors + 1;
  emulator::run_kernel(0, 1, 64, [&] {
    run_primitive({&told, &silent}, 0b110, 64, 0);
    const auto tid = static_cast<int>(device::thread_index());
    ncclNetDeviceUnpackInner(tid, tid, 64, kGroup + 1, 0, told.destination.data(), 16, 5);
    ncclNetDeviceUnpackInner(tid, tid, 64, NCCL_MAX_GROUPS, 0, told.destination.data(), 16, 5);
    if (tid != 0) return;
    ncclNetDeviceUnpackSetup(&told.handle, kGroup, NET_UNPACK_MAX_NPEERS);
    ncclNetDeviceIncrementHead(-1, 0);
    ncclNetDeviceSaveHead(&silent.handle, kGroup, NET_UNPACK_MAX_NPEERS);
    emulator::require(ncclShmem.groups[kGroup].devicePlugin.unpack.head[0] == 5, "nothing else is written");
  });
  for (ArrivedMessage* peer : {&told, &silent})
    EXPECT_EQ(peer->destination.compare(std::vector<uint8_t>(peer->message.length_bytes, kUntouched)), "");
}

}  // namespace
}  // namespace verbena::device_test
