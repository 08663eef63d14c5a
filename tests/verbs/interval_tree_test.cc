#include "verbs/interval_tree.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace verbena::verbs {
namespace {

const auto kAny = [](const IntervalNode&) { return true; };

TEST(IntervalTreeTest, CoversTouchesOverlaps) {
  IntervalNode node;
  node.interval = {100, 200};
  IntervalTree tree;
  EXPECT_EQ(tree.find_covering({100, 200}, kAny), nullptr);
  tree.insert(&node);
  for (const Interval& inside : {Interval{100, 200}, {100, 101}, {199, 200}, {150, 160}}) {
    EXPECT_EQ(tree.find_covering(inside, kAny), &node) << inside.begin << ' ' << inside.end;
  }
  for (const Interval& outside : {Interval{99, 200}, {100, 201}, {50, 100}, {200, 210}, {0, 1000}}) {
    EXPECT_EQ(tree.find_covering(outside, kAny), nullptr) << outside.begin << ' ' << outside.end;
  }
  tree.remove(&node);
  EXPECT_EQ(tree.find_covering({100, 200}, kAny), nullptr);
}

// Every answer is compared with one that looks at all ranges.
TEST(IntervalTreeTest, AgreesWithALookAtAll) {
  std::mt19937 random(7);
  const auto draw = [&](uintptr_t below) { return static_cast<uintptr_t>(random() % below); };
  const auto draw_interval = [&] {
    const uintptr_t begin = draw(200);
    return Interval{begin, begin + 1 + draw(60)};
  };
  std::vector<std::unique_ptr<IntervalNode>> nodes;
  IntervalTree tree;
  for (int step = 0; step < 20'000; ++step) {
    if (nodes.empty() || draw(100) < (step % 2000 < 1000 ? 60 : 40)) {
      nodes.push_back(std::make_unique<IntervalNode>());
      nodes.back()->interval = draw_interval();
      tree.insert(nodes.back().get());
    } else {
      std::swap(nodes[draw(nodes.size())], nodes.back());
      tree.remove(nodes.back().get());
      nodes.pop_back();
    }
    const Interval wanted = draw_interval();
    const uintptr_t refused = draw(4);
    const auto accepts = [&](const IntervalNode& node) { return node.interval.begin % 4 != refused; };
    const bool exists = std::ranges::any_of(
        nodes, [&](const auto& node) { return node->interval.covers(wanted) && accepts(*node); });
    const IntervalNode* found = tree.find_covering(wanted, accepts);
    ASSERT_EQ(found != nullptr, exists) << step;
    ASSERT_TRUE(found == nullptr || (found->interval.covers(wanted) && accepts(*found))) << step;
  }
}

// In the worst order for a tree that is not balanced. How much of the stack lies above a look-up's answer
// tells how deep it stood.
TEST(IntervalTreeTest, StaysFlat) {
  constexpr uintptr_t kCount = 1 << 16, kMaxStackBytes = 64 << 10;
  std::vector<IntervalNode> nodes(kCount);
  IntervalTree tree;
  for (uintptr_t i = 0; i < kCount; ++i) {
    nodes[i].interval = {i * 16, i * 16 + 8};
    tree.insert(&nodes[i]);
  }
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  uintptr_t deepest = here;
  int looked = 0;
  for (uintptr_t i = 0; i < kCount; ++i) {
    const auto note = [&](const IntervalNode&) {
      ++looked;
      deepest = std::min(deepest, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
      return true;
    };
    ASSERT_EQ(tree.find_covering({i * 16 + 2, i * 16 + 4}, note), &nodes[i]);
    ASSERT_EQ(tree.find_covering({i * 16 + 4, i * 16 + 12}, note), nullptr);
  }
  EXPECT_EQ(looked, kCount) << "those that cover are looked at, no others";
  EXPECT_LT(here - deepest, kMaxStackBytes);
}

}  // namespace
}  // namespace verbena::verbs
