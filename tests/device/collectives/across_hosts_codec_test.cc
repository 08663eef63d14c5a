// All-reduces in few bits between emulated GPUs of several hosts: the same bits on every rank, each number
// inside the bounds of its hosts' sums, any size, alignment and place, call after call.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/collectives/codec_bounds.h"
#include "device/collectives/hosts.h"
#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/rank_counts.h"
#include "device/symm/fleet.h"
#include "verbena/device/collectives/codec_float8.cuh"
#include "verbena/device/collectives/codec_integer.cuh"

namespace verbena::device_test {
namespace {

using device::DataType;
using device::Half;
using device::RoundStochastically;
using device::RoundToNearest;
using emulator::require;
using emulator::World;

constexpr uint64_t kSlotBytes = 4096 + 128;  // each half has room for a tile that is not coded
constexpr uint32_t kThreads = 64;

// Ranks with workspaces, which go on from launch to launch.
template <typename Codec>
class CodedHosts {
 public:
  CodedHosts(int32_t ranks, int32_t of_host, uint32_t blocks = 2, uint64_t slot_bytes = kSlotBytes)
      : of_host_(of_host),
        blocks_(blocks),
        slot_bytes_(slot_bytes),
        fleet_(ranks, INT32_MAX, Hosts::measure(ranks, blocks, slot_bytes)),
        hosts_(fleet_, of_host) {}

  // One launch of `calls`: the last one's sums, as all ranks have them. `offset`: numbers from a multiple of
  // 16 bytes on rank 0; on the other ranks other ones, unless it is 0.
  template <typename Rounding = RoundToNearest>
  std::vector<float> reduce(const std::vector<std::vector<float>>& addends, uint64_t offset = 0,
                            bool is_in_place = false, uint32_t calls = 1, const Rounding& rounding = {},
                            SymmStatus expected = SymmStatus::kDone) {
    const size_t count = addends[0].size();
    const auto find_begin = [&](size_t rank) {
      return kMargin + (offset == 0 ? 0 : (offset + 3 * rank) % 16);
    };
    std::vector<std::vector<Half>> inputs, outputs;
    for (size_t rank = 0; rank < addends.size(); ++rank) {
      std::vector<Half>& input = inputs.emplace_back(count + 2 * kMargin, device::narrow<Half>(kBeside));
      outputs.push_back(input);
      for (size_t i = 0; i < count; ++i) input[find_begin(rank) + i] = device::narrow<Half>(addends[rank][i]);
    }
    if (is_in_place) outputs = inputs;
    World world(++launches_, {.stalled_steps = 4'000'000});
    for (size_t rank = 0; rank < addends.size(); ++rank) {
      world.add_grid(static_cast<uint32_t>(rank), blocks_, kThreads, [&, rank] {
        if ((launches_ + rank) % 3 == 0) device::pause(100'000);
        const auto r = static_cast<int32_t>(rank);
        const SymmWorkspace<> team = hosts_.team_workspace(r, blocks_, slot_bytes_);
        const SymmWorkspace<> host = hosts_.host_workspace(r, blocks_, slot_bytes_);
        device::AcrossHosts<device::ReduceFloats> all(team, host, hosts_.places(r), device::block_index(),
                                                      blocks_);
        char* const to = reinterpret_cast<char*>(outputs[rank].data() + find_begin(rank));
        const char* const from =
            is_in_place ? to : reinterpret_cast<const char*>(inputs[rank].data() + find_begin(rank));
        for (uint32_t call = 0; call < calls; ++call)
          (void)all.template all_reduce_quantised<Codec>(from, to, count * sizeof(Half), {DataType::kFloat16},
                                                         rounding);
        require(all.finish() == expected, "the calls' status");
        if (device::thread_index() == 0) hosts_.end();
      });
    }
    hosts_.serve(world, launches_, static_cast<uint32_t>(addends.size()) * blocks_);
    EXPECT_EQ(world.run(), "");
    std::vector<float> sums;
    if (expected != SymmStatus::kDone) return sums;
    for (size_t i = 0; i < count; ++i) sums.push_back(device::widen(outputs[0][find_begin(0) + i]));
    for (size_t rank = 0; rank < addends.size(); ++rank) {
      const size_t begin = find_begin(rank);
      for (size_t i = 0; i < outputs[rank].size(); ++i) {
        const bool is_sum = i >= begin && i < begin + count;
        const bool is_right =
            is_sum ? std::memcmp(&outputs[rank][i], &outputs[0][find_begin(0) + i - begin], sizeof(Half)) == 0
                   : device::widen(outputs[rank][i]) == kBeside;
        EXPECT_TRUE(is_right) << "rank " << rank << " at " << i
                              << (is_sum ? ": other bits" : ": beside the tensor");
        if (!is_right) return sums;
      }
    }
    return sums;
  }

  // "" or the first sum that is further off than the bounds of what its hosts have sent.
  std::string check(const std::vector<std::vector<float>>& addends, const std::vector<float>& sums,
                    double slack = 1) const {
    std::vector<double> exact(sums.size()), allowed(sums.size());
    for (size_t first_rank = 0; first_rank < addends.size(); first_rank += static_cast<size_t>(of_host_)) {
      std::vector<float> host(sums.size());
      for (size_t rank = first_rank; rank < first_rank + static_cast<size_t>(of_host_); ++rank)
        for (size_t i = 0; i < host.size(); ++i)
          host[i] += device::widen(device::narrow<Half>(addends[rank][i]));
      for (size_t first = 0; first < host.size(); first += Codec::kGroup) {
        const size_t end = std::min(host.size(), first + Codec::kGroup);
        const Bound<Codec> bound(
            {host.begin() + static_cast<int64_t>(first), host.begin() + static_cast<int64_t>(end)});
        for (size_t i = first; i < end; ++i) {
          exact[i] += host[i];
          allowed[i] += bound.of(host[i], slack) + std::abs(host[i]) * 0x1p-20;
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const double all = allowed[i] + (std::abs(exact[i]) + allowed[i]) * 0x1p-11 + 0x1p-24;
      if (!(std::abs(sums[i] - exact[i]) <= all))
        return "sum " + std::to_string(i) + ": " + std::to_string(exact[i]) + " became " +
               std::to_string(sums[i]) + ", allowed is " + std::to_string(all);
    }
    return "";
  }

 private:
  static constexpr uint64_t kMargin = 64;
  static constexpr float kBeside = 77;

  const int32_t of_host_;
  const uint32_t blocks_;
  const uint64_t slot_bytes_;
  Fleet fleet_;
  Hosts hosts_;
  uint64_t launches_ = 0;
};

template <typename Codec>
class AcrossHostsCodec : public testing::Test {};
using Codecs = testing::Types<device::Int8, device::Int6, device::Int4, device::Float8, device::MxFloat8>;
TYPED_TEST_SUITE(AcrossHostsCodec, Codecs);

TYPED_TEST(AcrossHostsCodec, EverySizeAlignmentAndPlace) {
  CodedHosts<TypeParam> ranks(4, 2);
  Random random(1);
  for (const size_t count : {1, 7, 31, 1023, 1024, 1025, 5000, 9001}) {
    if (emulator::kSanitizer && count > 5000) continue;
    auto addends = draw_addends(random, 4, count);
    // Far from zero: what lies behind the end would be seen.
    for (auto& addend : addends)
      for (float& number : addend) number += 100;
    for (const uint64_t offset : {0, 1, 5}) {
      if (emulator::kSanitizer && (count + offset) % 2 != 0) continue;
      const std::vector<float> sums = ranks.reduce(addends, offset, offset == 5);
      ASSERT_EQ(sums.size(), count);
      EXPECT_EQ(ranks.check(addends, sums), "") << count << " at " << offset;
    }
  }
}

TYPED_TEST(AcrossHostsCodec, HostsOfRanks) {
  Random random(2);
  std::vector<std::pair<int32_t, int32_t>> hosts = {{2, 1}, {3, 1}};
  for (const int32_t ranks : list_rank_counts())
    for (const int32_t of_host : {1, 2, 4, 8})
      if (of_host < ranks && ranks % of_host == 0 && ranks / of_host <= 8 && (of_host > 1 || ranks < 8))
        hosts.emplace_back(ranks, of_host);
  for (const auto& [ranks, of_host] : hosts) {
    CodedHosts<TypeParam> all(ranks, of_host, 1);
    const auto addends = draw_addends(random, ranks, 7000);
    const auto offset = static_cast<uint64_t>(ranks) % 4;
    EXPECT_EQ(all.check(addends, all.reduce(addends, offset, false, 2)), "") << ranks << " by " << of_host;
  }
}

// An infinity of one host is one of the sum; those of both signs, and NaN, are NaN.
TYPED_TEST(AcrossHostsCodec, CarriesWhatIsNotFinite) {
  CodedHosts<TypeParam> ranks(2, 1);
  std::vector<std::vector<float>> addends(2, std::vector<float>(3000, 0.5F));
  addends[0][700] = addends[1][1700] = kInfinity;
  addends[0][1900] = -kInfinity;
  addends[0][2100] = kInfinity, addends[1][2100] = -kInfinity;
  addends[1][2999] = std::nanf("");
  const std::vector<float> sums = ranks.reduce(addends);
  const bool has_infinities = !std::is_same_v<TypeParam, device::MxFloat8>;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (i == 2100 || i == 2999 || (!has_infinities && (i == 700 || i == 1700 || i == 1900))) {
      EXPECT_TRUE(std::isnan(sums[i])) << i << ": " << sums[i];
    } else if (i == 700 || i == 1700 || i == 1900) {
      EXPECT_EQ(sums[i], i == 1900 ? -kInfinity : kInfinity) << i;
    } else {
      ASSERT_LT(std::abs(sums[i] - 1), 0.11) << i;
    }
  }
}

TEST(AcrossHostsByChance, IsRightOnAverage) {
  CodedHosts<device::Int4> ranks(2, 1);
  expect_right_on_average(
      [&](const auto& addends) { return ranks.reduce(addends, 0, false, 1, RoundStochastically(9)); },
      [&](const auto& addends, const auto& sums) { return ranks.check(addends, sums, 2); });
}

TEST(AcrossHostsSlots, TooSmallForATileAreRefused) {
  CodedHosts<device::Int4> ranks(2, 1, 1, 896);
  ranks.reduce(std::vector<std::vector<float>>(2, std::vector<float>(100, 1.0F)), 0, false, 1, {},
               SymmStatus::kInvalid);
}

}  // namespace
}  // namespace verbena::device_test
