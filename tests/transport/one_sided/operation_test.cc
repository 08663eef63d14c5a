// Every operation in one process: what it moves, what it leaves alone, what its completion tells.
#include <gtest/gtest.h>

#include <cstring>

#include "transport/one_sided/support/group.h"

namespace verbena::transport {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kLengths[] = {0, 1, 7, 8, 64, 65, 4096, kMiB + 3};
constexpr std::byte kUntouched{0xee};

struct Shape {
  const char* name;
  uint32_t ranks, lanes;
  uint64_t max_message_bytes;
  bool pushes_all_gets;
};

class OperationTest : public testing::TestWithParam<Shape> {
 protected:
  std::vector<std::unique_ptr<Rank>> make() {
    auto ranks = make_group(GetParam().ranks, {.lanes = GetParam().lanes,
                                               .max_message_bytes = GetParam().max_message_bytes,
                                               .pushes_all_gets = GetParam().pushes_all_gets});
    drive_together(ranks);
    return ranks;
  }
  // Calls with every pair of ranks and every lane.
  void for_each_way(const std::function<void(Rank& from, Rank& to, uint32_t lane)>& call) {
    const auto ranks = make();
    for (const auto& from : ranks) {
      for (const auto& to : ranks) {
        for (uint32_t lane = 0; lane < GetParam().lanes; ++lane) call(*from, *to, lane);
      }
    }
  }
};

// Within one rank's memory too, hence different places for what is sent and what is received.
constexpr size_t kSource = 5, kTarget = 2 * kMiB + 11;

// By memset, which a sanitizer sees as one access.
void wipe(Rank& rank) {
  memset(rank.memory().data(), static_cast<int>(kUntouched), rank.memory().size());
}

void expect_only(Rank& rank, size_t offset, size_t length, uint64_t seed) {
  EXPECT_TRUE(holds(rank.memory().subspan(offset, length), seed)) << length << " bytes";
  EXPECT_EQ(*rank.at(offset - 1), kUntouched) << length;
  EXPECT_EQ(*rank.at(offset + length), kUntouched) << length;
}

TEST_P(OperationTest, Puts) {
  for_each_way([](Rank& from, Rank& to, uint32_t lane) {
    uint64_t seed = 100;
    for (const size_t length : kLengths) {
      wipe(from);
      wipe(to);
      fill(from.memory().subspan(kSource, length), ++seed);
      const Transfer transfer{to.rank(), lane, kRegion, kRegion, kSource, kTarget, length};
      ASSERT_EQ(from.endpoint().put(transfer, seed), Posting::kTaken) << from.endpoint().refusal();
      EXPECT_EQ(from.take_value(seed), 0U);
      EXPECT_EQ(from.count_done(to.rank(), lane), from.endpoint().count_taken(to.rank(), lane));
      expect_only(to, kTarget, length, seed);
    }
  });
}

TEST_P(OperationTest, Gets) {
  for_each_way([](Rank& from, Rank& to, uint32_t lane) {
    uint64_t seed = 200;
    for (const size_t length : kLengths) {
      wipe(from);
      wipe(to);
      fill(to.memory().subspan(kSource, length), ++seed);
      const Transfer transfer{to.rank(), lane, kRegion, kRegion, kTarget, kSource, length};
      ASSERT_EQ(from.endpoint().get(transfer, seed), Posting::kTaken) << from.endpoint().refusal();
      from.take_value(seed);
      expect_only(from, kTarget, length, seed);
    }
  });
}

TEST_P(OperationTest, ReachesTheLastByte) {
  for_each_way([](Rank& from, Rank& to, uint32_t lane) {
    const size_t end = to.memory().size();
    fill(from.memory().first(9), 3);
    ASSERT_EQ(from.endpoint().put({to.rank(), lane, kRegion, kRegion, 0, end - 9, 9}, 1), Posting::kTaken);
    from.take_value(1);
    EXPECT_TRUE(holds(to.memory().last(9), 3));
    ASSERT_EQ(from.endpoint().write_word({to.rank(), lane, kRegion, end - 8}, 77, 2), Posting::kTaken);
    from.take_value(2);
    EXPECT_EQ(to.word(end - 8).load(), 77U);
  });
}

TEST_P(OperationTest, WritesAddsAndReadsWords) {
  for_each_way([](Rank& from, Rank& to, uint32_t lane) {
    const RemoteWord word{to.rank(), lane, kRegion, 4096};
    wipe(to);
    ASSERT_EQ(from.endpoint().write_word(word, 0x1122334455667788, 1), Posting::kTaken);
    EXPECT_EQ(from.take_value(1), 0U);
    EXPECT_EQ(to.word(4096).load(std::memory_order_acquire), 0x1122334455667788U);
    ASSERT_EQ(from.endpoint().add_word(word, ~uint64_t{0}, 2), Posting::kTaken);
    EXPECT_EQ(from.take_value(2), 0x1122334455667788U) << "the value before";
    ASSERT_EQ(from.endpoint().read_word(word, 3), Posting::kTaken);
    EXPECT_EQ(from.take_value(3), 0x1122334455667787U);
    EXPECT_EQ(*to.at(4095), kUntouched);
    EXPECT_EQ(*to.at(4104), kUntouched);
  });
}

// All in one chain, so that their completions are in one queue of one device.
TEST_P(OperationTest, TellsOfEveryCookieInOrder) {
  const auto ranks = make();
  Rank& from = *ranks[0];
  Rank& to = *ranks.back();
  const RemoteWord word{to.rank(), 0, kRegion, 64};
  to.word(64).store(0);
  constexpr uint64_t kCount = 3000;
  for (uint64_t i = 1; i <= kCount; ++i) {
    from.insist([&] { return from.endpoint().add_word(word, 1, i % 3 == 0 ? i : 0); });
  }
  ASSERT_TRUE(from.drain(to.rank(), 0));
  uint64_t expected = 3, before = 0;
  for (const EndpointCompletion& told : from.told()) {
    EXPECT_FALSE(told.has_failed);
    EXPECT_GT(told.count_done, before);
    before = told.count_done;
    if (told.cookie == 0) continue;
    ASSERT_EQ(told.cookie, expected);
    EXPECT_EQ(told.value, expected - 1);
    EXPECT_EQ(told.count_done, expected);
    expected += 3;
  }
  EXPECT_EQ(expected, kCount + 3);
  EXPECT_EQ(to.word(64).load(), kCount);
}

INSTANTIATE_TEST_SUITE_P(Shapes, OperationTest,
                         testing::Values(Shape{"TwoRanks", 2, 1, 0, false},
                                         Shape{"ThreeRanksTwoLanes", 3, 2, 0, false},
                                         Shape{"ShortMessages", 2, 1, 8192, false},
                                         Shape{"PushedGets", 2, 2, 8192, true}),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace verbena::transport
