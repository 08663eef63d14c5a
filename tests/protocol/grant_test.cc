// Grants in connections without staging, in cases that the simulation's seeds do not show.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "protocol/control_view.h"
#include "protocol/simulation/sim_port.h"

namespace verbena::protocol::simulation {
namespace {

class GrantTest : public testing::Test {
 protected:
  static constexpr uint32_t kBytes = 4096;

  GrantTest() {
    shape_.queue_pairs = shape_.rails = 2;
    shape_.stages = shape_.has_queue = false;
  }
  bool has_grant(uint32_t sequence) {
    Grant grant;
    return ControlView(&network_->control()).read_grant(sequence, grant);
  }
  void move_everything() {
    while (network_->advance()) {
    }
  }

  Shape shape_;
  Random random_{1};
  ControlChannel to_sender_, to_receiver_;
  std::array<uint8_t, kBytes> memory_{};
  std::optional<Network> network_;
};

// serve() polls without sending grants, so the send queue may have space while a grant waits.
TEST_F(GrantTest, WaitsForEarlierGrants) {
  network_.emplace(shape_, random_);
  SimReceiver receiver(shape_, random_, *network_, to_receiver_, to_sender_, nullptr);
  const auto post = [&] { return receiver.post(memory_.data(), kBytes, ReceiveClass::kNoSlot, false, 0); };
  for (uint32_t i = 0; i <= kControlDepth; ++i) EXPECT_TRUE(post());
  move_everything();
  EXPECT_EQ(receiver.next_grant(), kControlDepth) << "the send queue is full";
  receiver.serve();
  EXPECT_TRUE(post());
  move_everything();
  for (uint32_t sequence = 0; sequence < receiver.next(); ++sequence)
    EXPECT_TRUE(has_grant(sequence)) << sequence;
}

// After a failure, grants carry the credits of another queue pair.
TEST_F(GrantTest, BringsCreditsOfAnotherQueuePair) {
  network_.emplace(shape_, random_);
  SimSender sender(shape_, random_, *network_, to_sender_, to_receiver_);
  const auto transfer = [&](uint32_t queue_pair, uint32_t returned) {
    const uint32_t sequence = sender.next();
    Grant& grant = network_->control().grants[sequence % kMessageRing];
    grant.address = reinterpret_cast<uintptr_t>(memory_.data());
    grant.length_bytes = kBytes;
    grant.note = CreditNote::make(0, queue_pair, returned);
    grant.stamp = Grant::make_stamp(sequence, 0);
    ASSERT_NE(sender.post(memory_.data(), kBytes, false, 0), nullptr);
  };
  transfer(0, 0);
  for (uint32_t q = 0; q < 2; ++q) ASSERT_LT(sender.credits().available(q), shape_.window) << q;
  transfer(0, 1);
  EXPECT_EQ(sender.credits().returned(0), 1U);
  EXPECT_EQ(sender.credits().returned(1), 0U);
  transfer(1, 1);
  EXPECT_EQ(sender.credits().returned(1), 1U);
  EXPECT_EQ(sender.error(), "");
}

}  // namespace
}  // namespace verbena::protocol::simulation
