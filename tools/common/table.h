#pragma once
#include <cstdio>
#include <string>
#include <vector>

namespace verbena::tools {

struct Column {
  std::string name;
  std::string unit;  // printed below the name, in parentheses; may be empty
  int width = 10;
};

// Right-aligned text table whose rows are printed as they come, or comma-separated values.
class Table {
 public:
  enum class Format { kText, kCsv };

  Table(std::vector<Column> columns, Format format, std::FILE* out)
      : columns_(std::move(columns)), format_(format), out_(out) {}

  void print_header() const;
  void print_row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
  Format format_;
  std::FILE* out_;
};

// Two decimals below 100, one below 1000, none above: nccl-tests' way of keeping a column readable.
std::string format_figure(double value);

}  // namespace verbena::tools
