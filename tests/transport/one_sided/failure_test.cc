// Between two processes, and faults: an error names the peer, the rail and the cause, and the others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <thread>

#include "transport/one_sided/support/group.h"
#include "transport/support/processes.h"

namespace verbena::transport {
namespace {

using testing::HasSubstr;

void tell_bytes(Channel& channel, const std::vector<std::byte>& bytes) {
  channel.tell(bytes.size());
  channel.send(bytes.data(), bytes.size());
}

std::vector<std::byte> hear_bytes(Channel& channel) {
  std::vector<std::byte> bytes(channel.hear<size_t>());
  channel.receive(bytes.data(), bytes.size());
  return bytes;
}

// One of two ranks in processes of their own, connected to the other.
std::unique_ptr<Rank> join(Channel& channel, uint32_t rank, bool pushes_all_gets = false) {
  choose_devices();
  auto joined = std::make_unique<Rank>(
      EndpointOptions{.rank = rank, .count_ranks = 2, .nonce = 7, .pushes_all_gets = pushes_all_gets},
      4 << 20);
  verbena::Endpoint& endpoint = joined->endpoint();
  std::string error;
  tell_bytes(channel, endpoint.local_address(1 - rank, &error));
  EXPECT_TRUE(endpoint.connect(1 - rank, hear_bytes(channel), &error)) << error;
  tell_bytes(channel, endpoint.region_address(kRegion));
  EXPECT_TRUE(endpoint.add_remote_region(1 - rank, kRegion, hear_bytes(channel), &error)) << error;
  channel.meet();
  return joined;
}

// Rank 0 reaches itself over a lane too.
std::unique_ptr<Rank> join_with_self(Channel& channel) {
  auto self = join(channel, 0);
  std::string error;
  const auto address = self->endpoint().local_address(0, &error);
  EXPECT_TRUE(self->endpoint().connect(0, address, &error)) << error;
  EXPECT_TRUE(
      self->endpoint().add_remote_region(0, kRegion, self->endpoint().region_address(kRegion), &error));
  return self;
}

// Data, then a word after it, each way in turn; adds of both on one word.
void play(Channel& channel, uint32_t rank) {
  const auto self = rank == 0 ? join_with_self(channel) : join(channel, 1);
  const uint32_t peer = 1 - rank;
  constexpr uint64_t kRounds = 300;
  constexpr size_t kFlag = 2 << 20, kSum = kFlag + 64;
  verbena::Endpoint& endpoint = self->endpoint();
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const size_t length = 1 + round * 7919 % 100'000;
    const bool writes = round % 2 == rank;
    if (writes) {
      fill(self->memory().first(length), round);
      self->insist([&] { return endpoint.put({peer, 0, kRegion, kRegion, 0, 1 << 20, length}, 0); });
      self->insist([&] { return endpoint.write_word({peer, 0, kRegion, kFlag}, round, 0); });
    } else {
      ASSERT_TRUE(
          self->poll_until([&] { return self->word(kFlag).load(std::memory_order_acquire) == round; }));
      ASSERT_TRUE(holds(self->memory().subspan(1 << 20, length), round));
    }
    self->insist([&] { return endpoint.add_word({0, 0, kRegion, kSum}, 1, 0); });
    ASSERT_TRUE(self->drain(peer, 0));
  }
  EXPECT_TRUE(self->drain(0, 0));
  // Rank 0, which may be an agent, polls until the adds of both have happened.
  constexpr size_t kDone = kFlag + 128;
  if (rank == 1) {
    self->insist([&] { return endpoint.write_word({0, 0, kRegion, kDone}, 1, 0); });
    EXPECT_TRUE(self->drain(0, 0));
  } else {
    EXPECT_TRUE(self->poll_until([&] { return self->word(kDone).load() == 1; }));
  }
  channel.meet();
  if (rank == 0) {
    EXPECT_EQ(self->word(kSum).load(), 2 * kRounds);
  } else {
    ASSERT_EQ(endpoint.get({0, 0, kRegion, kRegion, 3 << 20, kSum, 8}, 1), Posting::kTaken);
    self->take_value(1);
    EXPECT_EQ(self->word(3 << 20).load(), 2 * kRounds);
  }
  channel.meet();
}

// Operations to a peer that has failed are refused with its error; those to the own rank still work.
void expect_failed_alone(Rank& rank, uint32_t failed, uint32_t other, const char* cause) {
  EXPECT_TRUE(rank.poll_until([&] { return rank.count_failures(failed) == 1; }));
  verbena::Endpoint& endpoint = rank.endpoint();
  EXPECT_THAT(endpoint.error(failed), HasSubstr("rank " + std::to_string(failed) + ", rail softverbs0:1"));
  EXPECT_THAT(endpoint.error(failed), HasSubstr(cause));
  EXPECT_EQ(endpoint.write_word({failed, 0, kRegion, 0}, 1, 0), Posting::kRefused);
  EXPECT_THAT(endpoint.refusal(), HasSubstr("has failed"));
  EXPECT_EQ(endpoint.error(other), "");
  ASSERT_EQ(endpoint.write_word({other, 0, kRegion, 256}, 4711, 99), Posting::kTaken);
  rank.take_value(99);
  EXPECT_TRUE(rank.drain(other));
  EXPECT_EQ(rank.count_failures(failed), 1U) << "told once";
  EXPECT_EQ(rank.count_failures(other), 0U);
}

TEST(OneSidedProcessTest, TwoProcessesReachEachOther) {
  const auto as = [](uint32_t rank) { return Part{[rank](Channel& channel) { play(channel, rank); }}; };
  run_processes(as(0), as(1));
}

TEST(OneSidedFailureTest, APeerThatVanishesIsNamedAndTheOwnRankGoesOn) {
  run_processes({[](Channel& channel) {
                  const auto self = join_with_self(channel);
                  channel.tell('g');
                  EXPECT_THROW(channel.hear<char>(), std::runtime_error) << "it is gone";
                  const Transfer transfer{1, 0, kRegion, kRegion, 0, 0, 4096};
                  self->insist([&] { return self->endpoint().put(transfer, 5); });
                  expect_failed_alone(*self, 1, 0, "retries exhausted");
                }},
                {[](Channel& channel) {
                   const auto self = join(channel, 1);
                   channel.hear<char>();
                   die();
                 },
                 End::kKilled});
}

// Three ranks in one process whose plan of faults is its own, and for whom the first failure is the last.
void run_with_faults(const char* plan, const std::function<void(std::vector<std::unique_ptr<Rank>>&)>& body,
                     bool pushes_all_gets = false) {
  run_process([&] {
    setenv("SOFTVERBS_FAULTS", plan, 1);
    setenv("VERBENA_FAILOVER", "0", 1);
    auto ranks = make_group(3, {.lanes = 1, .pushes_all_gets = pushes_all_gets});
    body(ranks);
  });
}

TEST(OneSidedFailureTest, APutThatFailsIsItsPeersError) {
  run_with_faults("fail nth=40 opcode=RDMA_WRITE status=RETRY_EXC", [](auto& ranks) {
    Rank& rank = *ranks[0];
    for (uint64_t i = 0; i < 60; ++i) {
      EXPECT_EQ(rank.endpoint().put({1, 0, kRegion, kRegion, 0, 0, 100}, i + 1000), Posting::kTaken) << i;
    }
    rank.endpoint().ring();
    expect_failed_alone(rank, 1, 2, "retries exhausted");
    // Operations before it are reported as done, none after it.
    EXPECT_EQ(rank.count_done(1, 0), 39U);
    EXPECT_EQ(rank.endpoint().count_taken(1, 0), 60U);
  });
}

TEST(OneSidedFailureTest, AnAddThatIsRefusedThereIsItsPeersError) {
  run_with_faults("fail nth=3 opcode=ATOMIC_FETCH_AND_ADD status=REM_ACCESS", [](auto& ranks) {
    Rank& rank = *ranks[0];
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(rank.endpoint().add_word({2, 0, kRegion, 0}, 1, 0), Posting::kTaken);
    }
    rank.endpoint().ring();
    expect_failed_alone(rank, 2, 1, "remote access error");
    EXPECT_EQ(ranks[2]->word(0).load(), 2U);
  });
}

TEST(OneSidedFailureTest, ACompletionThatNeverComesIsGivenUp) {
  run_with_faults("drop nth=1 opcode=RDMA_WRITE", [](auto& ranks) {
    Rank& rank = *ranks[0];
    ASSERT_EQ(rank.endpoint().put({1, 0, kRegion, kRegion, 0, 0, 100}, 1), Posting::kTaken);
    rank.endpoint().ring();
    rank.poll();
    EXPECT_TRUE(rank.told().empty());
    rank.endpoint().give_up(1, "waited too long");
    rank.endpoint().give_up(1, "and again");
    expect_failed_alone(rank, 1, 2, "given up: waited too long");
  });
}

// The second READ is the one that pushes: as long as it is under way the get is not told of, nor is what came
// after it, here or at another peer.
TEST(OneSidedFailureTest, AGetIsNotToldOfBeforeItsPush) {
  run_with_faults(
      "drop nth=2 opcode=RDMA_READ",
      [](auto& ranks) {
        Rank& rank = *ranks[0];
        ASSERT_EQ(rank.endpoint().put({1, 0, kRegion, kRegion, 0, 0, 100}, 1), Posting::kTaken);
        rank.take_value(1);
        ASSERT_EQ(rank.endpoint().get({1, 0, kRegion, kRegion, 0, 0, 100}, 2), Posting::kTaken);
        EXPECT_FALSE(rank.drain(1, 0, 300));
        ASSERT_EQ(rank.endpoint().put({2, 0, kRegion, kRegion, 0, 0, 100}, 3), Posting::kTaken);
        EXPECT_FALSE(rank.drain(2, 0, 300));
        EXPECT_TRUE(rank.told().empty());
        rank.endpoint().give_up(1, "waited too long");
        EXPECT_TRUE(rank.poll_until([&] { return rank.count_failures(1) == 1; }));
        EXPECT_EQ(rank.told().size(), 1U) << "nothing more of a peer that failed";
      },
      true);
}

TEST(OneSidedFailureTest, APushThatFailsIsEveryPeersError) {
  run_with_faults(
      "fail nth=2 opcode=RDMA_READ status=LOC_PROT",
      [](auto& ranks) {
        Rank& rank = *ranks[0];
        ASSERT_EQ(rank.endpoint().get({1, 0, kRegion, kRegion, 0, 0, 100}, 2), Posting::kTaken);
        for (uint32_t peer = 0; peer < 3; ++peer) {
          EXPECT_TRUE(rank.poll_until([&] { return rank.count_failures(peer) == 1; }));
          EXPECT_THAT(rank.endpoint().error(peer), HasSubstr("cannot flush the data of a get"));
        }
        EXPECT_EQ(rank.told().size(), 3U) << "the get is not told of";
      },
      true);
}

// --- Without atomics: the peer's agent adds.

Part without_atomics(Part part) {
  part.body = [run = part.body](Channel& channel) {
    setenv("SOFTVERBS_PROFILE", "bnxt", 1);
    run(channel);
  };
  return part;
}
void run_without_atomics(const std::function<void()>& body) {
  run_process([&] {
    setenv("SOFTVERBS_PROFILE", "bnxt", 1);
    body();
  });
}

TEST(WithoutAtomicsTest, TwoProcessesReachEachOther) {
  const auto as = [](uint32_t rank) { return Part{[rank](Channel& channel) { play(channel, rank); }}; };
  run_processes(without_atomics(as(0)), without_atomics(as(1)));
}

// In host memory the agent's adds are atomic with the CPU's.
TEST(WithoutAtomicsTest, AddsAreAtomicWithThoseOfTheOwnThreads) {
  run_without_atomics([] {
    auto ranks = make_group(2, {.lanes = 2}, 4096);
    drive_together(ranks);
    constexpr uint64_t kAdds = 20'000;
    std::atomic<bool> is_over{false};
    uint64_t own = 0;
    std::thread local([&] {
      for (; !is_over.load(); ++own) ranks[1]->word(64).fetch_add(1);
    });
    for (uint64_t i = 0; i < kAdds; ++i) {
      const RemoteWord word{1, static_cast<uint32_t>(i % 2), kRegion, 64};
      ranks[0]->insist([&] { return ranks[0]->endpoint().add_word(word, 1, 0); });
    }
    EXPECT_TRUE(ranks[0]->drain(1));
    is_over.store(true);
    local.join();
    EXPECT_EQ(ranks[1]->word(64).load(), own + kAdds);
  });
}

// The READs and WRITEs by which words in GPU memory are changed: each former value is returned once,
// whichever adds share a batch.
TEST(WithoutAtomicsTest, AddsByTheDeviceAreAtomicWithEachOther) {
  run_without_atomics([] {
    constexpr uint32_t kRanks = 3;
    constexpr uint64_t kAdds = 1500, kWords = 20;
    auto ranks = make_group(kRanks, {.lanes = 2, .pushes_all_gets = true}, 4096);
    drive_together(ranks);
    for (uint64_t i = 0; i < kAdds; ++i) {
      for (const auto& rank : ranks) {
        const RemoteWord word{1, static_cast<uint32_t>(i % 2), kRegion, i % kWords * 8};
        rank->insist([&] { return rank->endpoint().add_word(word, 1, 1 + i % kWords); });
      }
    }
    for (const auto& rank : ranks) EXPECT_TRUE(rank->drain(1));
    std::vector<std::vector<bool>> seen(kWords, std::vector<bool>(kRanks * kAdds / kWords));
    for (const auto& rank : ranks) {
      for (const EndpointCompletion& told : rank->told()) {
        if (told.cookie == 0) continue;
        auto& values = seen[told.cookie - 1];
        ASSERT_LT(told.value, values.size());
        EXPECT_FALSE(values[told.value]) << told.value;
        values[told.value] = true;
      }
    }
    for (uint64_t i = 0; i < kWords; ++i) EXPECT_EQ(ranks[1]->word(i * 8).load(), kRanks * kAdds / kWords);
  });
}

// Two regions may have the same memory.
TEST(WithoutAtomicsTest, AddsToAWordInTwoRegionsSumUp) {
  run_without_atomics([] {
    constexpr uint32_t kOther = kRegion + 1;
    constexpr uint64_t kAdds = 200;
    auto ranks = make_group(2, {.lanes = 2, .pushes_all_gets = true}, 4096);
    drive_together(ranks);
    verbena::Endpoint& agent = ranks[1]->endpoint();
    std::string error;
    ASSERT_TRUE(agent.add_region(kOther, {.address = ranks[1]->at(64), .bytes = 64}, &error));
    for (const auto& rank : ranks)
      ASSERT_TRUE(rank->endpoint().add_remote_region(1, kOther, agent.region_address(kOther), &error));
    for (uint64_t i = 0; i < kAdds; ++i) {
      for (const auto& rank : ranks) {
        rank->insist([&] { return rank->endpoint().add_word({1, 0, kRegion, 64}, 1, 0); });
        rank->insist([&] { return rank->endpoint().add_word({1, 1, kOther, 0}, 1, 0); });
      }
    }
    for (const auto& rank : ranks) EXPECT_TRUE(rank->drain(1));
    EXPECT_EQ(ranks[1]->word(64).load(), 4 * kAdds);
  });
}

// Adds of two peers are in one batch, and the first READ of it is refused. Each endpoint has tried its device
// by a READ before.
TEST(WithoutAtomicsTest, AWordThatIsRefusedEndsThePeerThatAskedForIt) {
  run_without_atomics([] {
    setenv("SOFTVERBS_FAULTS", "fail nth=4 opcode=RDMA_READ status=REM_ACCESS", 1);
    setenv("VERBENA_SELF_TEST", "0", 1);
    auto ranks = make_group(3, {.lanes = 1, .pushes_all_gets = true}, 4096);
    for (const uint32_t rank : {0U, 2U}) {
      const RemoteWord word{1, 0, kRegion, rank * 64};
      ranks[rank]->insist([&] { return ranks[rank]->endpoint().add_word(word, 5, 0); });
      EXPECT_FALSE(ranks[rank]->drain(1, 0, 200)) << "the agent does not poll";
    }
    ranks[2]->drive(*ranks[1]);
    EXPECT_TRUE(ranks[2]->drain(1));
    EXPECT_EQ(ranks[1]->word(128).load(), 5U);
    EXPECT_EQ(ranks[1]->word(0).load(), 0U);
    EXPECT_THAT(ranks[1]->endpoint().error(0), HasSubstr("cannot add to a word in GPU memory"));
    EXPECT_EQ(ranks[1]->endpoint().error(2), "");
  });
}

// It ends between the entry of an add and its answer, when nothing is under way any more.
TEST(WithoutAtomicsTest, AnAgentThatVanishesIsNamed) {
  run_processes(without_atomics({[](Channel& channel) {
                  const auto self = join(channel, 0);
                  self->insist([&] { return self->endpoint().add_word({1, 0, kRegion, 0}, 1, 0); });
                  EXPECT_FALSE(self->drain(1, 0, 100)) << "the agent does not poll";
                  channel.tell('g');
                  EXPECT_THROW(channel.hear<char>(), std::runtime_error) << "it is gone";
                  EXPECT_TRUE(self->poll_until([&] { return self->count_failures(1) == 1; }));
                  EXPECT_THAT(self->endpoint().error(1), HasSubstr("retries exhausted"));
                }}),
                without_atomics({[](Channel& channel) {
                                   const auto self = join(channel, 1);
                                   channel.hear<char>();
                                   die();
                                 },
                                 End::kKilled}));
}

// An agent that goes carries out the adds that have come, and answers them.
void close_agent(bool pushes_all_gets) {
  run_processes(without_atomics({[=](Channel& channel) {
                  const auto self = join(channel, 0, pushes_all_gets);
                  for (uint64_t i = 0; i < 50; ++i)
                    self->insist([&] { return self->endpoint().add_word({1, 0, kRegion, 0}, 1, 0); });
                  EXPECT_FALSE(self->drain(1, 0, 200)) << "the agent does not poll";
                  channel.tell('g');
                  EXPECT_TRUE(self->drain(1, 0, 20'000));
                  EXPECT_EQ(self->count_failures(1), 0U);
                  channel.meet();
                }}),
                without_atomics({[=](Channel& channel) {
                  auto self = join(channel, 1, pushes_all_gets);
                  channel.hear<char>();
                  self.reset();
                  channel.meet();
                }}));
}

TEST(WithoutAtomicsTest, AnAgentThatClosesHasAnswered) {
  close_agent(false);
}
TEST(WithoutAtomicsTest, AnAgentThatClosesHasAnsweredAddsByTheDevice) {
  close_agent(true);
}

// Words that are added to by one device's atomics and by a CPU would lose adds.
TEST(WithoutAtomicsTest, RanksThatAddInOtherWaysDoNotConnect) {
  run_processes(
      without_atomics({[](Channel& channel) {
        choose_devices();
        std::string error;
        const auto endpoint = verbena::Endpoint::open({.rank = 0, .count_ranks = 2, .nonce = 7}, &error);
        ASSERT_NE(endpoint, nullptr) << error;
        EXPECT_FALSE(endpoint->has_atomics());
        tell_bytes(channel, endpoint->local_address(1, &error));
        EXPECT_FALSE(endpoint->connect(1, hear_bytes(channel), &error));
        EXPECT_THAT(
            error,
            HasSubstr(
                "rank 1 adds to words (such as signals) by RDMA atomics, but this rank adds in software"));
      }}),
      {[](Channel& channel) {
        choose_devices();
        std::string error;
        const auto endpoint = verbena::Endpoint::open({.rank = 1, .count_ranks = 2, .nonce = 7}, &error);
        ASSERT_NE(endpoint, nullptr) << error;
        EXPECT_TRUE(endpoint->has_atomics());
        tell_bytes(channel, endpoint->local_address(0, &error));
        EXPECT_FALSE(endpoint->connect(0, hear_bytes(channel), &error));
      }});
}

}  // namespace
}  // namespace verbena::transport
