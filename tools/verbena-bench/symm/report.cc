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

// Figures PREFIX/N are microseconds per thousand bytes, or per put; shows their inverse in the columns
// `figure` and its p99, by N in the column `key`.
ResultTable list_inverses(const std::vector<BackendFigures>& all, const std::string& prefix,
                          const std::string& title, const std::string& key, const ResultColumn& figure,
                          const ResultColumn& p99) {
  ResultTable table{
      title, {{"backend", "backend", "", Role::kKey, "", true}, {key, key, "", Role::kKey}, figure, p99}};
  for (const auto& [backend, figures] : all) {
    for (const auto& [name, samples] : figures.samples()) {
      if (!name.starts_with(prefix + "/") || samples.empty()) continue;
      table.rows.push_back({{"backend", backend},
                            {key, name.substr(prefix.size() + 1)},
                            {figure.name, 1.0 / compute_median(samples)},
                            {p99.name, 1.0 / compute_percentile(samples, 99)}});
    }
  }
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
  std::vector<ResultTable> tables{
      list_times(all),
      list_inverses(all, "put", "puts to the next rank, all at once", "blocks",
                    {"bandwidth_GBps", "bandwidth", "GB/s each", Role::kHigher, "median", true},
                    {"bandwidth_p99_GBps", "bandwidth p99", "GB/s each", Role::kHigher, "p99"}),
      list_inverses(all, "rate", "puts of 8 bytes", "queues",
                    {"rate_millions", "rate", "million/s", Role::kHigher, "median", true},
                    {"rate_p99_millions", "rate p99", "million/s", Role::kHigher, "p99"}),
      list_reductions(all)};
  std::erase_if(tables, [](const ResultTable& table) { return table.rows.empty(); });
  return tables;
}

}  // namespace verbena::tools::symm
