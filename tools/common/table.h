#pragma once
#include <string>
#include <vector>

namespace verbena::tools {

struct Column {
  std::string name;
  std::string unit;  // printed below the name, in parentheses; may be empty
  int width = 10;
};

// A right-aligned table, formatted row by row; each row ends with a newline.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  std::string format_header() const;
  std::string format_row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

// Two decimals below 100, one below 1000, none above, as nccl-tests does. Four below 0.1, and two digits with
// an exponent below 0.001, so that only zero is shown as 0.
std::string format_figure(double value);

// Nearest-rank percentile of measured times; 0 for no sample. Takes a copy because it sorts.
double compute_percentile(std::vector<double> samples, double percent);

double compute_median(std::vector<double> samples);

}  // namespace verbena::tools
