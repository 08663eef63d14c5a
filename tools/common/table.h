#pragma once
#include <string>
#include <vector>

namespace verbena::tools {

struct Column {
  std::string name;
  std::string unit;  // printed below the name, in parentheses; may be empty
  int width = 10;
};

// Right-aligned text table, or comma-separated values; made row by row, each ending its line.
class Table {
 public:
  enum class Format { kText, kCsv };

  Table(std::vector<Column> columns, Format format) : columns_(std::move(columns)), format_(format) {}

  std::string format_header() const;
  std::string format_row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
  Format format_;
};

// Two decimals below 100, one below 1000, none above: nccl-tests' way of keeping a column readable. Below
// 0.1 four, and below 0.001 two digits and an exponent: what is not nothing never reads as 0.
std::string format_figure(double value);

}  // namespace verbena::tools
