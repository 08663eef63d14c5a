#include "verbena-bench/coll/report.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "common/size.h"
#include "common/table.h"
#include "verbena-bench/coll/contenders.h"

namespace verbena::tools::coll {
namespace {

std::vector<std::string> split(const std::string& text, char by, size_t most) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (parts.size() + 1 < most) {
    const size_t end = text.find(by, begin);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// "verbena/one-shot/2x128" is verbena's, all others are one contender each.
std::string find_contender(const std::string& key) {
  const std::string name = split(key, '/', 4).back();
  return name.rfind("verbena/", 0) == 0 ? "verbena" : name;
}

}  // namespace

double Report::find_late_us(const std::string& kind, const std::string& key) const {
  const std::vector<double> both = figures_.find(kind + "/" + key);
  return both.size() == 2 ? both[0] - both[1] : 0;
}

std::vector<Report::Row> Report::list_rows() const {
  std::vector<Row> rows;
  for (const auto& [name, samples] : figures_.samples()) {
    if (!name.starts_with("shorter/")) continue;
    const std::string key = name.substr(name.find('/') + 1);
    const std::vector<double> longer = figures_.find("longer/" + key);
    if (longer.empty() || samples.empty()) continue;
    const std::vector<std::string> parts = split(key, '/', 4);
    const uint64_t bytes = std::stoull(parts[2]);
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& one) {
      return one.operation == parts[0] && one.type == parts[1] && one.bytes == bytes;
    });
    if (row == rows.end()) row = rows.insert(rows.end(), Row{parts[0], parts[1], bytes, {}});
    const double median_us = compute_median(samples);
    row->ways.push_back({key, (compute_median(longer) - median_us) / chain_,
                         (compute_percentile(longer, 90) - median_us) / chain_});
  }
  for (Row& row : rows)
    std::sort(row.ways.begin(), row.ways.end(), [](const Way& a, const Way& b) { return a.us < b.us; });
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tie(a.operation, a.type, a.bytes) < std::tie(b.operation, b.type, b.bytes);
  });
  return rows;
}

// Returns the bus bandwidth as nccl-tests define it: the bytes per second that each link carries.
double Report::find_bandwidth(const Row& row, double us) const {
  const double share = static_cast<double>(figures_.ranks() - 1) / figures_.ranks();
  const double factor = row.operation.rfind("all_reduce", 0) == 0 ? 2 * share : share;
  return us <= 0 ? 0 : factor * static_cast<double>(row.bytes) / us / 1000;
}

std::string Report::format_table() const {
  const std::vector<Row> rows = list_rows();
  if (rows.empty()) return "";
  std::set<std::string> others;
  for (const Row& row : rows)
    for (const Way& way : row.ways)
      if (find_contender(way.key) != "verbena") others.insert(find_contender(way.key));
  std::vector<Column> columns = {{"operation", "", 20}, {"type", "", 5},     {"bytes", "", 6},
                                 {"verbena", "us", 9},  {"p90", "us", 8},    {"busbw", "GB/s", 8},
                                 {"auto", "us", 8},     {"eager", "us", 8},  {"host", "us", 7},
                                 {"late 5", "us", 8},   {"late 50", "us", 8}};
  for (const std::string& other : others)
    columns.push_back({other, "us", static_cast<int>(std::max<size_t>(9, other.size() + 1))});
  columns.push_back({"faster", "x", 7});
  columns.push_back({"the fastest algorithm", "", 34});
  const Table table(columns);
  std::string text = table.format_header();
  for (const Row& row : rows) {
    const auto ours = std::find_if(row.ways.begin(), row.ways.end(),
                                   [](const Way& way) { return find_contender(way.key) == "verbena"; });
    if (ours == row.ways.end()) continue;
    const auto show = [](double value) { return value == 0 ? std::string("-") : format_figure(value); };
    double chosen_us = 0;
    for (const Way& way : row.ways)
      if (way.key.size() > 5 && way.key.substr(way.key.size() - 5) == "/auto") chosen_us = way.us;
    const std::vector<double> eager = figures_.find("eager/" + ours->key),
                              host = figures_.find("host/" + ours->key);
    std::vector<std::string> cells = {row.operation,
                                      row.type,
                                      format_size(row.bytes),
                                      show(ours->us),
                                      show(ours->p90_us),
                                      show(find_bandwidth(row, ours->us)),
                                      show(chosen_us),
                                      eager.empty() ? "-" : show(eager[0]),
                                      host.empty() ? "-" : show(host[0]),
                                      show(find_late_us("late5", ours->key)),
                                      show(find_late_us("late50", ours->key))};
    double best_us = 0;
    for (const std::string& other : others) {
      const auto theirs = std::find_if(row.ways.begin(), row.ways.end(),
                                       [&](const Way& way) { return find_contender(way.key) == other; });
      cells.push_back(theirs == row.ways.end() ? "-" : show(theirs->us));
      if (theirs != row.ways.end() && (best_us == 0 || theirs->us < best_us)) best_us = theirs->us;
    }
    cells.push_back(best_us == 0 || ours->us <= 0 ? "-" : show(best_us / ours->us));
    cells.push_back(split(ours->key, '/', 5).back());
    text += table.format_row(cells);
  }
  return text + format_regret(rows);
}

// How much longer the library's own choice takes than the fastest algorithm, for tensors in any memory.
std::string Report::format_regret(const std::vector<Row>& rows) {
  std::vector<double> percents;
  std::string worst;
  for (const Row& row : rows) {
    const Way *chosen = nullptr, *best = nullptr;
    for (const Way& way : row.ways) {
      const std::vector<std::string> parts = split(way.key, '/', 6);
      if (parts[3] != "verbena" || parts.size() < 5 || parts[4] == "direct" || parts[4] == "copy-engines")
        continue;
      if (best == nullptr) best = &way;
      if (parts[4] == "auto") chosen = &way;
    }
    if (chosen == nullptr || best == chosen || best->us <= 0) {
      if (chosen != nullptr && row.ways.size() > 1) percents.push_back(0);
      continue;
    }
    const double percent = 100 * (chosen->us / best->us - 1);
    if (percents.empty() || percent > *std::max_element(percents.begin(), percents.end()))
      worst = row.operation + " " + row.type + " " + format_size(row.bytes) + ", where " +
              split(best->key, '/', 5).back() + " takes " + format_figure(best->us) + " us";
    percents.push_back(percent);
  }
  if (worst.empty()) return "";
  double sum = 0;
  for (const double percent : percents) sum += percent;
  return "\nauto takes " + format_figure(sum / static_cast<double>(percents.size())) +
         " % longer than the fastest algorithm, in the mean of " + std::to_string(percents.size()) +
         " points, " + format_figure(compute_percentile(percents, 90)) + " % at p90, " +
         format_figure(*std::max_element(percents.begin(), percents.end())) + " % at the worst: " + worst +
         "\n";
}

std::vector<tuner::OpsMeasurement> Report::list_measurements(unsigned hosts) const {
  std::vector<tuner::OpsMeasurement> measurements;
  // Keeps, for each algorithm, number of threads and size, the best number of blocks.
  for (const Row& row : list_rows()) {
    if (hosts > 1 && row.type != "bf16") continue;
    for (const Way& way : row.ways) {
      const std::vector<std::string> parts = split(way.key, '/', 8);
      unsigned blocks = 0, threads = 0, chunk_kib = 0;
      if (parts.size() < 6 || parts[3] != "verbena" ||
          std::sscanf(parts[5].c_str(), "%ux%u", &blocks, &threads) != 2 || blocks == 0 || way.us <= 0)
        continue;
      if (parts.size() > 6) std::sscanf(parts[6].c_str(), "%uK", &chunk_kib);
      tuner::OpsMeasurement measured;
      measured.operation = plain_name(row.operation);
      measured.algorithm = parts[4];
      measured.gpu = figures_.gpu();
      measured.ranks = figures_.ranks();
      measured.hosts = hosts;
      measured.threads = threads;
      measured.chunk_bytes = chunk_kib << 10;
      auto found = std::find_if(measurements.begin(), measurements.end(),
                                [&](const auto& one) { return one.is_same_way(measured); });
      if (found == measurements.end()) found = measurements.insert(measurements.end(), measured);
      // Ways are sorted: the first of a size is the best.
      if (found->points.empty() || found->points.back().bytes < row.bytes)
        found->points.push_back({row.bytes, blocks, way.us});
    }
  }
  return measurements;
}

std::vector<ResultTable> Report::list_tables() const {
  ResultTable table{"ways",
                    {{"operation", "operation", "", ResultColumn::Role::kKey},
                     {"type", "type", "", ResultColumn::Role::kKey},
                     {"bytes", "bytes", "B", ResultColumn::Role::kKey},
                     {"way", "way", "", ResultColumn::Role::kKey},
                     {"time_us", "time", "us", ResultColumn::Role::kLower, "median", true},
                     {"p90_us", "time", "us", ResultColumn::Role::kLower, "p90"},
                     {"eager_us", "eager", "us", ResultColumn::Role::kNote},
                     {"late_5_us", "with a rank 5 us late", "us", ResultColumn::Role::kNote},
                     {"late_50_us", "with a rank 50 us late", "us", ResultColumn::Role::kNote}}};
  for (const Row& row : list_rows()) {
    for (const Way& way : row.ways) {
      nlohmann::json cells = {{"operation", row.operation}, {"type", row.type},
                              {"bytes", row.bytes},         {"way", split(way.key, '/', 4).back()},
                              {"time_us", way.us},          {"p90_us", way.p90_us}};
      const std::vector<double> eager = figures_.find("eager/" + way.key);
      if (!eager.empty()) {
        cells["eager_us"] = eager[0];
        cells["late_5_us"] = find_late_us("late5", way.key);
        cells["late_50_us"] = find_late_us("late50", way.key);
      }
      table.rows.push_back(cells);
    }
  }
  return {table};
}

}  // namespace verbena::tools::coll
