// A set of address ranges, which may overlap. Finds a range that contains a given range in O(log n). A treap,
// sorted by the starts of the ranges; each node has the largest end in its subtree. The tree does not own its
// nodes, and does not allocate or lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace verbena::verbs {

// [begin, end), not empty. Must not change while it is in a tree.
struct Interval {
  uintptr_t begin = 0, end = 0;

  bool covers(const Interval& other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const Interval&) const = default;
};

// Derive from it. A node must not move while it is in a tree.
struct IntervalNode {
  Interval interval;

 private:
  friend class IntervalTree;
  uintptr_t furthest_end_ = 0;  // of this node and its subtree
  uint64_t priority_ = 0;       // a heap: highest on top
  IntervalNode* left_ = nullptr;
  IntervalNode* right_ = nullptr;
};

class IntervalTree {
 public:
  void insert(IntervalNode* node) {
    node->left_ = node->right_ = nullptr;
    node->priority_ = draw_priority();
    update(node);
    auto [before, after] = split(root_, node);
    root_ = join(join(before, node), after);
  }

  // `node` is in this tree.
  void remove(IntervalNode* node) { root_ = remove_below(root_, node); }

  // Among the nodes that cover `interval` and for which `accepts` returns true, returns the node that begins
  // first, or null. Each rejected node costs at most one more descent.
  template <typename Accepts>
  IntervalNode* find_covering(const Interval& interval, Accepts&& accepts) const {
    return find_below(root_, interval, accepts);
  }

 private:
  // Ranges with the same start are ordered by the addresses of their nodes.
  static bool is_before(const IntervalNode* left, const IntervalNode* right) {
    if (left->interval.begin != right->interval.begin) return left->interval.begin < right->interval.begin;
    return std::less<>()(left, right);
  }

  static void update(IntervalNode* node) {
    node->furthest_end_ = node->interval.end;
    for (const IntervalNode* child : {node->left_, node->right_}) {
      if (child != nullptr) node->furthest_end_ = std::max(node->furthest_end_, child->furthest_end_);
    }
  }

  // Splits a subtree into the nodes before `pivot` and the other nodes.
  static std::pair<IntervalNode*, IntervalNode*> split(IntervalNode* node, const IntervalNode* pivot) {
    if (node == nullptr) return {nullptr, nullptr};
    const bool stays_left = is_before(node, pivot);
    IntervalNode*& child = stays_left ? node->right_ : node->left_;
    auto [before, after] = split(child, pivot);
    child = stays_left ? before : after;
    update(node);
    return stays_left ? std::pair(node, after) : std::pair(before, node);
  }

  // All nodes of `left` must be before all nodes of `right`.
  static IntervalNode* join(IntervalNode* left, IntervalNode* right) {
    if (left == nullptr || right == nullptr) return left == nullptr ? right : left;
    const bool is_left_top = left->priority_ > right->priority_;
    IntervalNode* top = is_left_top ? left : right;
    (is_left_top ? top->right_ : top->left_) =
        is_left_top ? join(left->right_, right) : join(left, right->left_);
    update(top);
    return top;
  }

  static IntervalNode* remove_below(IntervalNode* top, const IntervalNode* node) {
    if (top == node) return join(top->left_, top->right_);
    IntervalNode*& child = is_before(node, top) ? top->left_ : top->right_;
    child = remove_below(child, node);
    update(top);
    return top;
  }

  // If `top` begins early enough, so do all nodes to its left. Among them, a node covers the interval if its
  // end is large enough.
  template <typename Accepts>
  static IntervalNode* find_below(IntervalNode* top, const Interval& interval, Accepts& accepts) {
    if (top == nullptr || top->furthest_end_ < interval.end) return nullptr;
    if (IntervalNode* found = find_below(top->left_, interval, accepts)) return found;
    if (top->interval.begin > interval.begin) return nullptr;
    if (top->interval.end >= interval.end && accepts(*top)) return top;
    return find_below(top->right_, interval, accepts);
  }

  // xorshift64. It keeps the tree balanced, and is the same in every run.
  uint64_t draw_priority() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_;
  }

  IntervalNode* root_ = nullptr;
  uint64_t random_ = 0x9e3779b97f4a7c15;
};

}  // namespace verbena::verbs
