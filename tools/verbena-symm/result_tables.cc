#include "verbena-symm/result_tables.h"

#include <array>

namespace verbena::tools::symm {
namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

constexpr uint64_t kLeastBytes = 1024, kMostBytes = uint64_t{16} << 20;

ResultTable make_time_table() {
  return {"barrier and signal",
          {{"backend", "backend", "", Role::kKey, "", true},
           {"what", "what", "", Role::kKey},
           {"time_us", "time", "us", Role::kLower, "median", true},
           {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
           {"samples_us", "", "us", Role::kSamples}}};
}

ResultTable make_put_table() {
  return {"puts",
          {{"backend", "backend", "", Role::kKey, "", true},
           {"blocks", "blocks", "", Role::kKey},
           {"bandwidth_GBps", "bandwidth", "GB/s each", Role::kHigher, "median", true},
           {"bandwidth_p99_GBps", "bandwidth p99", "GB/s each", Role::kHigher, "p99"}}};
}

ResultTable make_rate_table() {
  return {"puts of 8 bytes",
          {{"backend", "backend", "", Role::kKey, "", true},
           {"queues", "queues", "", Role::kKey},
           {"rate_millions", "rate", "million/s", Role::kHigher, "median", true},
           {"rate_p99_millions", "rate p99", "million/s", Role::kHigher, "p99"}}};
}

ResultTable make_reduce_table() {
  return {"all-reduce of float32",
          {{"backend", "backend", "", Role::kKey},
           {"algorithm", "algorithm", "", Role::kKey},
           {"size_bytes", "size", "B", Role::kKey},
           {"blocks", "blocks x threads", ""},
           {"time_us", "time", "us", Role::kLower, "median", true},
           {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
           {"samples_us", "", "us", Role::kSamples}}};
}

void add_times(ResultTable& table, const std::string& backend, const Figures& figures) {
  constexpr std::array<std::array<const char*, 2>, 3> kTimes{
      {{"barrier/32", "barrier, a block of 32 threads"},
       {"barrier/512", "barrier, a block of 512 threads"},
       {"bounce", "put of 8 bytes, signal, wait"}}};
  for (const auto& [name, what] : kTimes) {
    if (!figures.has(name)) continue;
    table.rows.push_back({{"backend", backend},
                          {"what", what},
                          {"time_us", figures.median(name)},
                          {"time_p99_us", figures.p99(name)},
                          {"samples_us", figures.samples().at(name)}});
  }
}

// Figures "PREFIX/N" are microseconds a thousand bytes, or a put: their inverse is shown.
void add_inverses(ResultTable& table, const std::string& backend, const Figures& figures,
                  const std::string& prefix) {
  for (const auto& [name, samples] : figures.samples()) {
    if (!name.starts_with(prefix + "/") || samples.empty()) continue;
    table.rows.push_back({{"backend", backend},
                          {table.columns[1].name, name.substr(prefix.size() + 1)},
                          {table.columns[2].name, 1.0 / figures.median(name)},
                          {table.columns[3].name, 1.0 / figures.p99(name)}});
  }
}

void add_reductions(ResultTable& table, const std::string& backend, const Figures& figures,
                    const char* prefix, const char* algorithm) {
  for (uint64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 4) {
    const std::string name = std::string(prefix) + "/" + std::to_string(bytes);
    const Figures::Best best = figures.best(name);
    if (best.which.empty()) continue;
    const std::string full_name = name + "/" + best.which;
    table.rows.push_back({{"backend", backend},
                          {"algorithm", algorithm},
                          {"size_bytes", bytes},
                          {"blocks", best.which},
                          {"time_us", best.value},
                          {"time_p99_us", figures.p99(full_name)},
                          {"samples_us", figures.samples().at(full_name)}});
  }
}

}  // namespace

std::vector<ResultTable> list_result_tables(const std::vector<BackendFigures>& all) {
  std::vector<ResultTable> tables{make_time_table(), make_put_table(), make_rate_table(),
                                  make_reduce_table()};
  for (const auto& [backend, figures] : all) {
    add_times(tables[0], backend, figures);
    add_inverses(tables[1], backend, figures, "put");
    add_inverses(tables[2], backend, figures, "rate");
    add_reductions(tables[3], backend, figures, "one", "one shot");
    add_reductions(tables[3], backend, figures, "two", "two shots");
  }
  std::erase_if(tables, [](const ResultTable& table) { return table.rows.empty(); });
  return tables;
}

}  // namespace verbena::tools::symm
