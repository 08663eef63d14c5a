// Every outcome that the C++ memory model leaves to one thread that reads what one other thread writes, tried
// one after the other: no threads, no luck. The writer runs first and each of its stores is kept; then the
// reader runs again and again, and each of its loads returns one of the stores that it may still return. As
// the reader writes nothing, these are all interleavings, and what a machine that reorders adds to them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

namespace verbena::tests {

// Stores of one place are numbered from 0, its initial value. A view: the oldest store of each place that a
// thread may still read.
using View = std::vector<size_t>;

class RelaxedReads {
 public:
  static RelaxedReads& instance() {
    static RelaxedReads reads;
    return reads;
  }

  // Runs `write` once, then `read` for every choice of what its loads return.
  void explore(const std::function<void()>& write, const std::function<void()>& read) {
    is_writing_ = true;
    write();
    is_writing_ = false;
    choices_.clear();
    do {
      next_choice_ = 0;
      view_.assign(written_.size(), 0);
      read();
    } while (advance());
  }

  // --- By the places.
  size_t add_place() {
    written_.push_back(0);
    return written_.size() - 1;
  }
  // The view that an acquire of this store takes over.
  View note_store(size_t place, std::memory_order order) {
    ++written_[place];
    View view(written_.size(), 0);
    if (order == std::memory_order_release) view = written_;
    view[place] = written_[place];
    return view;
  }
  // Which store a load returns.
  size_t choose_store(size_t place, std::memory_order order, const std::vector<View>& views) {
    if (is_writing_) return written_[place];
    const size_t oldest = view_[place];
    const size_t chosen = oldest + choose(views.size() - oldest);
    view_[place] = chosen;
    if (order == std::memory_order_acquire) {
      const View& taken = views[chosen];
      for (size_t p = 0; p < taken.size(); ++p) view_[p] = std::max(view_[p], taken[p]);
    }
    return chosen;
  }

 private:
  struct Choice {
    size_t taken, of;
  };

  size_t choose(size_t of) {
    if (next_choice_ == choices_.size()) choices_.push_back({0, of});
    return choices_[next_choice_++].taken;
  }
  // Depth first: the last choice that has another way takes it. False: there is none left.
  bool advance() {
    while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().of) choices_.pop_back();
    if (choices_.empty()) return false;
    ++choices_.back().taken;
    return true;
  }

  bool is_writing_ = true;
  View written_;  // the writer's: each place's last store
  View view_;     // the reader's
  std::vector<Choice> choices_;
  size_t next_choice_ = 0;
};

// In place of std::atomic; in explore() and before it, on one thread.
template <typename T>
class RelaxedAtomic {
 public:
  explicit RelaxedAtomic(T value) : place_(reads().add_place()), values_{value}, views_{View{}} {}
  void store(T value, std::memory_order order) {
    values_.push_back(value);
    views_.push_back(reads().note_store(place_, order));
  }
  T load(std::memory_order order) const { return values_[reads().choose_store(place_, order, views_)]; }

 private:
  static RelaxedReads& reads() { return RelaxedReads::instance(); }

  const size_t place_;
  std::vector<T> values_;
  std::vector<View> views_;
};

}  // namespace verbena::tests
