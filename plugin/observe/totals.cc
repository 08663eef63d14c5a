#include "observe/totals.h"

namespace verbena::observe {

int64_t find_quantile_ns(const PathTotals& totals, double share) {
  uint64_t all = 0, seen = 0;
  for (const uint64_t count : totals.latency) all += count;
  for (size_t b = 0; b < kBuckets; ++b) {
    seen += totals.latency[b];
    if (all != 0 && static_cast<double>(seen) >= share * static_cast<double>(all)) return bucket_limit_ns(b);
  }
  return 0;
}

PathTotals Totals::sum(Direction direction, Path path) const {
  PathTotals all;
  for (const auto& [key, from] : messages) {
    if (key.rail.end.direction != direction || key.path != path) continue;
    all.messages += from.messages;
    all.bytes += from.bytes;
    for (size_t b = 0; b < kBuckets; ++b) all.latency[b] += from.latency[b];
    all.latency_sum_ns += from.latency_sum_ns;
  }
  return all;
}

void Totals::add(const Totals& other) {
  for (const auto& [key, from] : other.messages) {
    PathTotals& to = messages[key];
    to.messages += from.messages;
    to.bytes += from.bytes;
    for (size_t b = 0; b < kBuckets; ++b) to.latency[b] += from.latency[b];
    to.latency_sum_ns += from.latency_sum_ns;
  }
  for (const auto& [key, from] : other.chunks) {
    chunks[key].chunks += from.chunks;
    chunks[key].bytes += from.bytes;
  }
  for (const auto& [key, from] : other.rails) {
    rails[key].failures += from.failures;
    rails[key].revivals += from.revivals;
  }
  for (const auto& [key, from] : other.ends) {
    EndTotals& to = ends[key];
    to.stalls += from.stalls;
    to.replayed_chunks += from.replayed_chunks;
    to.failures += from.failures;
    to.open_requests += from.open_requests;
    to.connections += from.connections;
  }
}

}  // namespace verbena::observe
