// Which plots a table makes: the columns' roles decide.
#include <algorithm>
#include <set>

#include "common/plot.h"

namespace verbena::tools {
namespace {

using nlohmann::json;

constexpr const char* kSizeKey = "size_bytes";

size_t count_values(const ResultTable& table, const std::string& column) {
  std::set<std::string> values;
  for (const json& row : table.rows) values.insert(format_value(row, column));
  return values.size();
}

// Where lines go along, if they go along anything.
const ResultColumn* find_x(const ResultTable& table) {
  for (const ResultColumn* key : table.list_keys()) {
    if (key->name == kSizeKey && count_values(table, key->name) > 1) return key;
  }
  return nullptr;
}

class PlotMaker {
 public:
  PlotMaker(const ResultTable& table, const std::string& unit) : table_(table), x_(find_x(table)) {
    for (const ResultColumn& column : table.columns) {
      if (column.is_figure() && column.is_plotted && column.unit == unit) figures_.push_back(&column);
    }
    for (const ResultColumn* key : table.list_keys()) {
      if (key == x_ || count_values(table, key->name) < 2) continue;
      // Bars stand beside each other by the plotted key; the others name the place.
      (x_ != nullptr || key->is_plotted ? series_keys_ : place_keys_).push_back(key);
    }
    plot_.title = table.name;
    plot_.x_label = x_ == nullptr ? "" : x_->label + " (" + x_->unit + ")";
    plot_.y_label = unit;
    for (const ResultColumn* figure : figures_) {
      if (figure->statistic == "median" || figures_.size() == 1)
        plot_.y_label = figure->label + " (" + unit + ")";
    }
  }

  Plot make() {
    for (const json& row : table_.rows) {
      for (const ResultColumn* figure : figures_) add(row, *figure);
    }
    return std::move(plot_);
  }

 private:
  static std::string join(const json& row, const std::vector<const ResultColumn*>& keys) {
    std::string text;
    for (const ResultColumn* key : keys) {
      const bool is_number = row.contains(key->name) && row[key->name].is_number();
      text += (text.empty() ? "" : ", ") + (is_number ? key->label + " " : "") + format_value(row, key->name);
    }
    return text;
  }

  size_t find_index(std::vector<std::string>& names, const std::string& name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<size_t>(found - names.begin());
    names.push_back(name);
    return names.size() - 1;
  }

  void add(const json& row, const ResultColumn& figure) {
    const auto found = row.find(figure.name);
    if (found == row.end() || !found->is_number()) return;
    const std::string group = join(row, series_keys_);
    // Figures of one group share its color; "latency p99" says more than a group where there is only one.
    std::string name = group;
    if (figures_.size() > 1 || name.empty()) name += (name.empty() ? "" : ", ") + figure.label;
    auto series = std::find_if(plot_.series.begin(), plot_.series.end(),
                               [&](const PlotSeries& known) { return known.name == name; });
    if (series == plot_.series.end()) {
      const bool is_dashed = figure.statistic != "median" && figures_.size() > 1;
      series = plot_.series.insert(series, {name, find_index(groups_, group), is_dashed, {}, {}});
    }
    if (x_ == nullptr) {
      const std::string place = join(row, place_keys_);
      series->x.push_back(
          static_cast<double>(find_index(plot_.categories, place.empty() ? table_.name : place)));
    } else {
      series->x.push_back(row.at(x_->name).get<double>());
    }
    series->y.push_back(found->get<double>());
  }

  const ResultTable& table_;
  const ResultColumn* x_;
  std::vector<const ResultColumn*> figures_;
  std::vector<const ResultColumn*> series_keys_;
  std::vector<const ResultColumn*> place_keys_;
  std::vector<std::string> groups_;
  Plot plot_;
};

}  // namespace

std::vector<Plot> list_plots(const ResultTable& table) {
  std::vector<std::string> units;
  for (const ResultColumn& column : table.columns) {
    const bool is_new = std::find(units.begin(), units.end(), column.unit) == units.end();
    if (column.is_figure() && column.is_plotted && is_new) units.push_back(column.unit);
  }
  std::vector<Plot> plots;
  for (const std::string& unit : units) {
    Plot plot = PlotMaker(table, unit).make();
    if (!plot.series.empty()) plots.push_back(std::move(plot));
  }
  return plots;
}

}  // namespace verbena::tools
