// What is promised about order, under load: several ranks on threads of their own.
#include <gtest/gtest.h>

#include <thread>

#include "transport/one_sided/support/group.h"

namespace verbena::transport {
namespace {

constexpr uint32_t kSlots = 4;
constexpr size_t kSlotBytes = 16384;
constexpr size_t kFlags = 2 << 20, kCredits = 3 << 20;  // words behind the data

size_t length_of(uint64_t round) {
  return 1 + round * 2654435761U % kSlotBytes;
}

// Puts rounds into the slots, each followed by its flag; a slot is used again once the reader said so.
void write_rounds(Rank& writer, uint32_t reader, uint32_t lane, uint64_t rounds, bool adds) {
  verbena::Endpoint& endpoint = writer.endpoint();
  for (uint64_t round = 1; round <= rounds; ++round) {
    const uint64_t slot = round % kSlots, offset = slot * kSlotBytes;
    const uint64_t needed = round > kSlots ? round - kSlots : 0;
    ASSERT_TRUE(
        writer.poll_until([&] { return writer.word(kCredits).load(std::memory_order_acquire) >= needed; }));
    ASSERT_TRUE(writer.drain(reader, lane)) << "the source is used again";
    fill(writer.memory().subspan(offset, length_of(round)), round);
    writer.insist([&] {
      return endpoint.put({reader, lane, kRegion, kRegion, offset, offset, length_of(round)}, 0);
    });
    const RemoteWord flag{reader, lane, kRegion, kFlags};
    writer.insist([&] { return adds ? endpoint.add_word(flag, 1, 0) : endpoint.write_word(flag, round, 0); });
    endpoint.ring();
  }
  EXPECT_TRUE(writer.drain(reader, lane));
}

void read_rounds(Rank& reader, uint32_t writer, uint32_t lane, uint64_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    ASSERT_TRUE(
        reader.poll_until([&] { return reader.word(kFlags).load(std::memory_order_acquire) >= round; }));
    ASSERT_TRUE(holds(reader.memory().subspan(round % kSlots * kSlotBytes, length_of(round)), round))
        << round;
    reader.insist([&] { return reader.endpoint().write_word({writer, lane, kRegion, kCredits}, round, 0); });
  }
  EXPECT_TRUE(reader.drain(writer, lane));
}

void run_rounds(bool adds, uint32_t lane) {
  const auto ranks = make_group(2, {.lanes = 2});
  constexpr uint64_t kRounds = 3000;
  std::thread writing([&] { write_rounds(*ranks[0], 1, lane, kRounds, adds); });
  read_rounds(*ranks[1], 0, lane, kRounds);
  writing.join();
}

TEST(OneSidedOrderTest, AWordThatIsWrittenComesAfterThePutBeforeIt) {
  run_rounds(false, 0);
}

TEST(OneSidedOrderTest, AWordThatIsAddedToComesAfterThePutBeforeIt) {
  run_rounds(true, 1);
}

// No add is lost, from any rank on any lane; each former value is returned to exactly one add.
TEST(OneSidedOrderTest, AddsOfAllRanksAndLanesAreAtomic) {
  constexpr uint32_t kRanks = 3, kLanes = 2;
  constexpr uint64_t kAdds = 2000;
  const auto ranks = make_group(kRanks, {.lanes = kLanes, .send_depth = 64});
  std::vector<std::thread> threads;
  std::atomic<uint32_t> finished{0};
  for (const auto& rank : ranks) {
    threads.emplace_back([&rank, &finished] {
      for (uint64_t i = 1; i <= kAdds; ++i) {
        rank->insist([&] {
          return rank->endpoint().add_word({1, static_cast<uint32_t>(i % kLanes), kRegion, 128}, 1, i);
        });
      }
      EXPECT_TRUE(rank->drain(1));
      finished.fetch_add(1);
      EXPECT_TRUE(rank->poll_until([&] { return finished.load() == kRanks; })) << "others ask it for adds";
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ranks[1]->word(128).load(), kRanks * kAdds);
  std::vector<bool> seen(kRanks * kAdds);
  for (const auto& rank : ranks) {
    for (const auto& told : rank->told()) {
      if (told.cookie == 0) continue;
      ASSERT_LT(told.value, seen.size());
      EXPECT_FALSE(seen[told.value]) << told.value;
      seen[told.value] = true;
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<ptrdiff_t>(seen.size()));
}

// Over softverbs everything is in order as it is: that the fence travels is shown in tests/verbs.
TEST(OneSidedOrderTest, AFencedPutSeesTheAddBeforeIt) {
  auto ranks = make_group(2);
  drive_together(ranks);
  Rank& rank = *ranks[0];
  for (uint64_t i = 1; i <= 500; ++i) {
    rank.insist([&] { return rank.endpoint().add_word({1, 0, kRegion, 64}, 1, 0); });
    rank.endpoint().fence(1, 0);
    rank.insist([&] { return rank.endpoint().read_word({1, 0, kRegion, 64}, i); });
    EXPECT_EQ(rank.take_value(i), i);
  }
}

// Regions come and go, and peers are looked up, while another thread drives.
TEST(OneSidedOrderTest, RegionsAreAddedBesideTheDriver) {
  const auto ranks = make_group(2);
  Rank &here = *ranks[0], &there = *ranks[1];
  here.drive(there);
  std::atomic<bool> is_over{false};
  std::thread driver([&] {
    while (!is_over.load(std::memory_order_relaxed)) {
      here.insist([&] { return here.endpoint().add_word({1, 0, kRegion, 0}, 1, 0); });
      here.endpoint().ring();
      here.poll();
    }
    EXPECT_TRUE(here.drain(1));
  });
  std::vector<std::byte> memory(8192);
  std::string error;
  for (int lap = 0; lap < 200; ++lap) {
    ASSERT_TRUE(there.endpoint().add_region(9, {.address = memory.data(), .bytes = memory.size()}, &error));
    ASSERT_TRUE(here.endpoint().add_remote_region(1, 9, there.endpoint().region_address(9), &error)) << error;
    here.endpoint().remove_remote_regions(9);
    there.endpoint().remove_region(9);
  }
  is_over.store(true);
  driver.join();
  EXPECT_EQ(there.word(0).load(), here.endpoint().count_taken(1, 0));
}

}  // namespace
}  // namespace verbena::transport
