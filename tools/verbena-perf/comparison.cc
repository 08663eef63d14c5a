#include "verbena-perf/comparison.h"

#include <algorithm>
#include <cstdio>

#include "common/table.h"

namespace verbena::tools::perf {
namespace {

std::vector<Column> list_compared_columns() {
  return {{"size", "B", 10},      {"path", "", 7},     {"latency", "us", 9},   {"min", "us", 9},
          {"ib", "us", 9},        {"ib min", "us", 9}, {"faster", "times", 7}, {"bw", "GB/s", 8},
          {"min", "GB/s", 8},     {"ib", "GB/s", 8},   {"ib min", "GB/s", 8},  {"higher", "times", 7},
          {"samples", "each", 8}, {"wrong", "B", 6}};
}

std::string format_optional(bool there, double value) {
  return there ? format_figure(value) : "-";
}

void append(std::vector<double>& samples, const nlohmann::json& row, const char* name) {
  if (!row.contains(name)) return;
  const auto added = row.at(name).get<std::vector<double>>();
  samples.insert(samples.end(), added.begin(), added.end());
}

double find_smallest(const std::vector<double>& samples) {
  return samples.empty() ? 0 : *std::min_element(samples.begin(), samples.end());
}

}  // namespace

void Comparison::add_run(Transport transport, const Report& report) {
  Side& side = transport == Transport::kVerbena ? ours_ : theirs_;
  side.device = report.device();
  for (const nlohmann::json& row : report.rows()) {
    Figures& figures = side.sizes[row.at("size")];
    append(figures.latency_us, row, "latency_passes_us");
    append(figures.bandwidth_gbps, row, "bandwidth_passes_gbps");
    if (row.contains("latency_p99_us")) figures.latency_p99_us.push_back(row.at("latency_p99_us"));
    if (row.contains("latency_min_us")) {
      const double min_us = row.at("latency_min_us");
      figures.latency_min_us =
          figures.latency_min_us == 0 ? min_us : std::min(figures.latency_min_us, min_us);
    }
    figures.wrong_bytes += row.at("wrong_bytes").get<uint64_t>();
    figures.messages = row.at("count");
    figures.path = row.at("path");
  }
}

void Comparison::fill(Result& result, const PerfOptions& options) const {
  result.setup = describe_setup(ours_.device, options);
  if (theirs_.device.is_object()) result.setup["against"] = theirs_.device["plugin"];
  ResultTable& table = result.tables.emplace_back(make_message_table());
  add_message_rows(table, describe_transport(Transport::kVerbena), list_rows(ours_));
  add_message_rows(table, describe_transport(Transport::kNcclIb), list_rows(theirs_));
  result.details = {{"verbena", ours_.device}, {"nccl_ib", theirs_.device}};
}

nlohmann::json Comparison::list_rows(const Side& side) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [size, figures] : side.sizes) {
    nlohmann::json row{{"size", size},
                       {"path", figures.path},
                       {"count", figures.messages},
                       {"wrong_bytes", figures.wrong_bytes}};
    if (!figures.latency_us.empty()) {
      row["latency_us"] = compute_median(figures.latency_us);
      row["latency_p99_us"] = compute_median(figures.latency_p99_us);
      row["latency_min_us"] = figures.latency_min_us;
      row["latency_passes_us"] = figures.latency_us;
    }
    if (!figures.bandwidth_gbps.empty()) {
      row["bandwidth_gbps"] = compute_median(figures.bandwidth_gbps);
      row["bandwidth_min_gbps"] = find_smallest(figures.bandwidth_gbps);
      row["bandwidth_passes_gbps"] = figures.bandwidth_gbps;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void Comparison::print(const PerfOptions& options) const {
  if (options.output.takes_stdout()) return;
  for (const Side* side : {&ours_, &theirs_}) {
    if (side->device.is_null()) continue;
    std::printf("# %s: %s, table v%d, device %s\n", side == &ours_ ? "verbena" : "ib",
                side->device["plugin"].get<std::string>().c_str(), side->device["abi"].get<int>(),
                side->device["name"].get<std::string>().c_str());
  }
  const Table table(list_compared_columns());
  std::fputs(table.format_header().c_str(), stdout);
  for (const auto& [size, ours] : ours_.sizes) {
    const auto found = theirs_.sizes.find(size);
    if (found == theirs_.sizes.end()) continue;
    const Figures& theirs = found->second;
    const double our_us = compute_median(ours.latency_us), their_us = compute_median(theirs.latency_us);
    const double our_gbps = compute_median(ours.bandwidth_gbps),
                 their_gbps = compute_median(theirs.bandwidth_gbps);
    const bool has_latency = our_us > 0 && their_us > 0;
    const bool has_bandwidth = our_gbps > 0 && their_gbps > 0;
    const size_t samples = std::max(ours.latency_us.size(), ours.bandwidth_gbps.size());
    const std::vector<std::string> cells{std::to_string(size),
                                         ours.path,
                                         format_optional(has_latency, our_us),
                                         format_optional(has_latency, ours.latency_min_us),
                                         format_optional(has_latency, their_us),
                                         format_optional(has_latency, theirs.latency_min_us),
                                         format_optional(has_latency, their_us / our_us),
                                         format_optional(has_bandwidth, our_gbps),
                                         format_optional(has_bandwidth, find_smallest(ours.bandwidth_gbps)),
                                         format_optional(has_bandwidth, their_gbps),
                                         format_optional(has_bandwidth, find_smallest(theirs.bandwidth_gbps)),
                                         format_optional(has_bandwidth, our_gbps / their_gbps),
                                         std::to_string(samples),
                                         std::to_string(ours.wrong_bytes + theirs.wrong_bytes)};
    std::fputs(table.format_row(cells).c_str(), stdout);
  }
  std::fflush(stdout);
}

}  // namespace verbena::tools::perf
