#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace verbena::tools::nccl {

// How long the iterations of one operation and size took, on one rank or on all of them together.
struct Soak {
  static constexpr size_t kBuckets =
      32;  // bucket b: below 2^b us and not in the one before; the last: the rest

  std::array<uint64_t, kBuckets> counts{};
  double median_us = 0, p99_us = 0, longest_us = 0;

  bool is_empty() const { return count() == 0; }
  uint64_t count() const;
};

Soak summarize(const std::vector<double>& samples_us);
// Counts add up; of the times the longer ones stay.
void merge(Soak& into, const Soak& from);
nlohmann::json describe(const Soak& soak);
Soak parse_soak(const nlohmann::json& described);
// A line with the times, and one for every bucket between the first and the last that is not empty.
std::string format(const Soak& soak);

}  // namespace verbena::tools::nccl
