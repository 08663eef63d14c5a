// Joins the figures of the ranks: the fastest rank's time of each sample, then the median of the samples.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"

namespace verbena::tools::symm {

class Figures {
 public:
  // Takes a line of a rank: "figure NAME SAMPLES" or "checked WRONG WHAT". False if it is neither.
  bool take(const std::string& line);

  uint64_t wrong() const { return wrong_; }
  // Returns a line with "ok" or "WRONG (count)" for each check that all ranks have finished since the last
  // call.
  std::string take_finished_checks(int ranks);
  bool has(const std::string& name) const { return samples_.count(name) != 0; }
  double median(const std::string& name) const;
  double p99(const std::string& name) const;
  // Returns the best of the figures PREFIX/N, and its N.
  struct Best {
    double value = 0;
    std::string which;
  };
  Best best(const std::string& prefix) const;

  std::string format_table(unsigned ranks) const;
  const std::map<std::string, std::vector<double>>& samples() const { return samples_; }

 private:
  std::map<std::string, std::vector<double>> samples_;
  struct Check {
    std::string what;
    uint64_t wrong = 0;  // on all ranks
    int ranks = 0;       // that have finished the check
  };
  std::vector<Check> checks_;  // not finished
  uint64_t wrong_ = 0;
};

using BackendFigures = std::pair<std::string, Figures>;  // the backend's name

// A row for each figure, a column for each backend.
std::string format_comparison(const std::vector<BackendFigures>& all, unsigned ranks);

// A table for each kind of figure; leaves out tables without rows.
std::vector<ResultTable> list_result_tables(const std::vector<BackendFigures>& all);

}  // namespace verbena::tools::symm
