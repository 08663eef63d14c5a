#include "verbena-symm/figures.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "common/samples.h"
#include "common/table.h"

namespace verbena::tools::symm {
namespace {

// us a million bytes are GB/s by their inverse: the sample is us for each 1000 bytes.
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
    const bool is_figures = has(check.what);  // right by the way: not worth a line
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
                     {"blocks", "", 7}},
                    Table::Format::kText);
  text += "\nall-reduce of float32, one launch in a graph of 50, the best of several block counts\n" +
          table.format_header();
  for (uint64_t bytes = 1024; !best("one/" + std::to_string(bytes)).which.empty(); bytes *= 4) {
    std::vector<std::string> cells{std::to_string(bytes)};
    for (const std::string algorithm : {"one/", "two/"}) {
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

}  // namespace verbena::tools::symm
