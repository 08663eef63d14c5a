// The order of what across_hosts.cuh does, chunk by chunk, over NICs that take their time; and who is named
// when a rank does not come. Small, since tests/mutation runs it for each order that it weakens;
// calls_test.cc has every size, type and shape.
#include "verbena/device/collectives/across_hosts.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/collectives/hosts.h"
#include "device/emulator/world.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::World;

// A millisecond for each step of a machine that stands still: some threads look at the clock rarely.
constexpr uint64_t kSlotBytes = 384, kTimeout_ns = 400'000'000'000;
constexpr uint32_t kThreads = 32;

struct alignas(16) Vector {
  float numbers[4];
};

// By all-reduces; by exchanges in which each rank gets all addends; by a reduce-scatter and an all-gather.
enum class By { kAllReduce, kExchange, kParts };

// A team in hosts, with a workspace for all and one for each host.
class Team {
 public:
  Team(int32_t ranks, int32_t of_host)
      : fleet_(ranks, INT32_MAX, Hosts::measure(ranks, 1, kSlotBytes)),
        hosts_(fleet_, of_host),
        inputs_(static_cast<size_t>(ranks), std::vector<Vector>(kVectors)),
        outputs_(inputs_) {
    for (int32_t rank = 0; rank < ranks; ++rank) fleet_.context(rank).timeout_ns = kTimeout_ns;
  }

  int32_t size() const { return fleet_.size(); }
  // All but `absent` sum `count` numbers, so often.
  std::string sum(uint64_t seed, uint64_t count, uint32_t calls, int32_t absent = -1,
                  By by = By::kAllReduce) {
    for (size_t rank = 0; rank < inputs_.size(); ++rank)
      for (uint64_t i = 0; i < count; ++i)
        inputs_[rank][i / 4].numbers[i % 4] = static_cast<float>(i + rank * 1000 + seed);
    World world(seed, {.stalled_steps = 4'000'000});
    uint32_t blocks = 0;
    for (int32_t rank = 0; rank < size(); ++rank) {
      if (rank == absent) continue;
      ++blocks;
      world.add_grid(static_cast<uint32_t>(rank), 1, kThreads, [=, this] {
        if (absent < 0 && (seed + static_cast<uint64_t>(rank)) % 3 == 0) device::pause(100'000);
        const SymmStatus status = by == By::kAllReduce  ? run(rank, count, calls)
                                  : by == By::kExchange ? exchange(rank, count, calls)
                                                        : sum_parts(rank, count, calls);
        require((status == SymmStatus::kDone) == (absent < 0), "the call's status");
        require(absent < 0 || status == SymmStatus::kTimedOut, "a wait ended by time");
        if (device::thread_index() == 0) hosts_.end();
      });
    }
    hosts_.serve(world, seed, blocks);
    return world.run();
  }
  // Of the last sum(), on all ranks.
  std::string find_wrong(uint64_t seed, uint64_t count) {
    for (size_t rank = 0; rank < inputs_.size(); ++rank) {
      for (uint64_t i = 0; i < count; ++i) {
        float expected = 0;
        for (size_t other = 0; other < inputs_.size(); ++other)
          expected += static_cast<float>(i + other * 1000 + seed);
        if (outputs_[rank][i / 4].numbers[i % 4] != expected)
          return "rank " + std::to_string(rank) + ": number " + std::to_string(i) + " is wrong";
      }
    }
    return "";
  }
  // The member that the team's failure word names at a rank.
  uint32_t find_late(int32_t rank) {
    const uint64_t word = *hosts_.team_workspace(rank, 1, kSlotBytes).context.failure;
    return static_cast<uint32_t>(word >> kSymmFailurePeer) & kSymmNobody;
  }

 private:
  static constexpr uint64_t kVectors = 256;

  SymmStatus run(int32_t rank, uint64_t count, uint32_t calls) {
    SymmWorkspace<> team = hosts_.team_workspace(rank, 1, kSlotBytes);
    team.context.timeout_ns += team.context.timeout_ns / 4;
    const SymmWorkspace<> host = hosts_.host_workspace(rank, 1, kSlotBytes);
    const auto r = static_cast<size_t>(rank);
    device::AcrossHosts<> all(team, host, hosts_.places(rank), 0, 1);
    for (uint32_t i = 0; i < calls; ++i)
      (void)all.all_reduce(reinterpret_cast<const char*>(inputs_[r].data()),
                           reinterpret_cast<char*>(outputs_[r].data()), count * sizeof(float),
                           device::ReduceAny{device::DataType::kFloat32, device::Reduction::kSum});
    return all.finish();
  }
  SymmStatus exchange(int32_t rank, uint64_t count, uint32_t calls) {
    const SymmWorkspace<> team = hosts_.team_workspace(rank, 1, kSlotBytes);
    const auto r = static_cast<size_t>(rank);
    device::Bulk<SymmContext, true> all(team, 0, 1);
    for (uint32_t i = 0; i < calls; ++i) {
      const device::Part part{0, count * sizeof(float)};
      const auto plan = [&](int32_t) {
        return device::ExchangeEntry{
            device::Rows::contiguous(reinterpret_cast<const char*>(inputs_[r].data())),
            device::Rows::contiguous(reinterpret_cast<char*>(outputs_[r].data())), part, part};
      };
      // The second time no rank knows the others' lengths.
      (void)all.exchange_reduce(plan, i == 0 ? part.length_bytes : device::kUnknownLength,
                                device::ReduceAs<float>{});
    }
    return all.finish();
  }

  SymmStatus sum_parts(int32_t rank, uint64_t count, uint32_t calls) {
    SymmWorkspace<> team = hosts_.team_workspace(rank, 1, kSlotBytes);
    const SymmWorkspace<> host = hosts_.host_workspace(rank, 1, kSlotBytes);
    const auto r = static_cast<size_t>(rank);
    device::AcrossHosts<> all(team, host, hosts_.places(rank), 0, 1);
    const uint64_t bytes = count * sizeof(float), part = bytes / inputs_.size() / 16 * 16 + 16;
    const auto place = [&](std::vector<Vector>& tensor, int32_t member) {
      return device::Rows::contiguous(reinterpret_cast<char*>(tensor.data()) +
                                      static_cast<uint64_t>(member) * part);
    };
    const auto cut = [&](int32_t member) {
      const uint64_t begin = static_cast<uint64_t>(member) * part;
      return device::Part{0, begin >= bytes ? 0 : std::min(part, bytes - begin)};
    };
    for (uint32_t i = 0; i < calls; ++i) {
      const auto scattered = [&](int32_t member) {
        return device::ExchangeEntry{place(inputs_[r], member), place(outputs_[r], rank), cut(member),
                                     cut(rank)};
      };
      const auto gathered = [&](int32_t member) {
        return device::ExchangeEntry{place(outputs_[r], rank), place(outputs_[r], member), cut(rank),
                                     cut(member)};
      };
      (void)all.reduce_scatter(scattered, part,
                               device::ReduceAny{device::DataType::kFloat32, device::Reduction::kSum});
      // What other threads have stored is there when a call returns.
      const uint64_t begin = static_cast<uint64_t>(rank) * part / sizeof(float);
      const uint64_t number = begin + 4 * ((device::thread_index() + 1) % kThreads);
      if (number < count && number * sizeof(float) < begin * sizeof(float) + part) {
        float sum = 0;
        for (const std::vector<Vector>& input : inputs_) sum += input[number / 4].numbers[0];
        require(device::load<device::Order::kWeak, device::Scope::kThreads>(
                    outputs_[r][number / 4].numbers) == sum,
                "another thread's sum");
      }
      (void)all.gather(gathered, part);
    }
    return all.finish();
  }

  Fleet fleet_;
  Hosts hosts_;
  std::vector<std::vector<Vector>> inputs_, outputs_;
};

// Ten chunks and more.
TEST(AcrossHosts, SlotsAreUsedAgainAndAgain) {
  for (const auto& [ranks, of_host] : std::vector<std::pair<int32_t, int32_t>>{{2, 1}, {4, 2}, {3, 1}}) {
    Team team(ranks, of_host);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      ASSERT_EQ(team.sum(seed, 800, 2), "") << ranks << " by " << of_host << ", seed " << seed;
      ASSERT_EQ(team.find_wrong(seed, 800), "") << ranks << " by " << of_host << ", seed " << seed;
    }
  }
}

TEST(AcrossHosts, ExchangesUseSlotsAgainAndAgain) {
  for (const auto& [ranks, of_host] : std::vector<std::pair<int32_t, int32_t>>{{2, 1}, {4, 2}, {3, 1}}) {
    for (const By by : {By::kExchange, By::kParts}) {
      Team team(ranks, of_host);
      for (uint64_t seed = 0; seed < 6; ++seed) {
        ASSERT_EQ(team.sum(seed, 500, 2, -1, by), "") << ranks << " by " << of_host << ", seed " << seed;
        ASSERT_EQ(team.find_wrong(seed, 500), "") << ranks << " by " << of_host << ", seed " << seed;
      }
    }
  }
}

// Of one number, which is one rank's share alone, and of many: whoever waits for whom, all say who it was.
TEST(AcrossHosts, NamesTheRankThatDoesNotCome) {
  for (const auto& [ranks, of_host] : std::vector<std::pair<int32_t, int32_t>>{{2, 1}, {4, 2}, {6, 2}}) {
    for (int32_t absent = 0; absent < ranks; ++absent) {
      for (const uint64_t count : {1, 800}) {
        Team team(ranks, of_host);
        // In turn: a thread that lags would begin to count its time late.
        ASSERT_EQ(team.sum(0, count, 1, absent), "") << ranks << " by " << of_host << ", without " << absent;
        for (int32_t rank = 0; rank < ranks; ++rank) {
          if (rank == absent) continue;
          EXPECT_EQ(team.find_late(rank), static_cast<uint32_t>(absent))
              << ranks << " by " << of_host << ", rank " << rank << ", " << count << " numbers";
        }
      }
    }
  }
}

}  // namespace
}  // namespace verbena::device_test
