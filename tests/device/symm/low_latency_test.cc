// Low-latency messages on emulated GPUs: any length and bit pattern, call after call without a barrier, from
// launch to launch; and what goes wrong where a rule is broken.
#include "verbena/device/low_latency.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using device::Heard;
using device::LowLatency;
using device::Order;
using device::Packet;
using device::Scope;
using emulator::require;
using emulator::require_done;

constexpr uint64_t kBlocks = 2, kSlotBytes = 1024;
constexpr uint64_t kOutputBytes = 512;  // of a rank, in the test's memory
constexpr uint64_t kTimeout_ns = 50'000'000;

// Ranks with a workspace each, and a source and a destination of their own outside of the heap.
class Ranks {
 public:
  explicit Ranks(int32_t count)
      : fleet_(count, INT32_MAX, Fleet::measure_workspace(count, kBlocks, kSlotBytes)) {
    for (int32_t rank = 0; rank < count; ++rank) {
      fleet_.context(rank).timeout_ns = kTimeout_ns;
      inputs_.emplace_back(kOutputBytes / 8);
      outputs_.emplace_back(kOutputBytes / 8);
    }
  }

  int32_t size() const { return fleet_.size(); }
  SymmWorkspace<> workspace(int32_t rank) { return fleet_.workspace(rank, 0, kBlocks, kSlotBytes); }
  char* input(int32_t rank) { return reinterpret_cast<char*>(inputs_[static_cast<size_t>(rank)].data()); }
  char* output(int32_t rank) { return reinterpret_cast<char*>(outputs_[static_cast<size_t>(rank)].data()); }

  // `kernel(workspace, rank)` by one block of each rank. The test fails if the run does.
  void run(uint64_t seed, uint32_t threads,
           const std::function<void(const SymmWorkspace<>&, int32_t rank)>& kernel,
           const std::source_location& at = std::source_location::current()) {
    emulator::run_on_ranks(
        seed, size(), 1, threads, [&](int32_t rank) { kernel(workspace(rank), rank); }, {}, at);
  }

 private:
  Fleet fleet_;
  std::vector<std::vector<uint64_t>> inputs_, outputs_;
};

// By the group's threads, each byte by one.
void write_bytes(char* to, uint64_t length_bytes, const std::function<uint8_t(uint64_t)>& byte) {
  for (uint64_t i = device::thread_index(); i < length_bytes; i += device::threads_per_block())
    device::store<Order::kWeak, Scope::kThreads>(reinterpret_cast<uint8_t*>(to) + i, byte(i));
  device::sync_block();
}
void expect_bytes(const char* from, uint64_t length_bytes, const std::function<uint8_t(uint64_t)>& byte) {
  device::sync_block();
  for (uint64_t i = device::thread_index(); i < length_bytes; i += device::threads_per_block())
    require(
        device::load<Order::kWeak, Scope::kThreads>(reinterpret_cast<const uint8_t*>(from) + i) == byte(i),
        "a byte of the message");
  device::sync_block();
}

// Now and then a rank is slow to read: the others are a call ahead of it meanwhile.
void dawdle(uint64_t call, int32_t rank) {
  if ((call + static_cast<uint64_t>(rank)) % 3 == 0) device::pause(500'000);
}

// Looks like an empty place, like what goes by notes, and like the flags of notes of calls near by.
uint8_t nasty_byte(uint64_t call, int32_t rank, uint64_t i) {
  const uint64_t half = i / 8 + call;
  if (half % 3 != 0) return static_cast<uint8_t>((Packet::kSentinel ^ half % 2) >> i % 8 * 8);
  return i % 4 == 0 ? static_cast<uint8_t>(call + i / 4 % 3 - 1)
                    : static_cast<uint8_t>(i % 8 == 7 ? rank : 0);
}
// Short and long ones, of odd lengths too, none at all.
uint64_t length_of(uint64_t call, uint64_t most) {
  const uint64_t lengths[] = {7, most, 0, 16, 121, 1, 64, most - 3};
  return std::min(lengths[call % 8], most);
}

// Each rank tells all others something else each call.
void exchange_calls(int32_t count, uint64_t seed, uint32_t threads, uint64_t calls) {
  Ranks ranks(count);
  ranks.run(seed, threads, [&](const SymmWorkspace<>& mine, int32_t rank) {
    LowLatency<> exchange(mine, 1);
    require_done(exchange.begin(), "begin");
    const uint64_t most = std::min(exchange.capacity_bytes(), kOutputBytes - 8);
    for (uint64_t call = 1;; ++call) {
      const uint64_t length_bytes = length_of(call, most);
      char* const source = ranks.input(rank) + call % 3;
      write_bytes(source, length_bytes, [&](uint64_t i) { return nasty_byte(call, rank, i); });
      require_done(exchange.broadcast(source, length_bytes), "broadcast");
      dawdle(call, rank);
      for (int32_t step = 1; step < count; ++step) {
        const int32_t peer = (rank + step) % count;
        require_done(exchange.receive(peer, ranks.output(rank) + call % 5, length_bytes), "receive");
        expect_bytes(ranks.output(rank) + call % 5, length_bytes,
                     [&](uint64_t i) { return nasty_byte(call, peer, i); });
      }
      require(exchange.epoch() == call, "the call's number");
      if (call == calls) return require_done(exchange.finish(), "finish");
      require_done(exchange.turn(), "turn");
    }
  });
}

TEST(LowLatency, EverybodyHearsEverybodyCallAfterCall) {
  for (uint64_t seed = 0; seed < 16; ++seed) exchange_calls(2, seed, 32, 9);
  for (uint64_t seed = 0; seed < 8; ++seed) exchange_calls(3, seed, 64, 6);
  for (const int32_t ranks : {5, 6, 7, 8, 16}) exchange_calls(ranks, 1, 32, 4);
}

// Sums of every launch, as a graph that is replayed: each block goes on where its last launch ended.
TEST(LowLatency, SumsFromLaunchToLaunch) {
  for (const int32_t count : {1, 2, 3, 5, 6, 7, 8, 9, 16}) {
    Ranks ranks(count);
    for (uint64_t launch = 1; launch <= 5; ++launch) {
      const uint64_t numbers = length_of(launch, 240) / 4;
      const auto number = [&](int32_t rank, uint64_t i) {
        return static_cast<float>(rank + 1) * 16'777'216.0F / static_cast<float>(i + launch);
      };
      for (int32_t rank = 0; rank < count; ++rank)
        for (uint64_t i = 0; i < numbers; ++i)
          reinterpret_cast<float*>(ranks.input(rank))[i] = number(rank, i);
      ranks.run(launch, 32, [&](const SymmWorkspace<>& mine, int32_t rank) {
        LowLatency<> exchange(mine, 0);
        const auto* const input = reinterpret_cast<const float*>(ranks.input(rank));
        require_done(exchange.begin(), "begin");
        require_done(exchange.broadcast(input, 4 * numbers), "broadcast");
        auto* const output = reinterpret_cast<float*>(ranks.output(rank));
        // The team's size at compile time, and not.
        require_done(count == 3 && launch % 2 == 0 ? exchange.receive_reduce<3>(input, output, numbers)
                                                   : exchange.receive_reduce(input, output, numbers),
                     "sum");
        require_done(exchange.finish(), "finish");
      });
      for (int32_t rank = 0; rank < count; ++rank) {
        EXPECT_EQ(ranks.workspace(rank).blocks.epochs[0], launch);
        EXPECT_EQ(ranks.workspace(rank).blocks.epochs[1], 0U);
        for (uint64_t i = 0; i < numbers; ++i) {
          float sum = number(0, i);
          for (int32_t other = 1; other < count; ++other) sum += number(other, i);
          ASSERT_EQ(reinterpret_cast<float*>(ranks.output(rank))[i], sum) << rank << " " << i;
        }
      }
    }
  }
}

// 256 and 1 and 1: each 1 alone is rounded away. In place.
TEST(LowLatency, NumbersOfFewBitsAreRoundedOnce) {
  Ranks ranks(3);
  constexpr uint64_t kElements = 61;
  for (int32_t rank = 0; rank < 3; ++rank)
    for (uint64_t i = 0; i < kElements; ++i)
      reinterpret_cast<device::Bfloat16*>(ranks.input(rank))[i] =
          device::narrow<device::Bfloat16>(rank == 0 ? 256.0F : 1.0F);
  ranks.run(2, 64, [&](const SymmWorkspace<>& mine, int32_t rank) {
    LowLatency<> exchange(mine, 1);
    auto* const numbers = reinterpret_cast<device::Bfloat16*>(ranks.input(rank));
    require_done(exchange.begin(), "begin");
    require_done(exchange.broadcast(numbers, 2 * kElements), "broadcast");
    require_done(exchange.receive_reduce(numbers, numbers, kElements), "sum");
    require_done(exchange.finish(), "finish");
  });
  for (int32_t rank = 0; rank < 3; ++rank)
    for (uint64_t i = 0; i < kElements; ++i)
      EXPECT_EQ(device::widen(reinterpret_cast<device::Bfloat16*>(ranks.input(rank))[i]), 258.0F);
}

// A rank that only speaks and ranks that only hear, then a ring: with a barrier at the end of each call.
TEST(LowLatency, WhereNotEverybodyHearsFromEverybody) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Ranks ranks(3);
    ranks.run(seed, 32, [&](const SymmWorkspace<>& mine, int32_t rank) {
      LowLatency<> exchange(mine, 0);
      require_done(exchange.begin(), "begin");
      for (uint64_t call = 1; call <= 6; ++call) {
        write_bytes(ranks.input(rank), 100, [&](uint64_t i) { return nasty_byte(call, rank, i); });
        const bool is_ring = call % 3 == 0;
        const int32_t before = is_ring ? (rank + 2) % 3 : 1;
        if (is_ring) {
          require_done(exchange.send((rank + 1) % 3, ranks.input(rank), 100), "send");
        } else if (rank == 1) {
          require_done(exchange.broadcast(ranks.input(rank), 100), "broadcast");
        }
        if (before != rank) {
          require_done(exchange.receive(before, ranks.output(rank), 100), "receive");
          expect_bytes(ranks.output(rank), 100, [&](uint64_t i) { return nasty_byte(call, before, i); });
        }
        require_done(call == 6 ? exchange.finish({}, Heard::kSome) : exchange.turn({}, Heard::kSome), "turn");
      }
    });
  }
}

// A packet and its note may come in either order, and what lies in the note's place before is an old one.
TEST(LowLatency, ANoteComesBehindItsPacket) {
  Ranks ranks(2);
  constexpr uint64_t kEpoch = 0x1'0000'0001, kOld = kEpoch - (uint64_t{1} << 32);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const SymmBlocks blocks = ranks.workspace(rank).blocks;
    blocks.epochs[0] = kEpoch - 1;
    auto* const words = reinterpret_cast<uint64_t*>(blocks.slots);
    for (uint64_t i = 0; i < kSymmTurns * 2 * kSlotBytes / 8; ++i)
      if (i * 8 % kSlotBytes >= kSlotBytes / 24 * 16) words[i] = kOld << 2 | (i & 3);
  }
  const uint32_t said[4] = {Packet::kSentinel ^ 1, 7, Packet::kSentinel, 8};
  ranks.run(1, 32, [&](const SymmWorkspace<>& mine, int32_t rank) {
    LowLatency<> exchange(mine, 0);
    require_done(exchange.begin(), "begin");
    if (rank == 0) return require_done(exchange.receive(1, ranks.output(0), sizeof(said)), "receive");
    if (device::thread_index() != 0) return;
    char* const there = exchange.find_slot_at(0);
    Packet::send_plain(there, {Packet::kNoted, said[1], Packet::kNoted, said[3]});
    device::pause(500'000);
    device::detail::send_bits(exchange.find_note(there, 0), exchange.epoch() << 2 | 1);
  });
  EXPECT_EQ(std::memcmp(ranks.output(0), said, sizeof(said)), 0);
}

// Who waits in vain says for whom, and nobody else does.
TEST(LowLatency, EndsWithoutAPacketAndSaysWhose) {
  Ranks ranks(3);
  ranks.run(1, 32, [&](const SymmWorkspace<>& mine, int32_t rank) {
    LowLatency<> exchange(mine, 1);
    require_done(exchange.begin(), "begin");
    const auto* const input = reinterpret_cast<const float*>(ranks.input(rank));
    if (rank == 2) return;
    require_done(exchange.broadcast(input, 64), "broadcast");
    require(exchange.receive_reduce(input, reinterpret_cast<float*>(ranks.output(rank)), 16) ==
                SymmStatus::kTimedOut,
            "sum");
  });
  for (int32_t rank = 0; rank < 3; ++rank) {
    const uint64_t failure = *ranks.workspace(rank).context.failure;
    EXPECT_EQ(static_cast<SymmWait>(failure & 0xff), SymmWait::kPacket);
    EXPECT_EQ(failure >> kSymmFailureNumber & 0xffff, 1U);
    EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, 2U);
  }
}

TEST(LowLatency, RefusesWhatItCannot) {
  Ranks ranks(2);
  ranks.run(0, 32, [&](const SymmWorkspace<>& mine, int32_t rank) {
    LowLatency<> exchange(mine, 0), beyond(mine, kBlocks);
    require(beyond.begin() == SymmStatus::kInvalid, "block");
    SymmWorkspace<> without = mine;
    without.blocks.slot_bytes = 0;
    LowLatency<> none(without, 0);
    require(none.begin() == SymmStatus::kInvalid, "no slots");
    SymmWorkspace<> far = mine;
    far.context.has_remote = 1;
    LowLatency<> unreached(far, 0);
    require(unreached.begin() == SymmStatus::kUnreachable, "far");
    require_done(exchange.begin(), "begin");
    char* const data = ranks.input(rank);
    const uint64_t most = exchange.capacity_bytes();
    require(exchange.send(rank, data, 8) == SymmStatus::kInvalid, "to oneself");
    require(exchange.send(2, data, 8) == SymmStatus::kInvalid, "no member");
    require(exchange.send(1 - rank, data, most + 1) == SymmStatus::kInvalid, "too long");
    require(exchange.broadcast(data, most + 1) == SymmStatus::kInvalid, "too long");
    require(exchange.broadcast<3>(data, 8) == SymmStatus::kInvalid, "another size");
    require(exchange.receive(-1, data, 8) == SymmStatus::kInvalid, "no member");
    require(exchange.receive(1 - rank, data, most + 1) == SymmStatus::kInvalid, "too long");
    require(exchange.receive_reduce(data, data, most + 1) == SymmStatus::kInvalid, "too long");
  });
}

}  // namespace
}  // namespace verbena::device_test
