#include "verbena-perf/report.h"

#include <cstdio>

namespace verbena::tools::perf {
namespace {

std::vector<Column> list_columns() {
  return {{"size", "B", 11},     {"path", "", 7},   {"iters", "", 6},      {"lat med", "us", 9},
          {"lat p99", "us", 9},  {"bw", "GB/s", 8}, {"staged", "msgs", 8}, {"direct", "msgs", 8},
          {"verified", "B", 12}, {"wrong", "B", 8}};
}

std::string describe_path(const nlohmann::json& row) {
  const uint64_t staged = row.at("staged");
  const uint64_t direct = row.at("direct");
  if (row.at("size") == 0) return "empty";
  if (staged == 0) return "direct";
  return direct == 0 ? "staged" : "mixed";
}

std::string format_member(const nlohmann::json& row, const char* name) {
  return row.contains(name) ? format_figure(row.at(name).get<double>()) : "-";
}

std::string format_count(const nlohmann::json& row, const char* name) {
  return std::to_string(row.at(name).get<uint64_t>());
}

// Flushed, so that a run that ends badly leaves all its rows.
void print_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

Report::Report(const Options& options) : options_(options), table_(list_columns(), Table::Format::kText) {}

void Report::add_device(const nlohmann::json& device) {
  if (!device_.is_null()) return;
  device_ = device;
  if (options_.output.takes_stdout() || options_.against) return;
  std::printf(
      "# plugin %s, table v%d, device %s, %d Mb/s, unpack %s, protocol %s, window %u\n"
      "# lat: half a round trip of one message; bw: one way, --window messages at once, median of passes\n",
      device["plugin"].get<std::string>().c_str(), device["abi"].get<int>(),
      device["name"].get<std::string>().c_str(), device["speed_mbps"].get<int>(),
      device["unpack"].get<bool>() ? "on" : "off", describe_protocol(options_.protocol), options_.window);
  print_text(table_.format_header());
}

void Report::add_row(const nlohmann::json& row) {
  const std::string key = format_count(row, "size");
  if (!half_rows_.contains(key)) {
    half_rows_[key] = row;
    return;
  }
  nlohmann::json joined = half_rows_[key];
  half_rows_.erase(key);
  for (const auto& [name, value] : row.items()) {
    const bool summed = name == "staged" || name == "direct" || name == "descriptors" ||
                        name == "verified_bytes" || name == "wrong_bytes";
    joined[name] = summed ? nlohmann::json(joined[name].get<uint64_t>() + value.get<uint64_t>()) : value;
  }
  joined["path"] = describe_path(joined);
  wrong_bytes_ += joined["wrong_bytes"].get<uint64_t>();
  verified_bytes_ += joined["verified_bytes"].get<uint64_t>();
  staged_ += joined["staged"].get<uint64_t>();
  direct_ += joined["direct"].get<uint64_t>();
  if (!options_.output.takes_stdout() && !options_.against) print_row(joined);
  rows_.push_back(std::move(joined));
}

void Report::print_row(const nlohmann::json& row) {
  print_text(table_.format_row({format_count(row, "size"), row["path"], format_count(row, "count"),
                                format_member(row, "latency_us"), format_member(row, "latency_p99_us"),
                                format_member(row, "bandwidth_gbps"), format_count(row, "staged"),
                                format_count(row, "direct"), format_count(row, "verified_bytes"),
                                format_count(row, "wrong_bytes")}));
}

void Report::finish() {
  if (options_.against || options_.output.takes_stdout()) return;
  std::printf("# %lu bytes verified, %lu wrong; %lu messages staged, %lu direct\n",
              static_cast<unsigned long>(verified_bytes_), static_cast<unsigned long>(wrong_bytes_),
              static_cast<unsigned long>(staged_), static_cast<unsigned long>(direct_));
  std::fflush(stdout);
}

void Report::fill(Result& result) const {
  result.setup = describe_setup(device_, options_);
  ResultTable& table = result.tables.emplace_back(make_message_table());
  add_message_rows(table, options_.transport, rows_);
  result.details = {{"device", device_}, {"verified_bytes", verified_bytes_}, {"wrong_bytes", wrong_bytes_}};
}

}  // namespace verbena::tools::perf
