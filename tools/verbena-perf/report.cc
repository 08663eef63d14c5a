#include "verbena-perf/report.h"

#include <cstdio>

namespace verbena::tools::perf {
namespace {

std::vector<Column> list_columns(bool has_last) {
  std::vector<Column> columns{{"size", "B", 11},     {"path", "", 7},       {"iters", "", 6},
                              {"lat med", "us", 9},  {"lat p99", "us", 9},  {"bw", "GB/s", 8},
                              {"staged", "msgs", 8}, {"direct", "msgs", 8}, {"verified", "B", 12},
                              {"wrong", "B", 8}};
  if (!has_last) return columns;
  columns.push_back({"last: lat", "us", 11});
  columns.push_back({"last: bw", "GB/s", 10});
  return columns;
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

// Flushes, so that a run that fails shows all its rows.
void print_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

Report::Report(const PerfOptions& options) : options_(options), table_(list_columns(options.pairs > 1)) {}

void Report::add_device(const nlohmann::json& device) {
  if (!device_.is_null()) return;
  device_ = device;
  if (options_.output.takes_stdout() || options_.against) return;
  std::printf(
      "# plugin %s, table v%d, transport %s, device %s, %d Mb/s, unpack %s, protocol %s, window %u\n"
      "# lat: half a round trip of one message; bw: one way, --window messages at once, median of passes\n",
      device["plugin"].get<std::string>().c_str(), device["abi"].get<int>(),
      device["transport"].get<std::string>().c_str(), device["name"].get<std::string>().c_str(),
      device["speed_mbps"].get<int>(), device["unpack"].get<bool>() ? "on" : "off",
      describe_protocol(options_.protocol), options_.window);
  if (options_.pairs > 1)
    std::printf(
        "# %u connections in each direction carry messages; \"last\" is the connection that was set up "
        "last\n",
        options_.pairs);
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
  std::vector<std::string> cells{format_count(row, "size"),
                                 row["path"],
                                 format_count(row, "count"),
                                 format_member(row, "latency_us"),
                                 format_member(row, "latency_p99_us"),
                                 format_member(row, "bandwidth_gbps"),
                                 format_count(row, "staged"),
                                 format_count(row, "direct"),
                                 format_count(row, "verified_bytes"),
                                 format_count(row, "wrong_bytes")};
  if (options_.pairs > 1) {
    cells.push_back(format_member(row, "last_latency_us"));
    cells.push_back(format_member(row, "last_bandwidth_gbps"));
  }
  print_text(table_.format_row(cells));
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
  add_message_rows(table, device_.is_object() ? device_["transport"].get<std::string>() : "", rows_);
  result.details = {{"device", device_}, {"verified_bytes", verified_bytes_}, {"wrong_bytes", wrong_bytes_}};
}

namespace {

using Role = ResultColumn::Role;

// The name of a figure in a worker's line, and in the stored result.
struct Renamed {
  const char* from;
  const char* to;
};
constexpr Renamed kMembers[] = {{"size", "size_bytes"},
                                {"path", "path"},
                                {"count", "messages"},
                                {"latency_us", "latency_us"},
                                {"latency_p99_us", "latency_p99_us"},
                                {"latency_min_us", "latency_min_us"},
                                {"bandwidth_gbps", "bandwidth_GBps"},
                                {"bandwidth_min_gbps", "bandwidth_min_GBps"},
                                {"last_latency_us", "last_latency_us"},
                                {"last_bandwidth_gbps", "last_bandwidth_GBps"},
                                {"staged", "staged_messages"},
                                {"direct", "direct_messages"},
                                {"descriptors", "descriptors"},
                                {"verified_bytes", "verified_bytes"},
                                {"wrong_bytes", "wrong_bytes"},
                                {"latency_passes_us", "latency_passes_us"},
                                {"bandwidth_passes_gbps", "bandwidth_passes_GBps"}};

}  // namespace

const char* describe_transport(Transport transport) {
  static constexpr const char* kNames[] = {"verbena", "datagram", "nccl-ib"};
  return kNames[static_cast<size_t>(transport)];
}

ResultTable make_message_table() {
  return {"messages",
          {{"transport", "transport", "", Role::kKey},
           {"size_bytes", "size", "B", Role::kKey},
           {"path", "path", ""},
           {"messages", "messages", ""},
           {"latency_us", "latency", "us", Role::kLower, "median", true},
           {"latency_p99_us", "latency p99", "us", Role::kLower, "p99", true},
           {"latency_min_us", "latency min", "us", Role::kLower, "best"},
           {"bandwidth_GBps", "bandwidth", "GB/s", Role::kHigher, "median", true},
           {"bandwidth_min_GBps", "bandwidth min", "GB/s", Role::kHigher, "worst"},
           {"last_latency_us", "latency, last pair", "us", Role::kLower, "median"},
           {"last_bandwidth_GBps", "bandwidth, last pair", "GB/s", Role::kHigher, "median"},
           {"staged_messages", "staged", "messages"},
           {"direct_messages", "direct", "messages"},
           {"descriptors", "descriptors", ""},
           {"verified_bytes", "verified", "B"},
           {"wrong_bytes", "wrong", "B"},
           {"latency_passes_us", "", "us", Role::kSamples},
           {"bandwidth_passes_GBps", "", "GB/s", Role::kSamples}}};
}

void add_message_rows(ResultTable& table, const std::string& transport, const nlohmann::json& rows) {
  for (const nlohmann::json& row : rows) {
    nlohmann::json& stored = table.rows.emplace_back(nlohmann::json{{"transport", transport}});
    for (const Renamed& member : kMembers) {
      if (row.contains(member.from)) stored[member.to] = row[member.from];
    }
  }
}

nlohmann::json describe_setup(const nlohmann::json& device, const PerfOptions& options) {
  nlohmann::json setup{{"protocol", describe_protocol(options.protocol)},
                       {"window", std::to_string(options.window) + " messages"},
                       {"rails", std::to_string(options.rails)}};
  if (options.pairs > 1) setup["connections"] = std::to_string(options.pairs) + " in each direction";
  if (device.is_object()) {
    setup["transport"] =
        device["plugin"].get<std::string>() + ", table v" + std::to_string(device["abi"].get<int>());
    setup["device"] =
        device["name"].get<std::string>() + ", " + std::to_string(device["speed_mbps"].get<int>()) + " Mb/s";
    setup["unpack"] = device["unpack"].get<bool>() ? "on" : "off";
  }
  if (!options.client.empty()) setup["server"] = options.client;
  return setup;
}

}  // namespace verbena::tools::perf
