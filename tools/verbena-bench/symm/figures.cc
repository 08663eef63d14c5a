#include "verbena-bench/symm/figures.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <optional>
#include <sstream>

#include "common/table.h"

namespace verbena::tools::symm {
namespace {

// The sample is in us per 1000 bytes, so its inverse is in GB/s.
std::string format_gigabytes(double us_per_1000_bytes) {
  return format_figure(1.0 / us_per_1000_bytes);
}

}  // namespace

bool Figures::take(const std::string& line) {
  std::istringstream words(line);
  std::string kind, name;
  words >> kind;
  if (kind == "checked") {
    uint64_t wrong = 0;
    words >> wrong >> std::ws;
    std::getline(words, name);
    wrong_ += wrong;
    const auto is_it = [&](const Check& check) { return check.what == name; };
    auto check = std::find_if(checks_.begin(), checks_.end(), is_it);
    if (check == checks_.end()) check = checks_.insert(check, {name});
    check->wrong += wrong;
    ++check->ranks;
    return true;
  }
  if (kind != "figure") return false;
  words >> name;
  std::vector<double> samples;
  for (double sample = 0; words >> sample;) samples.push_back(sample);
  auto& least = samples_.try_emplace(name, samples).first->second;
  for (size_t i = 0; i < std::min(least.size(), samples.size()); ++i)
    least[i] = std::min(least[i], samples[i]);
  return true;
}

std::string Figures::take_finished_checks(int ranks) {
  std::string text;
  for (const Check& check : checks_) {
    const bool is_figures = has(check.what);  // the check of a measurement needs no line if it is right
    if (check.ranks < ranks || (is_figures && check.wrong == 0)) continue;
    text +=
        (check.wrong == 0 ? "ok      " : "WRONG (" + std::to_string(check.wrong) + ") ") + check.what + "\n";
  }
  std::erase_if(checks_, [&](const Check& check) { return check.ranks >= ranks; });
  return text;
}

double Figures::median(const std::string& name) const {
  return compute_median(samples_.at(name));
}

double Figures::p99(const std::string& name) const {
  return compute_percentile(samples_.at(name), 99);
}

Figures::Best Figures::best(const std::string& prefix) const {
  Best best;
  for (const auto& [name, samples] : samples_) {
    if (name.rfind(prefix + "/", 0) != 0) continue;
    const double value = compute_median(samples);
    if (best.which.empty() || value < best.value) best = {value, name.substr(prefix.size() + 1)};
  }
  return best;
}

std::string Figures::format_table(unsigned ranks) const {
  std::string text;
  const auto add = [&](const std::string& what, const std::string& value, const std::string& unit) {
    char line[160];
    std::snprintf(line, sizeof(line), "%-58s %10s %s\n", what.c_str(), value.c_str(), unit.c_str());
    text += line;
  };
  for (const char* threads : {"32", "512"}) {
    const std::string name = std::string("barrier/") + threads;
    if (has(name))
      add("barrier of " + std::to_string(ranks) + " ranks, a block of " + threads + " threads",
          format_figure(median(name)), "us, p99 " + format_figure(p99(name)));
  }
  if (has("bounce"))
    add("put of 8 bytes, signal, wait: one way", format_figure(median("bounce")),
        "us, p99 " + format_figure(p99("bounce")));
  if (const Best put = best("put"); !put.which.empty())
    add("put to the next rank, all at once (" + put.which + " blocks)", format_gigabytes(put.value),
        "GB/s each");
  for (const char* blocks : {"1", "4"}) {
    const std::string name = std::string("rate/") + blocks;
    if (has(name))
      add(std::string("puts of 8 bytes through ") + blocks + " queue(s)", format_figure(1.0 / median(name)),
          "million/s");
  }
  if (best("one/1024").which.empty()) return text;
  const Table table({{"size", "B", 12},
                     {"one shot", "us", 10},
                     {"p99", "us", 9},
                     {"blocks", "", 7},
                     {"two shots", "us", 10},
                     {"p99", "us", 9},
                     {"blocks", "", 7},
                     {"packets", "us", 10},
                     {"p99", "us", 9},
                     {"blocks", "", 7}});
  text += "\nall-reduce of float32, one launch in a graph of 50, the best of several block counts\n" +
          table.format_header();
  for (uint64_t bytes = 1024; !best("one/" + std::to_string(bytes)).which.empty(); bytes *= 4) {
    std::vector<std::string> cells{std::to_string(bytes)};
    for (const std::string algorithm : {"one/", "two/", "packets/"}) {
      const std::string name = algorithm + std::to_string(bytes);
      const Best found = best(name);
      const bool is_there = !found.which.empty();
      cells.push_back(is_there ? format_figure(found.value) : "-");
      cells.push_back(is_there ? format_figure(p99(name + "/" + found.which)) : "-");
      cells.push_back(is_there ? found.which : "-");
    }
    text += table.format_row(cells);
  }
  return text;
}

namespace {

using Read = std::function<std::optional<double>(const Figures&)>;

Read read_median(const std::string& name) {
  return [=](const Figures& figures) -> std::optional<double> {
    if (!figures.has(name)) return std::nullopt;
    return figures.median(name);
  };
}
// `convert` turns the least time into the shown figure.
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
  const Table table(columns);
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
    add("all-reduce of " + size + " bytes, packets", "us", read_best("packets/" + size, keep));
  }
  return text;
}

namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

constexpr uint64_t kMinBytes = 1024, kMaxBytes = uint64_t{16} << 20;

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

// Figures "PREFIX/N" are microseconds per thousand bytes, or per put; shows their inverse.
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
  for (uint64_t bytes = kMinBytes; bytes <= kMaxBytes; bytes *= 4) {
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
    add_reductions(tables[3], backend, figures, "packets", "packets");
  }
  std::erase_if(tables, [](const ResultTable& table) { return table.rows.empty(); });
  return tables;
}

}  // namespace verbena::tools::symm
