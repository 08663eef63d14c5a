// A peer that dies in the middle: the other process learns it in time and is none the worse for it.
#include <gtest/gtest.h>

#include "transport/support/pool_probe.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

struct Death {
  const char* name;
  size_t length_bytes;
  uint32_t after;  // so many messages
  bool stages;
};

void PrintTo(const Death& death, std::ostream* out) {
  *out << death.name;
}

Transfer make_transfer(const Death& death) {
  Transfer transfer;
  transfer.messages.assign(500, {.length_bytes = death.length_bytes, .may_stage = death.stages});
  if (death.length_bytes > 1'000'000) transfer.sends_ahead = transfer.receives_ahead = 2;
  return transfer;
}

template <typename Side>
void step_until_finished(Side& side, uint32_t count) {
  EXPECT_TRUE(poll_until([&] { return side.step() || side.finished() >= count; }));
}

template <typename Side>
void expect_to_learn_of_it(Side& side) {
  EXPECT_TRUE(poll_until([&] { return side.step(); })) << "hangs with a dead peer";
  EXPECT_EQ(side.status(), base::Status::kRemote);
}

// The process that sends: `work(side)` on its end of a new connection.
template <typename Work>
void send_from(Channel& channel, Host& host, const Transfer& transfer, const Work& work) {
  const auto sender = connect(host.nic(), channel.hear<protocol::Handle>());
  SendingSide side(*sender, host.nic(), transfer);
  work(side);
}

template <typename Work>
void receive_at(Channel& channel, Host& host, const Transfer& transfer, const Work& work) {
  AcceptedEnd end = accept(channel, host.nic(), true);
  ReceivingSide side(end, host.nic(), transfer);
  work(side);
  end.receiver.reset();
}

// The process whose sender dies after some messages.
Part make_dying_sender(const Death& death, const Transfer& transfer, const Settings& settings = {}) {
  return {[=](Channel& channel) {
            Host host(settings);
            send_from(channel, host, transfer, [&](auto& side) {
              step_until_finished(side, death.after);
              die();
            });
          },
          End::kKilled};
}

class DeathTest : public testing::TestWithParam<Death> {};

TEST_P(DeathTest, OfTheSenderIsNoticedByTheReceiver) {
  const Death death = GetParam();
  const Transfer transfer = make_transfer(death);
  const Part sending = make_dying_sender(death, transfer, PoolProbe::make_settings(64));
  const Part receiving{[&](Channel& channel) {
    Host host(PoolProbe::make_settings(64));
    PoolProbe probe(host.nic());
    apply_settings(PoolProbe::make_settings(64));
    receive_at(channel, host, transfer, [&](auto& side) {
      expect_to_learn_of_it(side);
      EXPECT_EQ(side.problem(), "");
    });
    probe.expect_whole();
  }};
  run_processes(sending, receiving);
}

TEST_P(DeathTest, OfTheReceiverIsNoticedByTheSender) {
  const Death death = GetParam();
  const Transfer transfer = make_transfer(death);
  const Part sending{[&](Channel& channel) {
    Host host;
    send_from(channel, host, transfer, [](auto& side) { expect_to_learn_of_it(side); });
  }};
  const Part receiving{[&](Channel& channel) {
                         Host host;
                         receive_at(channel, host, transfer, [&](auto& side) {
                           step_until_finished(side, death.after);
                           die();
                         });
                       },
                       End::kKilled};
  run_processes(sending, receiving);
}

INSTANTIATE_TEST_SUITE_P(Deaths, DeathTest,
                         testing::Values(Death{"BeforeTheFirstMessage", 1000, 0, true},
                                         Death{"BetweenStagedMessages", 10'000, 50, true},
                                         Death{"BetweenDirectMessages", 10'000, 50, false},
                                         Death{"AmongLargeMessages", 24 << 20, 3, false}),
                         [](const auto& death) { return std::string(death.param.name); });

// With messages open on both sides, both processes close and end at once.
TEST(Failure, BothEndsCloseAtOnce) {
  const Transfer transfer = make_transfer({"", 10'000, 0, true});
  for (const uint32_t after : {0U, 10U, 100U}) {
    const Part sending{[&](Channel& channel) {
      Host host;
      send_from(channel, host, transfer, [&](auto& side) {
        step_until_finished(side, after);
        EXPECT_EQ(side.status(), base::Status::kOk);
        channel.meet();
      });
    }};
    const Part receiving{[&](Channel& channel) {
      Host host;
      receive_at(channel, host, transfer, [&](auto& side) {
        step_until_finished(side, after);
        EXPECT_EQ(side.status(), base::Status::kOk);
        EXPECT_EQ(side.problem(), "");
        channel.meet();
      });
    }};
    run_processes(sending, receiving);
  }
}

// The survivor can make a new connection at once.
TEST(Failure, ASurvivorServesANewPeer) {
  const Death death{"", 10'000, 20, true};
  const Transfer transfer = make_transfer(death);
  const Part sending = make_dying_sender(death, transfer);
  const Part surviving{[&](Channel& channel) {
    auto [host, nic] = OwnNic();
    receive_at(channel, host, transfer, [](auto& side) { expect_to_learn_of_it(side); });
    ConnectedPair connection = connect_here(nic, nic, true);
    expect_transfer_here(connection, nic, nic, transfer);
  }};
  run_processes(sending, surviving);
}

}  // namespace
}  // namespace verbena::transport
