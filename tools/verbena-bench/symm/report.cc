#include "verbena-bench/symm/report.h"

#include <algorithm>

namespace verbena::tools::symm {
namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

// The fastest of the figures PREFIX/SHAPE, as several numbers of blocks and threads are tried.
struct Best {
  std::string shape;
  std::vector<double> samples;
};
Best find_best(const bench::Figures& figures, const std::string& prefix) {
  Best best;
  for (const auto& [name, samples] : figures.samples()) {
    if (!name.starts_with(prefix + "/") || samples.empty()) continue;
    if (best.samples.empty() || compute_median(samples) < compute_median(best.samples))
      best = {name.substr(prefix.size() + 1), samples};
  }
  return best;
}

// Where a figure's name is PREFIX, or PREFIX/SHAPE.
void add_time(ResultTable& table, const std::string& backend, const Best& best, json row) {
  if (best.samples.empty()) return;
  row.update({{"backend", backend},
              {"blocks", best.shape},
              {"time_us", compute_median(best.samples)},
              {"time_p99_us", compute_percentile(best.samples, 99)},
              {"samples_us", best.samples}});
  table.rows.push_back(std::move(row));
}

// Figures PREFIX/N are microseconds per thousand bytes, or per put; shows their inverse.
void add_inverses(ResultTable& table, const std::vector<BackendFigures>& all, const std::string& prefix) {
  for (const auto& [backend, figures] : all) {
    for (const auto& [name, samples] : figures.samples()) {
      if (!name.starts_with(prefix + "/") || samples.empty()) continue;
      table.rows.push_back({{"backend", backend},
                            {table.columns[1].name, name.substr(prefix.size() + 1)},
                            {table.columns[2].name, 1.0 / compute_median(samples)},
                            {table.columns[3].name, 1.0 / compute_percentile(samples, 99)}});
    }
  }
}

ResultTable list_times(const std::vector<BackendFigures>& all) {
  ResultTable table{"barrier and signal",
                    {{"backend", "backend", "", Role::kKey, "", true},
                     {"what", "what", "", Role::kKey},
                     {"time_us", "time", "us", Role::kLower, "median", true},
                     {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
                     {"samples_us", "", "us", Role::kSamples}}};
  for (const auto& [name, what] : {std::pair{"barrier/32", "barrier, a block of 32 threads"},
                                   {"barrier/512", "barrier, a block of 512 threads"},
                                   {"bounce", "put of 8 bytes, signal, wait: one way"}})
    for (const auto& [backend, figures] : all)
      add_time(table, backend, {"", figures.find(name)}, {{"what", what}});
  return table;
}

ResultTable list_puts(const std::vector<BackendFigures>& all) {
  ResultTable table{"puts to the next rank, all at once",
                    {{"backend", "backend", "", Role::kKey, "", true},
                     {"blocks", "blocks", "", Role::kKey},
                     {"bandwidth_GBps", "bandwidth", "GB/s each", Role::kHigher, "median", true},
                     {"bandwidth_p99_GBps", "bandwidth p99", "GB/s each", Role::kHigher, "p99"}}};
  add_inverses(table, all, "put");
  return table;
}

ResultTable list_rates(const std::vector<BackendFigures>& all) {
  ResultTable table{"puts of 8 bytes",
                    {{"backend", "backend", "", Role::kKey, "", true},
                     {"queues", "queues", "", Role::kKey},
                     {"rate_millions", "rate", "million/s", Role::kHigher, "median", true},
                     {"rate_p99_millions", "rate p99", "million/s", Role::kHigher, "p99"}}};
  add_inverses(table, all, "rate");
  return table;
}

ResultTable list_reductions(const std::vector<BackendFigures>& all) {
  constexpr uint64_t kMinBytes = 1024, kMaxBytes = uint64_t{16} << 20;
  ResultTable table{"all-reduce of float32",
                    {{"backend", "backend", "", Role::kKey},
                     {"algorithm", "algorithm", "", Role::kKey},
                     {"size_bytes", "size", "B", Role::kKey},
                     {"blocks", "blocks x threads", ""},
                     {"time_us", "time", "us", Role::kLower, "median", true},
                     {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
                     {"samples_us", "", "us", Role::kSamples}}};
  for (const auto& [prefix, algorithm] :
       {std::pair{"one/", "one shot"}, {"two/", "two shots"}, {"packets/", "packets"}})
    for (uint64_t bytes = kMinBytes; bytes <= kMaxBytes; bytes *= 4)
      for (const auto& [backend, figures] : all)
        add_time(table, backend, find_best(figures, prefix + std::to_string(bytes)),
                 {{"algorithm", algorithm}, {"size_bytes", bytes}});
  return table;
}

}  // namespace

std::vector<ResultTable> list_result_tables(const std::vector<BackendFigures>& all) {
  std::vector<ResultTable> tables{list_times(all), list_puts(all), list_rates(all), list_reductions(all)};
  std::erase_if(tables, [](const ResultTable& table) { return table.rows.empty(); });
  return tables;
}

}  // namespace verbena::tools::symm
