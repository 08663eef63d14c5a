// Communicators of ranks in several hosts, which VERBENA_HOSTID makes of processes, over softverbs: teams
// that cannot be, calls that there are not, teams of both kinds side by side, a rank that does not come.
// verbena-bench coll checks what calls compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/scoped_environment.h"
#include "ops/rank_process.h"

namespace verbena {
namespace {

using testing::HasSubstr;

TEST(OpsAcrossHosts, HostsHaveEquallyManyRanks) {
  const std::string said = run({0, 0, 1}, [](Rank& rank, uint32_t) -> std::string {
    const verbena_result result = rank.create(verbena_team_world(rank.context().handle()));
    return result == VERBENA_SUCCESS ? "was made" : verbena_last_error();
  });
  EXPECT_THAT(said, HasSubstr("the same number of ranks on each host. Of the team's 3 ranks"));
  EXPECT_THAT(said, testing::Not(HasSubstr("was made")));
}

// Ranks 0 and 1 of one host, 2 and 3 of two: their teams are made by one call, and by others none is.
TEST(OpsAcrossHosts, TeamsOfOneHostAndOfSeveralSideBySide) {
  expect_run({0, 0, 0, 1, 1}, [](Rank& rank, uint32_t number) -> std::string {
    const SymmetricTeam team = rank.context().split(rank.context().world(), number == 4 ? -1 : number / 2);
    check(rank.create(team.handle()));
    if (number == 4) return "";
    check(rank.all_reduce());
    return rank.has_sum(2, number < 2 ? 1 : 5) ? "" : "wrong";
  });
}

// Host 0 has ranks 0 and 2: sums go by hosts, whatever the order of ranks.
TEST(OpsAcrossHosts, RanksOfAHostNeedNotBeNeighbours) {
  expect_run({0, 1, 0, 1}, [](Rank& rank, uint32_t) -> std::string {
    rank.create_for_all();
    check(rank.all_reduce());
    return rank.has_sum(4, 6) ? "" : "wrong";
  });
}

TEST(OpsAcrossHosts, RefusesWhatThereIsNot) {
  const std::string said = run({0, 1}, [](Rank& rank, uint32_t) -> std::string {
    rank.create_for_all();
    std::string all;
    const auto refuse = [&](verbena_result result) {
      all += result == VERBENA_INVALID_USAGE ? "" : std::string(" not refused: ") + verbena_last_error();
    };
    for (const verbena_ops_algorithm algorithm :
         {VERBENA_OPS_ONE_SHOT, VERBENA_OPS_DIRECT, VERBENA_OPS_TWO_SHOT}) {
      const verbena_ops_choice choice{algorithm, 0, 0, 0};
      refuse(rank.all_reduce(&choice));
    }
    const verbena_ops_choice copies{VERBENA_OPS_COPY_ENGINES, 0, 0, 0};
    refuse(verbena_ops_all_gather(rank.ops(), rank.tensor(0), rank.tensor(1), 1, 64, &copies, nullptr));
    verbena_ops_norm norm{};
    norm.rows = 2;
    norm.hidden = 64;
    refuse(verbena_ops_reduce_scatter_norm_all_gather(rank.ops(), rank.tensor(0), rank.tensor(1),
                                                      VERBENA_OPS_BFLOAT16, &norm, nullptr, nullptr));
    return all;
  });
  EXPECT_EQ(said, "");
}

// The same numbers by either way of sending them; and where calls are compared, a rank that encodes and one
// that does not are told apart.
TEST(OpsAcrossHosts, LosslessCallsAreAskedForByAllRanks) {
  const base::ScopedEnvironment environment({{"VERBENA_OPS_CHECK", "1"}});
  const std::string said = run({0, 1}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    const verbena_ops_choice lossless{VERBENA_OPS_LOSSLESS, 0, 0, 0};
    const auto sum = [&](const verbena_ops_choice* choice) {
      auto* const input = reinterpret_cast<uint16_t*>(rank.tensor(0));
      // 1 and 2 as bfloat16.
      for (size_t i = 0; i < kCount; ++i) input[i] = number == 0 ? 0x3f80 : 0x4000;
      return verbena_ops_all_reduce(rank.ops(), input, rank.tensor(1), kCount, VERBENA_OPS_BFLOAT16,
                                    VERBENA_OPS_SUM, choice, nullptr);
    };
    for (const verbena_ops_choice* const choice :
         {&lossless, static_cast<const verbena_ops_choice*>(nullptr)}) {
      check(sum(choice));
      rank.synchronize();
      const auto* const output = reinterpret_cast<const uint16_t*>(rank.tensor(1));
      for (size_t i = 0; i < kCount; ++i)
        if (output[i] != 0x4040) return "wrong";
    }
    check(sum(number == 0 ? &lossless : nullptr));
    rank.synchronize();
    char text[512] = "";
    (void)verbena_ops_get_error(rank.ops(), text, sizeof(text));
    return text;
  });
  EXPECT_THAT(said, HasSubstr("rank 0: ops: ranks 0 and 1 of the team make different calls"));
  EXPECT_THAT(said, HasSubstr("rank 1: ops: ranks 1 and 0 of the team make different calls"));
  EXPECT_THAT(said, HasSubstr("algorithm 32"));
  EXPECT_THAT(said, testing::Not(HasSubstr("wrong")));
}

// The calls whose messages NICs carry, on bfloat16 elements that each rank draws in each step. Messages of a
// step are small integers, whose sums are exact and which the lossless codec shortens, or (not in sums)
// random bits, which it sends as they are: a slot holds longer and shorter messages in turn.
class EveryCall {
 public:
  EveryCall(Rank& rank, uint32_t number, uint32_t ranks)
      : rank_(rank), number_(number), ranks_(ranks), input_(ranks * kElements), output_(input_.size()) {}

  // Returns what is wrong.
  std::string check(const verbena_ops_choice* choice, uint32_t step) {
    void *const in = input_.data(), *const out = output_.data();
    verbena_ops* const ops = rank_.ops();
    const uint32_t root = step % ranks_;
    const auto sum_of = [&](size_t i) {
      int sum = 0;
      for (uint32_t rank = 0; rank < ranks_; ++rank) sum += draw_integer(rank, step, i);
      return as_bfloat16(sum);
    };
    const auto run = [&](const char* name, bool is_sum, size_t count, auto&& call, auto&& expect) {
      for (size_t i = 0; i < input_.size(); ++i)
        input_[i] = is_sum ? as_bfloat16(draw_integer(number_, step, i)) : draw_bits(number_, step, i);
      if (call() != VERBENA_SUCCESS) return std::string(name) + ": " + verbena_last_error() + "; ";
      rank_.synchronize();
      char text[512] = "";
      if (verbena_ops_get_error(ops, text, sizeof(text)) != VERBENA_SUCCESS) return std::string(text);
      for (size_t i = 0; i < count; ++i)
        if (output_[i] != expect(i))
          return std::string(name) + ": element " + std::to_string(i) + " of step " + std::to_string(step) +
                 " is wrong; ";
      return std::string();
    };
    constexpr size_t kBytes = kElements * sizeof(uint16_t);
    std::string wrong = run(
        "all-reduce", true, kElements,
        [&] {
          return verbena_ops_all_reduce(ops, in, out, kElements, VERBENA_OPS_BFLOAT16, VERBENA_OPS_SUM,
                                        choice, nullptr);
        },
        sum_of);
    wrong += run(
        "reduce-scatter", true, kElements,
        [&] {
          return verbena_ops_reduce_scatter(ops, in, out, 1, kElements, VERBENA_OPS_BFLOAT16, VERBENA_OPS_SUM,
                                            choice, nullptr);
        },
        [&](size_t i) { return sum_of(number_ * kElements + i); });
    wrong += run(
        "all-gather", false, ranks_ * kElements,
        [&] { return verbena_ops_all_gather(ops, in, out, 1, kBytes, choice, nullptr); },
        [&](size_t i) { return draw_bits(static_cast<uint32_t>(i / kElements), step, i % kElements); });
    wrong += run(
        "broadcast", false, kElements,
        [&] { return verbena_ops_broadcast(ops, in, out, kBytes, root, choice, nullptr); },
        [&](size_t i) { return draw_bits(root, step, i); });
    wrong += run(
        "all-to-all", false, ranks_ * kElements,
        [&] { return verbena_ops_all_to_all(ops, in, out, kBytes, 1, 1, choice, nullptr); },
        [&](size_t i) {
          return draw_bits(static_cast<uint32_t>(i / kElements), step, number_ * kElements + i % kElements);
        });
    return wrong;
  }

 private:
  static constexpr size_t kElements = 5000;

  static uint32_t hash(uint32_t rank, uint32_t step, size_t i) {
    uint64_t bits = (uint64_t{rank} << 48 | uint64_t{step} << 32 | i) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9u;
    return static_cast<uint32_t>(bits >> 32);
  }
  static int draw_integer(uint32_t rank, uint32_t step, size_t i) {
    return static_cast<int>(hash(rank, step, i) % 81) - 40;
  }
  static uint16_t as_bfloat16(int number) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(number)) >> 16);
  }
  static uint16_t draw_bits(uint32_t rank, uint32_t step, size_t i) {
    const bool is_random = step % 3 == 1;
    return is_random ? static_cast<uint16_t>(hash(rank, step, i)) : as_bfloat16(draw_integer(rank, step, i));
  }

  Rank& rank_;
  const uint32_t number_, ranks_;
  std::vector<uint16_t> input_, output_;
};

// Two hosts of one rank: a tuning file says that encoding is faster from some size on. The library encodes
// there, and calls by either algorithm are right.
TEST(OpsAcrossHosts, LosslessFromTheMeasuredSizeOn) {
  const std::string file = testing::TempDir() + "ops_hosts_" + std::to_string(getpid()) + ".json";
  std::string entries;
  for (const char* const operation : {"all_reduce", "all_gather", "reduce_scatter"}) {
    for (const auto& [algorithm, points] : {std::pair("bulk-two-shot", "[[4096, 1, 10], [8192, 2, 20]]"),
                                            std::pair("lossless", "[[4096, 1, 12], [8192, 2, 15]]")})
      entries += std::string(entries.empty() ? "" : ", ") + R"({"operation": ")" + operation +
                 R"(", "algorithm": ")" + algorithm +
                 R"(", "gpu": "emulated GPU", "ranks": 2, "hosts": 2, "threads": 64, "chunk_bytes": 0, )" +
                 R"("points": )" + points + "}";
  }
  std::ofstream(file) << R"({"format": "verbena-tuning", "version": 1, "ops": [)" << entries << "]}";
  expect_run({0, 1}, [&](Rank& rank, uint32_t number) -> std::string {
    verbena_ops_options options{};
    options.tuning_file = file.c_str();
    if (rank.create(verbena_team_world(rank.context().handle()), options) != VERBENA_SUCCESS)
      return verbena_last_error();
    std::string wrong;
    for (const auto& [operation, bytes, algorithm] :
         {std::tuple(VERBENA_OPS_ALL_REDUCE, 4096, VERBENA_OPS_BULK_TWO_SHOT),
          std::tuple(VERBENA_OPS_ALL_REDUCE, 8192, VERBENA_OPS_LOSSLESS),
          std::tuple(VERBENA_OPS_ALL_GATHER, 8192, VERBENA_OPS_LOSSLESS),
          std::tuple(VERBENA_OPS_BROADCAST, 8192, VERBENA_OPS_BULK_TWO_SHOT)}) {
      verbena_ops_choice chosen{};
      (void)verbena_ops_choose(rank.ops(), operation, bytes, &chosen);
      if (chosen.algorithm != algorithm)
        wrong += "operation " + std::to_string(operation) + " of " + std::to_string(bytes) + " bytes by " +
                 std::to_string(chosen.algorithm) + "; ";
    }
    EveryCall calls(rank, number, 2);
    const verbena_ops_choice promised{VERBENA_OPS_AUTO_BFLOAT16, 0, 0, 0};
    for (uint32_t step = 0; step < 3; ++step)
      wrong += calls.check(nullptr, step) + calls.check(&promised, step);
    return wrong;
  });
  std::remove(file.c_str());
}

// A rail fails again and again: before a put is carried out, and after it, so that it is repeated. Each
// failure takes a queue pair, so the other rail never fails. Without failover the first failure ends the
// context: they do hit.
TEST(OpsAcrossHosts, ARailThatFailsLosesNothing) {
  const base::ScopedEnvironment environment(
      {{"SOFTVERBS_DEVICES", "2"},
       {"SOFTVERBS_FAULTS",
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=9 work=done;"
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=20 work=none;"
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=30 work=done;"
        "fail rail=0 opcode=RDMA_WRITE status=RETRY_EXC nth=40 work=none"}});
  for (const verbena_ops_algorithm algorithm : {VERBENA_OPS_LOSSLESS, VERBENA_OPS_BULK_TWO_SHOT}) {
    const verbena_ops_choice choice{algorithm, 2, 64, 0};
    for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 0, 1, 1}}) {
      const auto ranks = static_cast<uint32_t>(hosts.size());
      SCOPED_TRACE(testing::Message() << "algorithm " << algorithm);
      const Body body = [&](Rank& rank, uint32_t number) -> std::string {
        if (rank.create(verbena_team_world(rank.context().handle())) != VERBENA_SUCCESS)
          return verbena_last_error();
        EveryCall calls(rank, number, ranks);
        std::string wrong;
        for (uint32_t step = 0; step < 6 && wrong.empty(); ++step) wrong = calls.check(&choice, step);
        return wrong;
      };
      expect_run(hosts, body);
      if (ranks != 2) continue;
      const base::ScopedEnvironment no_failover({{"VERBENA_FAILOVER", "0"}});
      EXPECT_THAT(run(hosts, body), HasSubstr("retries exhausted"));
    }
  }
}

// Rank 3 comes when the others have given up: all of them name it, and go on after a reset. The two blocks of
// each kernel are a cluster.
TEST(OpsAcrossHosts, NamesTheRankThatDoesNotComeAndGoesOn) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "1000"}});
  expect_run({0, 0, 1, 1}, [](Rank& rank, uint32_t number) -> std::string {
    const verbena_ops_choice two_blocks{VERBENA_OPS_BULK_TWO_SHOT, 2, 64, 0};
    rank.create_for_all();
    check(rank.all_reduce(&two_blocks));
    if (!rank.has_sum(4, 6)) return "wrong";
    if (number == 3) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    } else if (rank.all_reduce(&two_blocks) != VERBENA_SUCCESS) {
      return verbena_last_error();
    }
    rank.synchronize();
    char text[512] = "";
    const verbena_result result = verbena_ops_get_error(rank.ops(), text, sizeof(text));
    if (result != VERBENA_TIMEOUT || std::string(text).find("of rank 3") == std::string::npos)
      return std::string("said: ") + text;
    check(verbena_ops_reset(rank.ops()));
    check(rank.all_reduce(&two_blocks));
    return rank.has_sum(4, 6) ? "" : "wrong after a reset";
  });
}

// Rank 3 does not come, and rank 2, of its host, begins later than rank 0, whose counterpart it is. Ranks
// that wait for another host wait longer: rank 2 gives up first, and all name rank 3, and not the one that
// waits for it.
TEST(OpsAcrossHosts, NamesTheRankThatDoesNotComeAndNotTheOneThatWaitsForIt) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "4000"}});
  expect_run({0, 0, 1, 1}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    check(rank.all_reduce());
    if (!rank.has_sum(4, 6)) return "wrong";
    if (number == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    if (number == 3) {
      std::this_thread::sleep_for(std::chrono::seconds(7));
      return "";
    }
    check(rank.all_reduce());
    rank.synchronize();
    char text[512] = "";
    const verbena_result result = verbena_ops_get_error(rank.ops(), text, sizeof(text));
    const bool is_named = std::string(text).find("of rank 3") != std::string::npos;
    return result == VERBENA_TIMEOUT && is_named ? "" : std::string("said: ") + text;
  });
}

}  // namespace
}  // namespace verbena
