#include "verbena-perf/crossover.h"

#include <algorithm>

namespace verbena::tools::perf {
namespace {

constexpr double kAsGood = 1.05;
constexpr int64_t kMinStripeBytes = 4096;  // of VERBENA_MIN_STRIPE_BYTES

struct Pair {
  uint64_t bytes;
  double first_us;
  double second_us;
  bool first_is_as_good() const { return first_us <= second_us * kAsGood; }
};

std::vector<Pair> join(const std::vector<tuner::Point>& first, const std::vector<tuner::Point>& second) {
  std::vector<Pair> pairs;
  for (const tuner::Point& point : first) {
    const auto same = std::find_if(second.begin(), second.end(),
                                   [&](const tuner::Point& other) { return other.bytes == point.bytes; });
    if (same != second.end()) pairs.push_back({point.bytes, point.microseconds, same->microseconds});
  }
  return pairs;
}

}  // namespace

int64_t find_unpack_threshold(const std::vector<tuner::Point>& staged,
                              const std::vector<tuner::Point>& direct) {
  int64_t threshold_bytes = 0;
  for (const Pair& pair : join(staged, direct)) {
    if (!pair.first_is_as_good()) break;
    threshold_bytes = static_cast<int64_t>(pair.bytes);
  }
  return threshold_bytes;
}

int64_t find_min_stripe(const std::vector<tuner::Point>& cut, const std::vector<tuner::Point>& whole) {
  const std::vector<Pair> pairs = join(cut, whole);
  if (pairs.empty()) return kMinStripeBytes;
  int64_t stripe_bytes = static_cast<int64_t>(pairs.back().bytes);
  for (auto pair = pairs.rbegin(); pair != pairs.rend() && pair->first_is_as_good(); ++pair) {
    stripe_bytes = static_cast<int64_t>(pair->bytes / 2);
  }
  return std::max(stripe_bytes, kMinStripeBytes);
}

}  // namespace verbena::tools::perf
