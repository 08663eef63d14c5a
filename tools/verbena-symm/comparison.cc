#include "verbena-symm/comparison.h"

#include <functional>
#include <optional>

#include "common/samples.h"
#include "common/table.h"

namespace verbena::tools::symm {
namespace {

using Read = std::function<std::optional<double>(const Figures&)>;

Read read_median(const std::string& name) {
  return [=](const Figures& figures) -> std::optional<double> {
    if (!figures.has(name)) return std::nullopt;
    return figures.median(name);
  };
}
// `convert` turns the least time into what is shown.
Read read_best(const std::string& prefix, const std::function<double(double)>& convert) {
  return [=](const Figures& figures) -> std::optional<double> {
    const Figures::Best best = figures.best(prefix);
    if (best.which.empty()) return std::nullopt;
    return convert(best.value);
  };
}

}  // namespace

std::string format_comparison(const std::vector<BackendFigures>& all, unsigned ranks) {
  std::vector<Column> columns = {{"figure", "", 44}, {"unit", "", 9}};
  for (const auto& [backend, figures] : all) columns.push_back({backend, "", 10});
  const Table table(columns, Table::Format::kText);
  std::string text = std::to_string(ranks) + " ranks\n" + table.format_header();
  const auto add = [&](const std::string& what, const char* unit, const Read& read) {
    std::vector<std::string> row = {what, unit};
    bool has_any = false;
    for (const auto& [backend, figures] : all) {
      const std::optional<double> value = read(figures);
      has_any |= value.has_value();
      row.push_back(value ? format_figure(*value) : "-");
    }
    if (has_any) text += table.format_row(row);
  };
  const auto invert = [](double value) { return 1.0 / value; };
  const auto keep = [](double value) { return value; };
  add("barrier, a block of 32 threads", "us", read_median("barrier/32"));
  add("barrier, a block of 512 threads", "us", read_median("barrier/512"));
  add("put of 8 bytes, signal, wait: one way", "us", read_median("bounce"));
  add("put of 256 MiB (16 MiB by a network)", "GB/s", read_best("put", invert));
  add("puts of 8 bytes, 4 blocks", "million/s", read_best("rate", invert));
  for (uint64_t bytes = 1024; bytes <= uint64_t{16} << 20; bytes *= 4) {
    const std::string size = std::to_string(bytes);
    add("all-reduce of " + size + " bytes, one shot", "us", read_best("one/" + size, keep));
    add("all-reduce of " + size + " bytes, two shots", "us", read_best("two/" + size, keep));
  }
  return text;
}

}  // namespace verbena::tools::symm
