// Numbers that one thread writes and any thread reads: plain loads and stores, no locked instruction. The
// writer holds the connection's progress token, so there is one writer at a time. Each number is consistent
// in itself, but several numbers together need not be: a reader may see a message counted before its bytes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace verbena::observe {

class Counter {
 public:
  void add(uint64_t n) { value_.store(read() + n, std::memory_order_relaxed); }
  uint64_t read() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Latency buckets by powers of two, from 1 us to 69 s: bucket b counts latencies of at most 2^(kFirstBits +
// b) ns that no earlier bucket counts; the last bucket counts all others.
inline constexpr uint32_t kFirstBits = 10;
inline constexpr size_t kBuckets = 28;

constexpr size_t find_bucket(int64_t latency_ns) {
  if (latency_ns <= int64_t{1} << kFirstBits) return 0;
  const auto bits = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(latency_ns) - 1));
  return std::min(bits - kFirstBits, kBuckets - 1);
}
constexpr int64_t bucket_limit_ns(size_t bucket) {
  return int64_t{1} << (kFirstBits + bucket);
}

struct Histogram {
  Counter sum_ns;
  std::array<Counter, kBuckets> counts;

  void add(int64_t latency_ns) {
    counts[find_bucket(latency_ns)].add(1);
    sum_ns.add(static_cast<uint64_t>(std::max<int64_t>(latency_ns, 0)));
  }
};

}  // namespace verbena::observe
