#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nccl-perf/run.h"

namespace verbena::tools::nccl {

// Compares variants over several rounds: for each size the median over the rounds, and the gain of the first
// variant over each other one. Figures vary by a tenth from one process placement to another, so a single run
// says little.
class Comparison {
 public:
  void add(const std::string& variant, const Row& row);

  // One table for each operation: a row for each size, a column for each variant.
  std::string format(uint32_t ranks) const;
  nlohmann::json describe() const;

 private:
  struct Line {
    std::string operation;
    uint64_t requested_bytes = 0;
    std::map<std::string, std::vector<double>> times_us;  // by variant, one for each round
  };
  // Returns the time of the other variant divided by the time of the first: above 1 if the first is faster; 0
  // if one has no times.
  double find_gain(const Line& line, const std::string& other) const;

  std::vector<std::string> variants_;  // in order of appearance; the first is compared with the others
  std::vector<Line> lines_;            // in order of appearance
};

}  // namespace verbena::tools::nccl
