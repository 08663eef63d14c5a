#include "common/table.h"

#include <cstdio>

namespace verbena::tools {
namespace {

std::string pad_left(const std::string& text, int width) {
  const auto length = static_cast<int>(text.size());
  return length >= width ? text : std::string(static_cast<size_t>(width - length), ' ') + text;
}

}  // namespace

std::string Table::format_header() const {
  std::string names = format_ == Format::kText ? "#" : "";
  std::string units = "#";
  bool first = true;
  for (const Column& column : columns_) {
    if (format_ == Format::kCsv) {
      names += (first ? "" : ",") + column.name;
    } else {
      // The '#' takes one place of the first column, so that figures stay under their names.
      const int width = column.width + (first ? 0 : 1);
      names += pad_left(column.name, width);
      units += pad_left(column.unit.empty() ? "" : "(" + column.unit + ")", width);
    }
    first = false;
  }
  return format_ == Format::kText ? names + "\n" + units + "\n" : names + "\n";
}

std::string Table::format_row(const std::vector<std::string>& cells) const {
  std::string line = format_ == Format::kText ? " " : "";
  for (size_t index = 0; index < columns_.size() && index < cells.size(); ++index) {
    if (format_ == Format::kCsv) {
      line += (index == 0 ? "" : ",") + cells[index];
    } else {
      line += pad_left(cells[index], columns_[index].width + (index == 0 ? 0 : 1));
    }
  }
  return line + "\n";
}

std::string format_figure(double value) {
  char text[32];
  const double magnitude = value < 0 ? -value : value;
  if (magnitude > 0 && magnitude < 0.001) {
    std::snprintf(text, sizeof text, "%.1e", value);
    return text;
  }
  const int decimals = magnitude > 0 && magnitude < 0.1 ? 4 : magnitude < 100 ? 2 : magnitude < 1000 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace verbena::tools
