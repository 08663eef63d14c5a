#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "nccl-perf/run.h"

namespace verbena::tools::nccl {

// The figures of several rounds side by side: for each size the median over the rounds, and what the first
// variant gains over each other one. Where a process happens to run moves its figures by a tenth, so that
// single runs say little.
class Comparison {
 public:
  void add(const std::string& variant, const Row& row);

  // A table an operation: sizes down, variants across.
  std::string format(uint32_t ranks) const;
  nlohmann::json describe() const;

 private:
  struct Line {
    std::string operation;
    uint64_t requested_bytes = 0;
    std::map<std::string, std::vector<double>> times_us;  // by variant, one a round
  };
  // Times of the other over the first: above 1 the first is the faster one. 0 if one of them has none.
  double find_gain(const Line& line, const std::string& other) const;

  std::vector<std::string> variants_;  // in order of appearance; the first is compared with the others
  std::vector<Line> lines_;            // in order of appearance
};

}  // namespace verbena::tools::nccl
