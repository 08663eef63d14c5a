#include "nccl-perf/comparison.h"

#include <algorithm>

#include "common/table.h"
#include "nccl-perf/collective.h"

namespace verbena::tools::nccl {
namespace {

constexpr int kSizeWidth = 12, kFigureWidth = 12;

std::vector<double> find_times(const std::map<std::string, std::vector<double>>& times_us,
                               const std::string& variant) {
  const auto found = times_us.find(variant);
  return found == times_us.end() ? std::vector<double>() : found->second;
}

}  // namespace

void Comparison::add(const std::string& variant, const Row& row) {
  if (std::find(variants_.begin(), variants_.end(), variant) == variants_.end()) variants_.push_back(variant);
  auto line = std::find_if(lines_.begin(), lines_.end(), [&](const Line& known) {
    return known.operation == row.operation && known.requested_bytes == row.requested_bytes;
  });
  if (line == lines_.end()) line = lines_.insert(lines_.end(), {row.operation, row.requested_bytes, {}});
  line->times_us[variant].push_back(row.time_us);
}

double Comparison::find_gain(const Line& line, const std::string& other) const {
  const double own_us = compute_median(find_times(line.times_us, variants_.front()));
  const double other_us = compute_median(find_times(line.times_us, other));
  return own_us == 0 ? 0 : other_us / own_us;
}

std::string Comparison::format(uint32_t ranks) const {
  std::string text;
  std::vector<Column> columns = {{"size", "B", kSizeWidth}};
  for (const std::string& variant : variants_) {
    columns.push_back({variant, "us", kFigureWidth});
    if (variant != variants_.front()) columns.push_back({"gain", "x", kFigureWidth / 2});
  }
  const Table table(columns);
  std::string operation;
  for (const Line& line : lines_) {
    if (operation != line.operation) {
      operation = line.operation;
      text += "#\n# " + operation + "\n" + table.format_header();
    }
    const Shape shape = make_shape(parse_operation(operation).value(), line.requested_bytes, ranks);
    std::vector<std::string> cells = {std::to_string(shape.size_bytes)};
    for (const std::string& variant : variants_) {
      cells.push_back(format_figure(compute_median(find_times(line.times_us, variant))));
      if (variant != variants_.front()) cells.push_back(format_figure(find_gain(line, variant)));
    }
    text += table.format_row(cells);
  }
  return text;
}

nlohmann::json Comparison::describe() const {
  auto described = nlohmann::json::array();
  for (const Line& line : lines_) {
    nlohmann::json entry{{"operation", line.operation}, {"requested_bytes", line.requested_bytes}};
    for (const std::string& variant : variants_) {
      entry["times_us"][variant] = find_times(line.times_us, variant);
      if (variant != variants_.front()) entry["gain"][variant] = find_gain(line, variant);
    }
    described.push_back(std::move(entry));
  }
  return described;
}

}  // namespace verbena::tools::nccl
