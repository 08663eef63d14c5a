// Events in the order of their time, those of one time in the order in which they were added. A ring of
// buckets of 32 ns for the next milliseconds, a heap for what is farther.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <queue>
#include <vector>

namespace verbena::protocol::datagram::sim {

struct Event {
  int64_t at_ns;
  uint32_t kind_and_place;  // the kind in the top 4 bits
  uint32_t payload;
};

class EventQueue {
 public:
  EventQueue() : heads_(kBuckets, kNone), filled_(kBuckets / 64, 0) {}

  void add(const Event& event) {
    ++count_;
    if (event.at_ns - begin_ns_ >= kSpanNs) {
      far_.push({event, number_++});
      return;
    }
    put(event);
  }
  bool is_empty() const { return count_ == 0; }
  uint64_t count() const { return count_; }

  // Of one that is not empty.
  Event take() {
    --count_;
    while (next_ == ready_.size()) open_next();
    return ready_[next_++].event;
  }
  // Now, or later than now: nothing comes before it any more.
  int64_t begin_ns() const { return begin_ns_; }

 private:
  static constexpr int64_t kBucketNs = 32;
  static constexpr uint32_t kBuckets = 1 << 17, kNone = UINT32_MAX;
  static constexpr int64_t kSpanNs = kBucketNs * (kBuckets - 64);

  struct Node {
    Event event;
    uint32_t next;
  };
  struct Numbered {
    Event event;
    uint64_t number;
    bool operator<(const Numbered& other) const {
      return event.at_ns != other.event.at_ns ? event.at_ns < other.event.at_ns : number < other.number;
    }
  };
  struct Later {
    bool operator()(const Numbered& a, const Numbered& b) const { return b < a; }
  };

  void put(const Event& event) {
    const int64_t bucket = std::max(event.at_ns, begin_ns_) / kBucketNs;
    if (bucket == open_) {  // of the bucket that is being taken from
      const Numbered added{event, number_++};
      ready_.insert(std::upper_bound(ready_.begin() + static_cast<int64_t>(next_), ready_.end(), added),
                    added);
      return;
    }
    uint32_t node = free_;
    if (node == kNone) {
      node = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({});
    } else {
      free_ = nodes_[node].next;
    }
    const auto at = static_cast<uint32_t>(bucket % kBuckets);
    nodes_[node] = {event, heads_[at]};
    heads_[at] = node;
    filled_[at / 64] |= uint64_t{1} << at % 64;
  }
  // The next bucket that has events; those of the heap that have come near go to theirs.
  void open_next() {
    ready_.clear();
    next_ = 0;
    int64_t bucket = find_next();
    if (!far_.empty()) {
      const int64_t far = far_.top().event.at_ns / kBucketNs;
      if (bucket < 0 || far < bucket) bucket = far;
    }
    begin_ns_ = bucket * kBucketNs;
    open_ = -1;
    while (!far_.empty() && far_.top().event.at_ns - begin_ns_ < kSpanNs) {
      put(far_.top().event);
      far_.pop();
    }
    open_ = bucket;
    const auto at = static_cast<uint32_t>(bucket % kBuckets);
    // The newest is the head: from the back they are in the order of adding.
    for (uint32_t node = heads_[at]; node != kNone;) {
      ready_.push_back({nodes_[node].event, 0});
      const uint32_t next = nodes_[node].next;
      nodes_[node].next = free_;
      free_ = node;
      node = next;
    }
    heads_[at] = kNone;
    filled_[at / 64] &= ~(uint64_t{1} << at % 64);
    std::reverse(ready_.begin(), ready_.end());
    for (Numbered& event : ready_) event.number = number_++;
    std::sort(ready_.begin(), ready_.end());
  }
  int64_t find_next() const {
    const int64_t first = begin_ns_ / kBucketNs + (open_ >= 0 ? 1 : 0);
    const auto start = static_cast<uint32_t>(first % kBuckets);
    for (uint32_t i = 0; i <= kBuckets / 64; ++i) {
      const uint32_t word = (start / 64 + i) % (kBuckets / 64);
      uint64_t bits = filled_[word];
      if (i == 0) bits &= ~uint64_t{0} << start % 64;
      if (i == kBuckets / 64) bits &= (uint64_t{1} << start % 64) - 1;
      if (bits == 0) continue;
      const uint32_t at = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      return first + (at + kBuckets - start) % kBuckets;
    }
    return -1;
  }

  std::vector<uint32_t> heads_;
  std::vector<uint64_t> filled_;
  std::vector<Node> nodes_;
  uint32_t free_ = kNone;
  std::vector<Numbered> ready_;  // of the open bucket
  size_t next_ = 0;
  int64_t begin_ns_ = 0, open_ = -1;
  std::priority_queue<Numbered, std::vector<Numbered>, Later> far_;
  uint64_t number_ = 0, count_ = 0;
};

}  // namespace verbena::protocol::datagram::sim
