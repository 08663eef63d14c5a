#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace verbena::tools::nccl {

// The durations of the iterations of one operation and size, on one rank or on all together.
struct Soak {
  static constexpr size_t kBuckets =
      // Bucket b counts times below 2^b us that no earlier bucket counts; the last bucket counts the rest.
      32;

  std::array<uint64_t, kBuckets> counts{};
  double median_us = 0, p99_us = 0, longest_us = 0;

  bool is_empty() const { return count() == 0; }
  uint64_t count() const;
};

Soak summarize(const std::vector<double>& samples_us);
// Adds the counts; keeps the longer times.
void merge(Soak& into, const Soak& from);
nlohmann::json describe(const Soak& soak);
Soak parse_soak(const nlohmann::json& described);
// A line with the times, then one line for each bucket from the first to the last that is not empty.
std::string format(const Soak& soak);

}  // namespace verbena::tools::nccl
