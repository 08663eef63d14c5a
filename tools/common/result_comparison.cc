#include "common/result_comparison.h"

#include <algorithm>

#include "common/table.h"

namespace verbena::tools {
namespace {

constexpr int kKeyWidth = 10, kFigureWidth = 9, kRatioWidth = 8;

std::string format_figure_of(const nlohmann::json& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() || !found->is_number() ? "-" : format_figure(found->get<double>());
}

std::vector<const ResultColumn*> list_compared(const ResultTable& table) {
  std::vector<const ResultColumn*> compared;
  for (const ResultColumn& column : table.columns) {
    if (column.is_figure() && column.is_plotted) compared.push_back(&column);
  }
  return compared;
}

int find_key_width(const ResultTable& table, const ResultColumn& key) {
  size_t width = std::max<size_t>(kKeyWidth, key.label.size());
  for (const nlohmann::json& row : table.rows) width = std::max(width, format_value(row, key.name).size());
  return static_cast<int>(width);
}

Table make_table(const ResultTable& now) {
  std::vector<Column> columns;
  for (const ResultColumn* key : now.list_keys())
    columns.push_back({key->label, key->unit, find_key_width(now, *key)});
  for (const ResultColumn* figure : list_compared(now)) {
    const int width = std::max(kFigureWidth, static_cast<int>(figure->label.size()) + 1);
    columns.push_back({figure->label, figure->unit, width});
    columns.push_back({"then", figure->unit, kFigureWidth});
    columns.push_back({"better", "times", kRatioWidth});
  }
  return {columns, Table::Format::kText};
}

std::string find_member(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_string() ? "?" : found->get<std::string>();
}

std::string describe_other(const Result& now, const Result& then) {
  std::string text = "#\n# compared with " + then.source + " of " + then.started + ": " + then.command + "\n";
  for (const char* member : {"host", "cpu"}) {
    const std::string here = find_member(now.machine, member), there = find_member(then.machine, member);
    if (here != there)
      text += std::string("# NOT THE SAME MACHINE: ") + member + " " + here + ", then " + there + "\n";
  }
  return text;
}

}  // namespace

double compute_ratio(const ResultColumn& column, const nlohmann::json& now, const nlohmann::json& then) {
  const auto own = now.find(column.name), other = then.find(column.name);
  if (own == now.end() || other == then.end() || !own->is_number() || !other->is_number()) return 0;
  const double own_value = own->get<double>(), other_value = other->get<double>();
  if (!(own_value > 0) || !(other_value > 0)) return 0;
  return column.role == ResultColumn::Role::kLower ? other_value / own_value : own_value / other_value;
}

const nlohmann::json* find_same_row(const ResultTable& table, const nlohmann::json& row) {
  const auto keys = table.list_keys();
  for (const nlohmann::json& candidate : table.rows) {
    const bool is_same = std::all_of(keys.begin(), keys.end(), [&](const ResultColumn* key) {
      return format_value(candidate, key->name) == format_value(row, key->name);
    });
    if (is_same) return &candidate;
  }
  return nullptr;
}

ResultComparison::ResultComparison(const Result& now, const Result& then) : text_(describe_other(now, then)) {
  for (const ResultTable& table : now.tables) {
    if (const ResultTable* other = then.find_table(table.name)) add_table(table, *other);
  }
  if (count_ == 0) text_ += "# nothing to compare: it has none of these rows\n";
}

void ResultComparison::add_table(const ResultTable& now, const ResultTable& then) {
  const Table table = make_table(now);
  bool has_header = false;
  for (const nlohmann::json& row : now.rows) {
    const nlohmann::json* const other = find_same_row(then, row);
    if (other == nullptr) continue;
    std::vector<std::string> cells;
    for (const ResultColumn* key : now.list_keys()) cells.push_back(format_value(row, key->name));
    for (const ResultColumn* figure : list_compared(now)) {
      const double ratio = compute_ratio(*figure, row, *other);
      cells.push_back(format_figure_of(row, figure->name));
      cells.push_back(format_figure_of(*other, figure->name));
      cells.push_back(ratio > 0 ? format_figure(ratio) : "-");
      if (figure->statistic != "median" || ratio <= 0) continue;
      if (least_ratio_ > 0 && ratio >= least_ratio_) continue;
      least_ratio_ = ratio;
      least_row_ = now.name + ", " + figure->label + " of " + now.describe_keys(row);
    }
    if (!has_header) text_ += "# " + now.name + "; better: above 1 is better now\n" + table.format_header();
    has_header = true;
    text_ += table.format_row(cells);
    ++count_;
  }
}

}  // namespace verbena::tools
