// Explores all states of a model, the nearest first, and finds the shortest way to what is wrong. States are
// known again by 128 bits of a hash.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace verbena::device_test {

struct StateKey {
  uint64_t a = 0x9e37'79b9'7f4a'7c15, b = 0xc2b2'ae3d'27d4'eb4f;
  void add(uint64_t value) {
    a = (a ^ value) * 0xff51'afd7'ed55'8ccd;
    a ^= a >> 29;
    b = (b + value) * 0x9fb2'1c65'1e98'df25;
    b ^= b >> 32;
  }
  bool operator==(const StateKey&) const = default;
};
struct HashKey {
  size_t operator()(const StateKey& key) const { return key.a; }
};

// A step is a number, which Model::describe(step) translates. Model::follow(state, go_on) calls
// go_on(next, step) for each possible step, and returns what is wrong with a step or with the state, or "".
template <typename Model>
class Exploration {
 public:
  using State = typename Model::State;

  explicit Exploration(const Model& model) : model_(model) {}

  // Returns what is wrong and the steps that lead to it, the last one first, or "".
  std::string run(const State& begin, size_t max_states = 20'000'000) {
    add(begin, 0, 0);
    for (uint32_t at = 0; !open_.empty(); ++at) {
      const State state = std::move(open_.front());
      open_.pop_front();
      const std::string wrong =
          model_.follow(state, [&](State next, uint32_t step) { add(std::move(next), at, step); });
      if (!wrong.empty()) return wrong + trace(at);
      if (nodes_.size() > max_states) return "too many states";
    }
    return "";
  }
  size_t count_states() const { return nodes_.size(); }

 private:
  struct Node {
    uint32_t parent, step;
  };
  void add(State state, uint32_t parent, uint32_t step) {
    if (!seen_.insert(state.key()).second) return;
    nodes_.push_back({parent, step});
    open_.push_back(std::move(state));
  }
  std::string trace(uint32_t at) const {
    std::string text;
    for (; at != 0; at = nodes_[at].parent) text += "\n  " + model_.describe(nodes_[at].step);
    return text;
  }

  const Model& model_;
  std::deque<State> open_;
  std::vector<Node> nodes_;
  std::unordered_set<StateKey, HashKey> seen_;
};

}  // namespace verbena::device_test
