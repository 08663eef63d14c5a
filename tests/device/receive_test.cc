// Kernels that receive while a NIC fills their queues: several channels, groups and peers, slots used again
// and again; an abort at any moment, and a NIC that never answers.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/nic.h"
#include "verbena/device/bulk_unpack.cuh"
#include "verbena/device/nccl_unpack.cuh"

namespace verbena::device_test {
namespace {

using device::ErrorCode;
using device::ErrorWord;
using device::KernelArguments;
using device::WaitResult;
using emulator::World;
using State = device::KernelState<2, 2, 32>;

constexpr uint32_t kGroupThreads = 64;
constexpr uint32_t kStages = 2;
const char state_key = 0, stages_key = 0;

struct Plan {
  uint32_t channels = 1, groups = 1, peers = 1;
  uint32_t messages = 1;
  MessageShape shape;
  bool is_shared_copy = false;
  uint32_t nic_pause_ns = 0;  // at most, between two of its messages
};

class Receivers {
 public:
  Receivers(const Plan& plan, uint64_t seed) : plan_(plan), seed_(seed) {
    for (uint32_t i = 0; i < plan.channels * plan.groups * plan.peers; ++i) {
      connections_.push_back(std::make_unique<Connection>(plan.shape, plan.messages, seed + 100 * i));
      handles_.push_back(connections_.back()->handle());
    }
    arguments_.channel_mask[0] = (uint64_t{1} << plan.channels) - 1;
    arguments_.receive_handles = handles_.data();
    arguments_.abort_word = &abort_word_;
    arguments_.error = &error_;
    arguments_.groups = plan.groups;
    arguments_.peers = plan.peers;
    arguments_.timeout_ns = uint64_t{1} << 50;
  }

  void add_kernel(World& world) {
    world.add_grid(0, plan_.channels, kGroupThreads * plan_.groups, [this] { run_kernel(); });
  }
  void add_nic(World& world) {
    world.add_host([this] { run_nic(); });
  }
  void add_abort(World& world, uint64_t step) {
    world.add_host([this, step] {
      emulator::wait_until_step(step);
      std::atomic_ref<uint32_t>(abort_word_).store(1, std::memory_order_relaxed);
    });
  }
  void set_timeout(uint64_t timeout_ns) { arguments_.timeout_ns = timeout_ns; }
  void remove_handle(size_t index) { handles_[index] = nullptr; }
  uint64_t head(size_t index) const { return handles_[index]->head; }
  void forget_error() { error_.bits = 0; }

  std::string check(bool is_cut_short) const {
    for (size_t i = 0; i < connections_.size(); ++i) {
      const std::string wrong = connections_[i]->check(is_cut_short);
      if (!wrong.empty()) return "connection " + std::to_string(i) + ", " + wrong;
    }
    return {};
  }
  ErrorCode error() const { return ErrorWord::get_code(error_.bits); }

 private:
  void run_kernel() {
    auto& state = *static_cast<State*>(device::emulation::shared_memory(&state_key, sizeof(State), 16));
    if (!device::start_kernel(state, &arguments_)) return;
    const uint32_t number = device::thread_index() / kGroupThreads;
    const device::WarpsGroup group{number * kGroupThreads, kGroupThreads, static_cast<int>(number) + 1};
    if (plan_.is_shared_copy) {
      const uint32_t bytes = device::CopyThroughShared::count_shared_bytes(kGroupThreads / 32, kStages);
      const uint32_t each_bytes = (bytes + 127) / 128 * 128;
      auto* stages =
          static_cast<char*>(device::emulation::shared_memory(&stages_key, each_bytes * plan_.groups, 128));
      device::CopyThroughShared copy(group, stages + number * each_bytes, kStages);
      receive_all(state, group, copy, number);
    } else {
      device::CopyThroughRegisters copy;
      receive_all(state, group, copy, number);
    }
    device::finish_kernel(state);
  }

  template <typename Copy>
  void receive_all(State& state, const device::WarpsGroup& group, Copy& copy, uint32_t number) {
    for (uint32_t message = 0; message < plan_.messages; ++message) {
      for (uint32_t peer = 0; peer < plan_.peers; ++peer) {
        Connection& connection = *connections_[(state.channel * plan_.groups + number) * plan_.peers + peer];
        const WaitResult result =
            device::receive_message(state, group, copy, number, peer, connection.destination(message));
        if (result != WaitResult::kReached) return;
        read_all(group.rank(), connection.destination(message), connection.length_bytes(message));
        if (group.elect()) device::store_release<device::Scope::kSystem>(connection.consumed(), message + 1);
      }
    }
  }

  // Every thread of the group may now read every byte, independent of which thread wrote it: ThreadSanitizer
  // checks.
  static void read_all(uint32_t rank, const uint8_t* data, size_t length_bytes) {
    constexpr size_t kStride = 5;
    volatile uint8_t sum = 0;
    for (size_t i = rank % kStride; i < length_bytes; i += kStride) sum = static_cast<uint8_t>(sum + data[i]);
  }

  void run_nic() {
    Random random(seed_);
    for (bool is_busy = true; is_busy;) {
      is_busy = false;
      for (const auto& connection : connections_) {
        if (std::atomic_ref<uint32_t>(abort_word_).load(std::memory_order_relaxed) != 0) return;
        is_busy |= connection->work(random);
        device::emulation::pause(random.between(0, plan_.nic_pause_ns));
      }
    }
  }

  const Plan plan_;
  const uint64_t seed_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<UnpackDeviceHandle*> handles_;
  KernelArguments arguments_{};
  ErrorWord error_{};
  alignas(64) uint32_t abort_word_ = 0;
};

constexpr MessageShape kMixed = {
    .pieces = 9, .shortest_bytes = 1, .longest_bytes = 3000, .is_shifted = true, .has_gaps = true};

uint64_t receive(const Plan& plan, uint64_t seed) {
  Receivers receivers(plan, seed);
  World world(seed);
  receivers.add_nic(world);
  receivers.add_kernel(world);
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(receivers.check(false), "") << "seed " << seed;
  EXPECT_EQ(receivers.error(), ErrorCode::kNone);
  return world.steps();
}

class ReceiveTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ReceiveTest, testing::Range<uint64_t>(0, emulator::kSanitizer ? 4 : 12));

TEST_P(ReceiveTest, SlotsAreUsedAgainAndAgain) {
  receive({.messages = 40, .shape = kMixed}, GetParam());
}

TEST_P(ReceiveTest, SlotsAreUsedAgainThroughSharedMemory) {
  receive({.messages = 40, .shape = kMixed, .is_shared_copy = true}, GetParam());
}

TEST_P(ReceiveTest, GroupsAndPeersKeepApart) {
  receive({.groups = 2, .peers = 2, .messages = 6, .shape = kMixed, .nic_pause_ns = 5'000}, GetParam());
}

TEST_P(ReceiveTest, ChannelsKeepApart) {
  receive({.channels = 2, .groups = 1, .peers = 2, .messages = 5, .shape = kMixed}, GetParam());
}

// More pieces than are staged at a time: the scratch is used again within a message.
TEST_P(ReceiveTest, MessagesOfManyPieces) {
  receive(
      {.messages = 4, .shape = {.pieces = 150, .shortest_bytes = 1, .longest_bytes = 90, .is_shifted = true}},
      GetParam());
}

// Wherever the abort falls, the kernel ends, and what it said to have placed is there.
TEST(AbortTest, AtEveryMoment) {
  const Plan plan = {.groups = 2,
                     .peers = 2,
                     .messages = 3,
                     .shape = {.pieces = 5, .shortest_bytes = 1, .longest_bytes = 600, .is_shifted = true},
                     .nic_pause_ns = 30'000};
  const uint64_t steps = receive(plan, 1);
  const uint64_t moments = emulator::kSanitizer ? 12 : 120;
  uint64_t aborted = 0;
  for (uint64_t moment = 0; moment < moments; ++moment) {
    const uint64_t seed = 1 + moment;
    Receivers receivers(plan, seed);
    World world(seed);
    receivers.add_nic(world);
    receivers.add_abort(world, steps * moment / moments);
    receivers.add_kernel(world);
    ASSERT_EQ(world.run(), "");
    ASSERT_EQ(receivers.check(true), "") << "seed " << seed;
    ASSERT_TRUE(receivers.error() == ErrorCode::kAborted || receivers.error() == ErrorCode::kNone);
    aborted += receivers.error() == ErrorCode::kAborted ? 1 : 0;
  }
  EXPECT_GT(aborted, moments / 2) << "most aborts come while there is something to wait for";
}

TEST(AbortTest, DeadlineEndsAWaitForASilentNic) {
  Receivers receivers({.groups = 2, .peers = 2, .messages = 3, .shape = kMixed}, 1);
  receivers.set_timeout(50'000'000);
  World world(1);
  receivers.add_kernel(world);
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(receivers.error(), ErrorCode::kTimedOut);
  EXPECT_EQ(receivers.check(true), "");
}

// The kernel comes too early, gives up, and comes again when the NIC has filled the slots: nothing is lost.
TEST(AbortTest, AReceiveThatTimedOutKeepsItsSlot) {
  for (const bool is_shared_copy : {false, true}) {
    Receivers receivers({.messages = 3, .shape = kMixed, .is_shared_copy = is_shared_copy}, 1);
    const uint64_t fresh = receivers.head(0);
    receivers.set_timeout(50'000'000);
    World early(1);
    receivers.add_kernel(early);
    ASSERT_EQ(early.run(), "");
    EXPECT_EQ(receivers.error(), ErrorCode::kTimedOut);
    EXPECT_EQ(receivers.head(0), fresh);
    receivers.forget_error();
    receivers.set_timeout(uint64_t{1} << 50);
    World late(2);
    receivers.add_nic(late);
    receivers.add_kernel(late);
    ASSERT_EQ(late.run(), "");
    EXPECT_EQ(receivers.check(false), "");
    EXPECT_EQ(receivers.error(), ErrorCode::kNone);
    EXPECT_EQ(receivers.head(0), fresh + 3);
  }
}

TEST(AbortTest, AQueueWithoutAHandleIsAnError) {
  Receivers receivers({.shape = kMixed}, 1);
  receivers.remove_handle(0);
  World world(1);
  receivers.add_kernel(world);
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(receivers.error(), ErrorCode::kBadIndex);
}

}  // namespace
}  // namespace verbena::device_test
