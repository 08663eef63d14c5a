#include "nccl-perf/soak.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/table.h"

namespace verbena::tools::nccl {
namespace {

size_t find_bucket(double time_us) {
  if (!(time_us >= 1)) return 0;
  return std::min(static_cast<size_t>(std::ilogb(time_us)) + 1, Soak::kBuckets - 1);
}

std::string format_limit(size_t bucket) {
  return bucket + 1 == Soak::kBuckets ? "more" : "< " + std::to_string(uint64_t{1} << bucket);
}

}  // namespace

uint64_t Soak::count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

Soak summarize(const std::vector<double>& samples_us) {
  Soak soak;
  for (const double time_us : samples_us) ++soak.counts[find_bucket(time_us)];
  soak.median_us = compute_median(samples_us);
  soak.p99_us = compute_percentile(samples_us, 99);
  soak.longest_us = compute_percentile(samples_us, 100);
  return soak;
}

void merge(Soak& into, const Soak& from) {
  for (size_t bucket = 0; bucket < Soak::kBuckets; ++bucket) into.counts[bucket] += from.counts[bucket];
  into.median_us = std::max(into.median_us, from.median_us);
  into.p99_us = std::max(into.p99_us, from.p99_us);
  into.longest_us = std::max(into.longest_us, from.longest_us);
}

nlohmann::json describe(const Soak& soak) {
  return {{"counts_by_power_of_two_us", soak.counts},
          {"median_us", soak.median_us},
          {"p99_us", soak.p99_us},
          {"longest_us", soak.longest_us}};
}

Soak parse_soak(const nlohmann::json& described) {
  Soak soak;
  described.at("counts_by_power_of_two_us").get_to(soak.counts);
  described.at("median_us").get_to(soak.median_us);
  described.at("p99_us").get_to(soak.p99_us);
  described.at("longest_us").get_to(soak.longest_us);
  return soak;
}

std::string format(const Soak& soak) {
  std::string text = "# soak: " + std::to_string(soak.count()) + " iterations (of all ranks), median " +
                     format_figure(soak.median_us) + " us, p99 " + format_figure(soak.p99_us) +
                     " us, longest " + format_figure(soak.longest_us) + " us\n";
  const auto is_used = [](uint64_t count) { return count != 0; };
  const auto first = std::find_if(soak.counts.begin(), soak.counts.end(), is_used);
  const auto last = std::find_if(soak.counts.rbegin(), soak.counts.rend(), is_used).base();
  if (first == soak.counts.end()) return text;
  const Table table({{"time", "us", 14}, {"iterations", "", 12}});
  for (auto bucket = first; bucket != last; ++bucket) {
    const auto index = static_cast<size_t>(bucket - soak.counts.begin());
    text += table.format_row({format_limit(index), std::to_string(*bucket)});
  }
  return text;
}

}  // namespace verbena::tools::nccl
