#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/result.h"
#include "nccl-perf/run.h"

namespace verbena::tools::nccl {

// What is stored of the rows: a table an operation, and of several rounds the medians.
class ResultTables {
 public:
  void add(const std::string& variant, const Row& row);
  std::vector<ResultTable> list(uint32_t ranks) const;

 private:
  struct Line {
    std::string variant;
    Row row;                       // the last one; wrong elements of all
    std::vector<double> times_us;  // of each round
    std::vector<double> p99_us;
  };
  std::map<std::string, std::vector<Line>> lines_;  // by operation
  std::vector<std::string> operations_;             // in order of appearance
};

}  // namespace verbena::tools::nccl
