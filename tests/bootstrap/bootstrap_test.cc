// What ranks tell each other when all goes well, as threads of one process and over both shapes of the tree.
#include "bootstrap/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "bootstrap/support/ranks.h"
#include "tests/base/log_capture.h"

namespace verbena::bootstrap {
namespace {

struct Shape {
  uint32_t count_ranks;
  uint32_t fan_out;
};

// What rank `from` says to rank `to`, in each byte another.
std::vector<std::byte> say(uint32_t from, uint32_t to, size_t length_bytes) {
  std::vector<std::byte> bytes(length_bytes);
  for (size_t i = 0; i < length_bytes; ++i)
    bytes[i] = static_cast<std::byte>(from * 131 + to * 31 + i * 7 + i / 251);
  return bytes;
}

class BootstrapTest : public testing::TestWithParam<Shape> {
 protected:
  void run(const JoinedBody& body) {
    run_joined(GetParam().count_ranks, body, {.timeout_ms = 30'000, .fan_out = GetParam().fan_out});
  }
};

TEST_P(BootstrapTest, AllGatherBringsEveryRanksBytes) {
  run([](Bootstrap& bootstrap) {
    const uint32_t count = bootstrap.count_ranks();
    for (const size_t length_bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{4096}}) {
      const auto mine = say(bootstrap.rank(), 0, length_bytes);
      std::vector<std::byte> all(count * length_bytes);
      ASSERT_TRUE(bootstrap.all_gather(mine, all));
      for (uint32_t from = 0; from < count; ++from) {
        const auto part = std::span(all).subspan(from * length_bytes, length_bytes);
        EXPECT_TRUE(std::ranges::equal(part, say(from, 0, length_bytes))) << "from rank " << from;
      }
    }
  });
}

TEST_P(BootstrapTest, ExchangeBringsEachItsPart) {
  run([](Bootstrap& bootstrap) {
    constexpr size_t kPartBytes = 96;
    const uint32_t count = bootstrap.count_ranks(), rank = bootstrap.rank();
    for (int round = 0; round < 3; ++round) {
      std::vector<std::byte> mine, theirs(count * kPartBytes);
      for (uint32_t to = 0; to < count; ++to) {
        const auto part = say(rank, to, kPartBytes);
        mine.insert(mine.end(), part.begin(), part.end());
      }
      ASSERT_TRUE(bootstrap.exchange(mine, theirs));
      for (uint32_t from = 0; from < count; ++from) {
        const auto part = std::span(theirs).subspan(from * kPartBytes, kPartBytes);
        EXPECT_TRUE(std::ranges::equal(part, say(from, rank, kPartBytes))) << "from rank " << from;
      }
    }
  });
}

TEST_P(BootstrapTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  constexpr uint32_t kRounds = 20;
  std::atomic<uint32_t> came{0};
  run([&](Bootstrap& bootstrap) {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      came.fetch_add(1);
      ASSERT_TRUE(bootstrap.barrier());
      EXPECT_GE(came.load(), round * bootstrap.count_ranks());
    }
  });
}

TEST_P(BootstrapTest, EveryoneHearsOfOneRanksError) {
  base::LogCapture log;
  const uint32_t count = GetParam().count_ranks, failing = count / 2;
  run([&](Bootstrap& bootstrap) {
    EXPECT_TRUE(bootstrap.all_agree({}, ""));
    const bool fails = bootstrap.rank() >= failing;
    const base::Outcome mine = fails ? base::Outcome(base::Error{base::Status::kCuda, 7}) : base::Outcome();
    const base::Outcome agreed =
        bootstrap.all_agree(mine, "no memory on GPU " + std::to_string(bootstrap.rank()));
    EXPECT_EQ(agreed.status(), base::Status::kCuda);
    EXPECT_EQ(agreed.error().errno_value, 7);
    EXPECT_TRUE(bootstrap.barrier()) << "it is still usable";
  });
  const auto warnings = log.warnings();
  EXPECT_EQ(warnings.size(), count - 1) << "each but the one that failed first";
  const std::string name = std::to_string(failing);
  for (const std::string& line : warnings) {
    EXPECT_THAT(line, testing::HasSubstr("rank " + name + " failed: no memory on GPU " + name));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BootstrapTest,
                         testing::Values(Shape{1, 64}, Shape{2, 64}, Shape{3, 64}, Shape{8, 64},
                                         Shape{64, 64}, Shape{8, 1}, Shape{8, 2}, Shape{64, 3}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.count_ranks) + "RanksFanOut" +
                                  std::to_string(shape.param.fan_out);
                         });

TEST(BootstrapLength, AMebibyteFromEachRank) {
  run_joined(8, [](Bootstrap& bootstrap) {
    constexpr size_t kLengthBytes = 1 << 20;
    std::vector<std::byte> all(8 * kLengthBytes);
    ASSERT_TRUE(bootstrap.all_gather(say(bootstrap.rank(), 0, kLengthBytes), all));
    for (uint32_t from = 0; from < 8; ++from) {
      const auto part = std::span(all).subspan(from * kLengthBytes, kLengthBytes);
      EXPECT_TRUE(std::ranges::equal(part, say(from, 0, kLengthBytes)));
    }
  });
}

TEST(BootstrapLength, WhatDoesNotFitIsRefusedHere) {
  base::LogCapture log;
  run_joined(2, [](Bootstrap& bootstrap) {
    std::byte mine[3]{}, all[5]{};
    EXPECT_EQ(bootstrap.all_gather(mine, all).status(), base::Status::kInvalidArgument);
    EXPECT_EQ(bootstrap.exchange(mine, mine).status(), base::Status::kInvalidArgument);
    EXPECT_TRUE(bootstrap.barrier());
  });
}

TEST(BootstrapThreads, SeveralLiveInAProcessAtOnce) {
  constexpr uint32_t kJobs = 6, kRanks = 3;
  run_as_threads(kJobs, [](uint32_t job) {
    for (int again = 0; again < 5; ++again) {
      run_joined(kRanks, [&](Bootstrap& bootstrap) {
        const auto all = take(bootstrap.gather(job * 100 + bootstrap.rank()), "gathering");
        EXPECT_EQ(all, (std::vector<uint32_t>{job * 100, job * 100 + 1, job * 100 + 2}));
      });
    }
  });
}

TEST(BootstrapIds, BytesThatAreNoneAreRefused) {
  base::LogCapture log;
  UniqueId id = take(make_unique_id(), "id");
  const auto join = [&] { return Bootstrap::join(id, 0, 2, {.timeout_ms = 100}).error().status; };
  id.bytes[0] ^= 1;
  EXPECT_EQ(join(), base::Status::kInvalidArgument);
  id.bytes[0] ^= 1;
  id.bytes[8] ^= 1;
  EXPECT_EQ(join(), base::Status::kInvalidArgument);
  EXPECT_EQ(Bootstrap::join(id, 2, 2).error().status, base::Status::kInvalidArgument);
  EXPECT_EQ(Bootstrap::join(id, 0, 0).error().status, base::Status::kInvalidArgument);
}

// The caller's own all-gather: ranks as threads with a table between them.
class Table {
 public:
  explicit Table(uint32_t count) : count_(count) {}
  struct Seat {
    Table* table;
    uint32_t rank;
  };
  static int gather(void* context, const void* mine, void* all, size_t bytes_each) {
    auto& seat = *static_cast<Seat*>(context);
    return seat.table->gather(seat.rank, mine, all, bytes_each);
  }

 private:
  int gather(uint32_t rank, const void* mine, void* all, size_t bytes_each) {
    std::unique_lock lock(mutex_);
    bytes_.resize(count_ * bytes_each);
    std::memcpy(bytes_.data() + rank * bytes_each, mine, bytes_each);
    meet(lock);
    std::memcpy(all, bytes_.data(), bytes_.size());
    meet(lock);
    return 0;
  }
  void meet(std::unique_lock<std::mutex>& lock) {
    const uint32_t round = round_;
    if (++came_ == count_) {
      came_ = 0;
      ++round_;
      all_came_.notify_all();
    }
    all_came_.wait(lock, [&] { return round_ != round; });
  }

  uint32_t count_, came_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable all_came_;
  std::vector<char> bytes_;
};

TEST(BootstrapOfTheCaller, DoesTheSame) {
  constexpr uint32_t kRanks = 4;
  base::LogCapture log;
  Table table(kRanks);
  run_as_threads(kRanks, [&](uint32_t rank) {
    Table::Seat seat{&table, rank};
    auto bootstrap = take(Bootstrap::from_all_gather(&Table::gather, &seat, rank, kRanks), "bootstrap");
    EXPECT_TRUE(bootstrap.barrier());
    EXPECT_EQ(take(bootstrap.gather(rank * 3), "gathering"), (std::vector<uint32_t>{0, 3, 6, 9}));
    const uint32_t mine[kRanks] = {rank, rank + 10, rank + 20, rank + 30};
    uint32_t theirs[kRanks];
    EXPECT_TRUE(
        bootstrap.exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(theirs))));
    for (uint32_t from = 0; from < kRanks; ++from) EXPECT_EQ(theirs[from], from + rank * 10);
    const base::Outcome mine_failed =
        rank == 2 ? base::Outcome(base::Error{base::Status::kSystem, 12}) : base::Outcome();
    EXPECT_EQ(bootstrap.all_agree(mine_failed, "so").status(), base::Status::kSystem);
  });
}

// As many as a job may have. All parts of all ranks, 4.5 GB, are never in one place: they take turns.
TEST(BootstrapOfTheCaller, AnExchangeOfManyRanksIsBounded) {
  constexpr uint32_t kRanks = 4'096, kRank = 7, kPartBytes = 271;
  constexpr size_t kMostBytes = size_t{256} << 20;
  struct Others {
    size_t done = 0, most_bytes = 0, calls = 0;
    bool is_right = true;
    static int gather(void* context, const void* mine, void* all, size_t bytes) {
      auto& others = *static_cast<Others*>(context);
      const size_t slice = bytes / kRanks;
      others.most_bytes = std::max(others.most_bytes, bytes * kRanks);
      ++others.calls;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const auto ours = say(kRank, rank, kPartBytes), theirs = say(rank, kRank, kPartBytes);
        others.is_right &= std::memcmp(static_cast<const std::byte*>(mine) + rank * slice,
                                       ours.data() + others.done, slice) == 0;
        std::memcpy(static_cast<std::byte*>(all) + (size_t{rank} * kRanks + kRank) * slice,
                    theirs.data() + others.done, slice);
      }
      others.done += slice;
      return 0;
    }
  } others;
  auto bootstrap = take(Bootstrap::from_all_gather(&Others::gather, &others, kRank, kRanks), "bootstrap");
  std::vector<std::byte> mine, theirs(size_t{kRanks} * kPartBytes);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const auto part = say(kRank, rank, kPartBytes);
    mine.insert(mine.end(), part.begin(), part.end());
  }
  ASSERT_TRUE(bootstrap.exchange(mine, theirs));
  EXPECT_LE(others.most_bytes, kMostBytes);
  EXPECT_GT(others.calls, 4U);
  EXPECT_TRUE(others.is_right);
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    ASSERT_TRUE(std::ranges::equal(std::span(theirs).subspan(rank * size_t{kPartBytes}, kPartBytes),
                                   say(rank, kRank, kPartBytes)));
}

TEST(BootstrapOfTheCaller, ItsFailureIsTheLast) {
  base::LogCapture log;
  const AllGatherFunction fails = [](void*, const void*, void*, size_t) { return 3; };
  auto bootstrap = take(Bootstrap::from_all_gather(fails, nullptr, 1, 2), "bootstrap");
  EXPECT_EQ(bootstrap.barrier().status(), base::Status::kRemote);
  EXPECT_EQ(bootstrap.check_ranks().status(), base::Status::kRemote);
  EXPECT_EQ(bootstrap.barrier().status(), base::Status::kRemote);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(testing::HasSubstr("result 3")));
  EXPECT_EQ(Bootstrap::from_all_gather(nullptr, nullptr, 0, 1).error().status,
            base::Status::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::bootstrap
