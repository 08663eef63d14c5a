#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "common/result.h"

namespace verbena::tools {

// A result beside a stored one: rows of equal keys, and how many times better each figure is now. Above 1 is
// better now, whether lower or higher is.
class ResultComparison {
 public:
  ResultComparison(const Result& now, const Result& then);

  size_t count_rows() const { return count_; }
  // Of the medians, which alone are steady enough to be judged; 0 where there is none.
  double least_ratio() const { return least_ratio_; }
  const std::string& least_row() const { return least_row_; }

  std::string format() const { return text_; }

 private:
  void add_table(const ResultTable& now, const ResultTable& then);

  std::string text_;
  size_t count_ = 0;
  double least_ratio_ = 0;
  std::string least_row_;
};

// 0 where one of both has no such figure.
double compute_ratio(const ResultColumn& column, const nlohmann::json& now, const nlohmann::json& then);

// The row of `table` whose keys are those of `row`; nullptr where there is none.
const nlohmann::json* find_same_row(const ResultTable& table, const nlohmann::json& row);

}  // namespace verbena::tools
