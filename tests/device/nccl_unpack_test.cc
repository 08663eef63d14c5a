// NCCL's names over our own state: several receives at once, empty slots, wrong indices, an abort; and the
// trace ring.
#include "verbena/device/nccl_unpack.cuh"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/message.h"
#include "device/support/run_kernel.h"

namespace verbena::device_test {
namespace {

using device::ErrorCode;
using device::ErrorWord;
using State = device::KernelState<2, 4, 32>;

constexpr uint32_t kPeers = 4;
const char state_key = 0;

// Receives that are complete before the kernel begins, as NCCL calls us behind its own wait.
struct ArrivedReceive {
  explicit ArrivedReceive(uint32_t pieces, uint64_t seed, uint64_t head)
      : message(make_message(
            {.pieces = pieces, .shortest_bytes = 1, .longest_bytes = 700, .is_shifted = true}, seed)),
        bounce(message.bounce_bytes),
        destination(message.length_bytes, seed % 16),
        handle{meta.get(), bounce.data(), head} {
    const uint64_t slot = (head + 1) % kUnpackQueueDepthSlots;
    std::copy(message.pieces.begin(), message.pieces.end(), meta->mem[slot]);
    meta->cnt[slot] = pieces;
  }

  Message message;
  Bounce bounce;
  GuardedBuffer destination;
  std::unique_ptr<NetUnpackMeta> meta = std::make_unique<NetUnpackMeta>();
  UnpackDeviceHandle handle;
};

class NcclUnpackTest : public testing::TestWithParam<uint64_t> {
 protected:
  NcclUnpackTest() {
    for (uint32_t i = 0; i < kPeers; ++i) {
      // Peer 1 has nothing to place: its message went to its place directly.
      peers_.push_back(
          std::make_unique<ArrivedReceive>(i == 1 ? 0 : 20 + i, 10 + i, kUnpackFreshHead + 7 * i));
      data_[i] = peers_[i]->destination.data();
    }
    arguments_.channel_mask[0] = 1;
    arguments_.error = &error_;
  }

  // One primitive as NCCL makes it: setup, heads, unpack, save. `before` runs ahead of the unpacking.
  template <typename Before>
  void run_primitive(uint32_t mask, const Before& before) {
    auto& state = *static_cast<State*>(device::emulation::shared_memory(&state_key, sizeof(State), 16));
    if (!device::start_kernel(state, &arguments_)) return;
    const device::WarpsGroup group{0, 64, 1};
    for (uint32_t peer = 0; peer < kPeers; ++peer) {
      if (group.rank() != 0) continue;
      device::ncclNetDeviceUnpackSetup(state, &peers_[peer]->handle, 0, peer);
      device::ncclNetDeviceIncrementHead(state, 0, peer);
    }
    group.sync();
    before(state, group);
    device::CopyThroughRegisters copy;
    device::ncclNetDeviceUnpack<0>(state, group, copy, 0, mask, nullptr);
    device::ncclNetDeviceUnpack<1>(state, group, copy, 0, mask, data_);
    for (uint32_t peer = 0; peer < kPeers; ++peer) {
      if (group.rank() == 0) device::ncclNetDeviceSaveHead(state, &peers_[peer]->handle, 0, peer);
    }
  }

  std::string check(uint32_t peer, bool is_placed) {
    ArrivedReceive& one = *peers_[peer];
    return one.destination.compare(is_placed ? one.bounce.place(one.message, kUntouched)
                                             : std::vector<uint8_t>(one.message.length_bytes, kUntouched));
  }

  std::vector<std::unique_ptr<ArrivedReceive>> peers_;
  void* data_[kPeers];
  device::KernelArguments arguments_{};
  ErrorWord error_{};
};
INSTANTIATE_TEST_SUITE_P(Seeds, NcclUnpackTest, testing::Range<uint64_t>(0, 4));

TEST_P(NcclUnpackTest, PlacesWhatTheMaskNames) {
  emulator::run_kernel(GetParam(), 1, 64, [&] { run_primitive(0b0111, [](auto&, const auto&) {}); });
  for (uint32_t peer = 0; peer < kPeers; ++peer) {
    EXPECT_EQ(check(peer, peer != 3), "") << peer;
    EXPECT_EQ(peers_[peer]->handle.head, kUnpackFreshHead + 7 * peer + 1);
  }
  EXPECT_EQ(error_.bits, 0u);
}

TEST_P(NcclUnpackTest, WrongIndicesAreReportedAndDoNothing) {
  emulator::run_kernel(GetParam(), 1, 64, [&] {
    run_primitive(0b0001, [&](State& state, const device::WarpsGroup& group) {
      device::CopyThroughRegisters copy;
      device::ncclNetDeviceUnpack<1>(state, group, copy, 0, 1u << kPeers, data_);
      device::ncclNetDeviceUnpack<1>(state, group, copy, 2, 1, data_);
      if (group.rank() == 0) device::ncclNetDeviceIncrementHead(state, 2, 0);
    });
  });
  EXPECT_EQ(error_.bits, ErrorWord::pack(ErrorCode::kBadIndex, 0, kPeers, 0, 0)) << "the first one stays";
  EXPECT_EQ(check(0, true), "");
}

TEST_P(NcclUnpackTest, AfterAnAbortNothingIsPlacedWhateverTheCountsSay) {
  emulator::run_kernel(GetParam(), 1, 64, [&] {
    run_primitive(0b1111, [](State& state, const device::WarpsGroup& group) {
      if (group.rank() == 0) state.mark_aborted();
      group.sync();
    });
  });
  for (uint32_t peer = 0; peer < kPeers; ++peer) EXPECT_EQ(check(peer, false), "") << peer;
}

// Another group of the block aborts while this one unpacks: all its threads stop at the same message, or
// none. Disabled while ncclNetDeviceUnpackInner lets each thread look at the abort for itself: those that see
// it leave the others waiting for ever.
TEST_P(NcclUnpackTest, AnAbortByAnotherGroupDividesNoGroup) {
  for (uint64_t delay = 0; delay < 40; ++delay) {
    for (uint32_t peer = 0; peer < kPeers; ++peer) peers_[peer]->handle.head = kUnpackFreshHead + 7 * peer;
    emulator::run_kernel(GetParam() + 4 * delay, 1, 96, [&] {
      auto& state = *static_cast<State*>(device::emulation::shared_memory(&state_key, sizeof(State), 16));
      if (device::thread_index() < 64) {
        run_primitive(0b1111, [](auto&, const auto&) {});
      } else if (device::start_kernel(state, &arguments_) && device::thread_index() == 64) {
        for (uint64_t i = 0; i < 40 * delay; ++i) emulator::yield();
        state.mark_aborted();
      }
    });
  }
}

// The host reads entries while kernels write them: one with a time is whole.
TEST(TraceTest, AnEntryWithATimeIsWhole) {
  constexpr uint64_t kEntries = 16;
  alignas(16) static unsigned char memory[sizeof(device::TraceRing) + kEntries * sizeof(device::TraceEntry)];
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::fill(std::begin(memory), std::end(memory), 0);
    auto* ring = new (memory) device::TraceRing{0, kEntries};
    const auto host = [&] {
      for (uint64_t i = 0; i < 4; ++i) {
        device::TraceEntry& entry = ring->slots()[i];
        while (std::atomic_ref<uint64_t>(entry.time_ns).load(std::memory_order_acquire) == 0)
          emulator::yield();
        emulator::require(
            entry.group == 3 && entry.data[0] == entry.block && entry.data[1] == 100 + entry.block, "whole");
      }
    };
    emulator::run_beside(host, seed, 4, 1, [&] {
      const uint32_t block = device::block_index();
      device::trace(ring, device::TraceEvent::kUser, 3, block, 100 + block);
    });
    EXPECT_EQ(ring->tail, 4u);
  }
}

// The same while the ring goes round: what has the same time before and after is whole.
TEST(TraceTest, AnEntryIsWholeWhileTheRingGoesRound) {
  constexpr uint64_t kEntries = 4, kTimes = 40;
  alignas(16) static unsigned char memory[sizeof(device::TraceRing) + kEntries * sizeof(device::TraceEntry)];
  for (uint64_t seed = 0; seed < 6; ++seed) {
    std::fill(std::begin(memory), std::end(memory), 0);
    auto* ring = new (memory) device::TraceRing{0, kEntries};
    const auto host = [&] {
      const auto look = [](auto& field) { return std::atomic_ref(field).load(std::memory_order_acquire); };
      for (uint64_t last = 0; last != kTimes;) {
        for (uint64_t i = 0; i < kEntries; ++i) {
          device::TraceEntry& entry = ring->slots()[i];
          const uint64_t time_ns = look(entry.time_ns);
          const uint64_t group = look(entry.group), first = look(entry.data[0]), second = look(entry.data[1]);
          emulator::yield();
          if (time_ns == 0 || look(entry.time_ns) != time_ns) continue;
          emulator::require(group == first && second == 3 * first, "whole");
          last = std::max(last, first);
        }
        emulator::yield();
      }
    };
    emulator::run_beside(host, seed, 1, 1, [&] {
      for (uint64_t i = 1; i <= kTimes; ++i)
        device::trace(ring, device::TraceEvent::kUser, static_cast<uint32_t>(i), i, 3 * i);
    });
  }
}

// Writers that pass each other, a whole ring apart.
TEST(TraceTest, AnEntryIsOneWriters) {
  constexpr uint64_t kEntries = 2, kTimes = 12;
  constexpr uint32_t kBlocks = 4;
  alignas(16) static unsigned char memory[sizeof(device::TraceRing) + kEntries * sizeof(device::TraceEntry)];
  for (uint64_t seed = 1; seed < 16; ++seed) {
    std::fill(std::begin(memory), std::end(memory), 0);
    auto* ring = new (memory) device::TraceRing{0, kEntries};
    emulator::run_kernel(seed, kBlocks, 1, [&] {
      for (uint64_t i = 1; i <= kTimes; ++i) {
        const uint64_t number = 100 * (device::block_index() + 1) + i;
        device::trace(ring, device::TraceEvent::kUser, static_cast<uint32_t>(number), number, 3 * number);
      }
    });
    EXPECT_EQ(ring->tail, kBlocks * kTimes);
    for (uint64_t i = 0; i < kEntries; ++i) {
      const device::TraceEntry& entry = ring->slots()[i];
      EXPECT_NE(entry.time_ns, 0u);
      EXPECT_EQ(entry.block, entry.group / 100 - 1u);
      EXPECT_EQ(entry.data[0], entry.group) << "seed " << seed;
      EXPECT_EQ(entry.data[1], 3u * entry.group) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
