// Calls of a mixture-of-experts exchange that the tests of one host and of several make, and what must come
// of them. A function that returns text returns what is wrong, or nothing.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/moe/exchange.h"

namespace verbena::device_test {

template <typename T>
std::string check_pairs(const std::vector<MoePair<T>>& pairs) {
  std::string wrong;
  for (size_t i = 0; i < pairs.size() && wrong.empty(); ++i) {
    wrong = pairs[i].check_dispatch();
    if (wrong.empty()) wrong = pairs[i].check_combine();
    if (!wrong.empty()) wrong = "pair " + std::to_string(i) + ": " + wrong;
  }
  return wrong;
}

// A dispatch and a combine of each pair, one pair after the other.
template <typename T>
std::string run_pairs(MoeRanks<T>& ranks, uint64_t seed, std::vector<MoePair<T>>& pairs) {
  std::vector<typename MoeRanks<T>::Step> steps;
  for (size_t i = 0; i < pairs.size(); ++i) {
    steps.push_back({i, false});
    steps.push_back({i, true});
  }
  const std::string wrong = ranks.run(seed, pairs, steps);
  return wrong.empty() ? check_pairs(pairs) : wrong;
}

// The same for a drawn pair of each order.
template <typename T>
std::string run_orders(MoeRanks<T>& ranks, uint64_t seed, const std::vector<MoeOrder>& orders) {
  std::vector<MoePair<T>> pairs;
  for (const MoeOrder order : orders) pairs.push_back(ranks.draw(seed + pairs.size(), order));
  return run_pairs(ranks, seed, pairs);
}
template <typename T>
std::string run_orders(const MoeSetup& setup, uint64_t seed, const std::vector<MoeOrder>& orders) {
  MoeRanks<T> ranks(setup);
  return run_orders(ranks, seed, orders);
}

// Twelve calls and more in any order, with pairs of each order in turn: several handles are alive, and
// dispatches follow each other without a combine.
template <typename T>
std::string run_in_any_order(MoeRanks<T>& ranks, uint64_t seed, uint64_t round,
                             const std::vector<MoeOrder>& orders) {
  Random random(seed * 100 + round);
  std::vector<MoePair<T>> pairs;
  std::vector<typename MoeRanks<T>::Step> steps;
  std::vector<size_t> open;
  while (steps.size() < 12) {
    if (open.empty() || random.between(0, 1) == 0) {
      open.push_back(pairs.size());
      pairs.push_back(
          ranks.draw(seed * 1000 + round * 50 + pairs.size(), orders[pairs.size() % orders.size()]));
      steps.push_back({open.back(), false});
    } else {
      const auto at = static_cast<std::ptrdiff_t>(random.between(0, static_cast<uint32_t>(open.size()) - 1));
      steps.push_back({open[static_cast<size_t>(at)], true});
      open.erase(open.begin() + at);
    }
  }
  for (const size_t pair : open) steps.push_back({pair, true});
  const std::string wrong = ranks.run(seed + round, pairs, steps);
  return wrong.empty() ? check_pairs(pairs) : wrong;
}

// The same bits whatever the schedule is.
template <typename T>
void expect_same_bits_in_every_run(const MoeSetup& setup, MoeOrder order = MoeOrder::kReduced) {
  std::vector<MoePair<T>> first;
  for (uint64_t run = 0; run < 3; ++run) {
    MoeRanks<T> ranks(setup);
    std::vector<MoePair<T>> pairs;
    pairs.push_back(ranks.draw(5, order));
    ASSERT_EQ(ranks.run(run * 17, pairs, {{0, false}, {0, true}}), "");
    if (run == 0) first = pairs;
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
      const auto is_same = [](const MoeBytes& a, const MoeBytes& b) {
        return std::memcmp(a.data(), b.data(), a.size()) == 0;
      };
      EXPECT_TRUE(is_same(pairs[0].handle(rank), first[0].handle(rank)));
      EXPECT_TRUE(is_same(pairs[0].output(rank), first[0].output(rank)));
      EXPECT_TRUE(is_same(pairs[0].combined(rank), first[0].combined(rank)));
    }
  }
}

// Entries that no call needs are renewed before the number of their call, of which they have the lowest bits,
// comes again.
template <typename T>
void expect_entries_are_renewed(const MoeSetup& setup) {
  const uint32_t period = device::kMoeCopies * (setup.max_tokens + 1);
  static_assert(device::kMoeCopies * (device::kMoeMaxTokens + 1) < 1U << (device::MoeEntry::kTagBits - 1));
  MoeRanks<T> ranks(setup);
  std::vector<MoePair<T>> pairs = {ranks.draw(1, MoeOrder::kReduced)};
  for (uint32_t rank = 0; rank < setup.ranks; ++rank) pairs[0].set_tokens(rank, 0);
  ASSERT_EQ(ranks.run(1, pairs, std::vector<typename MoeRanks<T>::Step>(period, {0, false})), "");
  EXPECT_EQ(ranks.find_old_entries(period), "");
}

// A rank that has failed says who was late with a packet.
template <typename T>
void expect_named(MoeRanks<T>& ranks, uint32_t rank, uint32_t late) {
  const uint64_t failure = *ranks.workspace(rank).context.failure;
  EXPECT_EQ(static_cast<SymmWait>(failure & 0xff), SymmWait::kPacket) << "rank " << rank;
  EXPECT_EQ(failure >> kSymmFailurePeer & kSymmNobody, late) << "rank " << rank;
}

}  // namespace verbena::device_test
