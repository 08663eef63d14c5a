#include "common/table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace verbena::tools {
namespace {

std::string pad_left(const std::string& text, int width) {
  const auto length = static_cast<int>(text.size());
  return length >= width ? text : std::string(static_cast<size_t>(width - length), ' ') + text;
}

}  // namespace

std::string Table::format_header() const {
  std::string names = "#", units = "#";
  for (const Column& column : columns_) {
    // The '#' takes one character of the first column, so that the figures align with the names.
    const int width = column.width + (&column == &columns_.front() ? 0 : 1);
    names += pad_left(column.name, width);
    units += pad_left(column.unit.empty() ? "" : "(" + column.unit + ")", width);
  }
  return names + "\n" + units + "\n";
}

std::string Table::format_row(const std::vector<std::string>& cells) const {
  std::string line = " ";
  for (size_t index = 0; index < columns_.size() && index < cells.size(); ++index)
    line += pad_left(cells[index], columns_[index].width + (index == 0 ? 0 : 1));
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

double compute_percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return 0;
  const double rank = std::ceil(percent / 100.0 * static_cast<double>(samples.size()));
  const size_t index = std::min(samples.size() - 1, static_cast<size_t>(std::max(rank, 1.0)) - 1);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

double compute_median(std::vector<double> samples) {
  return compute_percentile(std::move(samples), 50);
}

}  // namespace verbena::tools
