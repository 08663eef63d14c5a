#include "nccl-perf/report.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "common/error.h"
#include "common/table.h"
#include "nccl-perf/collective.h"

namespace verbena::tools::nccl {
namespace {

std::string make_key(const Row& row) {
  return row.operation + " " + std::to_string(row.requested_bytes);
}

// Joins texts such as "3.1 (rank 0), 2.9 (rank 1)"; a text that several ranks have appears once.
std::string join_distinct(const std::vector<NcclLog>& logs, std::string NcclLog::*member) {
  std::set<std::string> texts;
  for (const NcclLog& log : logs) texts.insert((log.*member).empty() ? "(not in the log)" : log.*member);
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : " / ") + text;
  return joined;
}

}  // namespace

Report::Report(const NcclPerfOptions& options, int ranks)
    : options_(options), ranks_(static_cast<uint32_t>(ranks)) {
  if (!options.out_file.empty()) {
    out_ = std::fopen(options.out_file.c_str(), "w");
    if (out_ == nullptr) throw ToolError("cannot write " + options.out_file + ": " + std::strerror(errno));
  }
  document_["variants"] = nlohmann::json::array();
}

Report::~Report() {
  if (out_ != nullptr) std::fclose(out_);
}

void Report::print(const std::string& text) {
  for (std::FILE* const stream : {stdout, out_}) {
    if (stream == nullptr || (stream == stdout && options_.output.takes_stdout())) continue;
    std::fputs(text.c_str(), stream);
    std::fflush(stream);
  }
}

void Report::begin(const NcclCandidate& nccl) {
  document_["nccl"] = {{"path", nccl.path}, {"version", nccl.version}, {"source", nccl.source}};
  document_["ranks"] = ranks_;
  print("# nccl-perf: NCCL " + nccl.version + " from " + nccl.path + " (" + nccl.source + "), " +
        std::to_string(ranks_) + " processes, one GPU and one node each\n");
}

void Report::begin_variant(const Variant& variant, const std::vector<std::string>& settings) {
  variant_ = variant.name;
  operation_.clear();
  if (first_variant_.empty()) first_variant_ = variant_;
  document_["variants"].push_back({{"name", variant_},
                                   {"round", round_ + 1},
                                   {"environment", settings},
                                   {"rows", nlohmann::json::array()}});
  const std::string round = options_.rounds > 1 ? ", round " + std::to_string(round_ + 1) : "";
  print("#\n# === " + variant_ + (options_.graph ? ", replayed from a CUDA graph" : "") + round + " ===\n");
  if (!options_.verbose) return;
  for (const std::string& setting : settings) print("#   " + setting + "\n");
}

bool Report::shows_ratio() const {
  return options_.rounds == 1 && variant_ != first_variant_;
}

Table Report::make_table() const {
  std::vector<Column> columns = {{"size", "B", 12}, {"count", "elements", 12}, {"type", "", 8},
                                 {"redop", "", 7},  {"root", "", 6},           {"time", "us", 10},
                                 {"p99", "us", 10}, {"algbw", "GB/s", 8},      {"busbw", "GB/s", 8},
                                 {"#wrong", "", 8}};
  if (shows_ratio()) columns.push_back({"ratio", first_variant_ + "/this", 16});
  return Table(columns);
}

void Report::add_row(const Row& row) {
  const Operation operation = parse_operation(row.operation).value();
  const Shape shape = make_shape(operation, row.requested_bytes, ranks_);
  const double algorithm_gbps = static_cast<double>(shape.size_bytes) * 1e-3 / row.time_us;
  const double bus_gbps = algorithm_gbps * compute_bus_factor(operation, ranks_);
  std::vector<std::string> cells = {std::to_string(shape.size_bytes),
                                    std::to_string(shape.count),
                                    "uint32",
                                    reduces(operation) ? "sum" : "none",
                                    operation == Operation::kBroadcast ? "0" : "-1",
                                    format_figure(row.time_us),
                                    format_figure(row.p99_us),
                                    format_figure(algorithm_gbps),
                                    format_figure(bus_gbps),
                                    options_.verify ? std::to_string(row.wrong) : "N/A"};
  nlohmann::json figures{{"operation", row.operation}, {"size_bytes", shape.size_bytes},
                         {"count", shape.count},       {"time_us", row.time_us},
                         {"p99_us", row.p99_us},       {"algbw_gbps", algorithm_gbps},
                         {"busbw_gbps", bus_gbps},     {"wrong", row.wrong}};
  result_tables_.add(variant_, row);
  comparison_.add(variant_, row);
  if (variant_ == first_variant_) first_times_us_[make_key(row)] = row.time_us;
  if (const auto first = first_times_us_.find(make_key(row));
      shows_ratio() && first != first_times_us_.end()) {
    // The ratio of bandwidths, hence the inverse ratio of times: above 1 if the first variant is faster.
    const double ratio = row.time_us / first->second;
    cells.push_back(format_figure(ratio));
    figures["ratio"] = ratio;
  }
  const Table table = make_table();
  if (operation_ != row.operation) {
    operation_ = row.operation;
    print("#\n# " + operation_ + "\n" + table.format_header());
  }
  print(table.format_row(cells));
  if (!row.soak.is_empty()) {
    print(format(row.soak));
    figures["soak"] = describe(row.soak);
  }
  wrong_elements_ += row.wrong;
  document_["variants"].back()["rows"].push_back(std::move(figures));
}

void Report::print_network(const std::vector<NcclLog>& logs) {
  const std::string assigned = join_distinct(logs, &NcclLog::assigned);
  const std::string network = join_distinct(logs, &NcclLog::network);
  const std::string loaded = join_distinct(logs, &NcclLog::loaded);
  const std::string route = join_distinct(logs, &NcclLog::route);
  bool unpack = !logs.empty();
  for (const NcclLog& log : logs) unpack = unpack && log.unpack_accepted;
  print("# NCCL assigned: " + assigned + "; using network: " + network + "; external plugin loaded: " +
        loaded + "; first route: " + route + "; UNPACK " + (unpack ? "accepted" : "not used") + "\n");
  const std::string tuner = join_distinct(logs, &NcclLog::tuner);
  print("# tuner: " + tuner + "\n");
  document_["variants"].back()["network"] = {{"assigned", assigned}, {"network", network}, {"loaded", loaded},
                                             {"route", route},       {"unpack", unpack},   {"tuner", tuner}};
}

void Report::end_variant(const std::vector<NcclLog>& logs, const std::vector<std::string>& gpu_names,
                         int status) {
  nlohmann::json& entry = document_["variants"].back();
  entry["status"] = status;
  entry["gpus"] = gpu_names;
  print_network(logs);
  constexpr size_t kShownWarnings = 5;
  for (size_t rank = 0; rank < logs.size(); ++rank) {
    const std::string prefix = "# rank " + std::to_string(rank) + " (" + gpu_names[rank] + "): ";
    for (const std::string& counters : logs[rank].counters) print(prefix + counters + "\n");
    for (size_t index = 0; index < std::min(logs[rank].warnings.size(), kShownWarnings); ++index) {
      print(prefix + "WARN " + logs[rank].warnings[index] + "\n");
    }
    entry["counters"].push_back(logs[rank].counters);
  }
}

void Report::finish() {
  if (options_.rounds > 1) {
    print("#\n# === medians of " + std::to_string(options_.rounds) + " rounds ===\n" +
          comparison_.format(ranks_));
    document_["comparison"] = comparison_.describe();
  }
  print("# " + std::to_string(wrong_elements_) + " wrong elements\n");
}

void Report::fill(Result& result) const {
  const nlohmann::json& nccl = document_.at("nccl");
  result.setup["NCCL"] =
      nccl.at("version").get<std::string>() + " from " + nccl.at("path").get<std::string>();
  result.setup["ranks"] = std::to_string(ranks_) + ", one GPU and one node each";
  result.setup["time"] =
      "median of " + std::to_string(options_.iterations) + " iterations, the slowest rank's";
  std::set<std::string> gpus, failed;
  for (const nlohmann::json& variant : document_.at("variants")) {
    if (!variant.contains("gpus")) continue;
    for (const nlohmann::json& gpu : variant["gpus"]) gpus.insert(gpu.get<std::string>());
    if (variant["status"] != 0) failed.insert(variant["name"].get<std::string>());
    result.setup["network, " + variant["name"].get<std::string>()] = variant["network"]["network"];
  }
  for (const std::string& gpu : gpus) result.setup["GPU"] = gpu;
  result.status = !failed.empty() ? "failed" : wrong_elements_ != 0 ? "wrong data" : "ok";
  result.tables = result_tables_.list(ranks_);
  result.details = document_;
  result.details["wrong"] = wrong_elements_;
}

namespace {

using Role = ResultColumn::Role;

ResultTable make_table(const std::string& operation) {
  return {operation,
          {{"operation", "operation", "", Role::kKey},
           {"variant", "variant", "", Role::kKey},
           {"size_bytes", "size", "B", Role::kKey},
           {"count", "count", "elements"},
           {"time_us", "time", "us", Role::kLower, "median", true},
           {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
           {"algbw_GBps", "algbw", "GB/s", Role::kHigher, "median"},
           {"busbw_GBps", "busbw", "GB/s", Role::kHigher, "median", true},
           {"wrong_elements", "wrong", "elements"},
           {"times_us", "", "us", Role::kSamples}}};
}

}  // namespace

void ResultTables::add(const std::string& variant, const Row& row) {
  if (!lines_.contains(row.operation)) operations_.push_back(row.operation);
  std::vector<Line>& lines = lines_[row.operation];
  auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& known) {
    return known.variant == variant && known.row.requested_bytes == row.requested_bytes;
  });
  if (line == lines.end())
    line = lines.insert(lines.end(), {variant, row, {}, {}});
  else
    line->row.wrong += row.wrong;
  line->times_us.push_back(row.time_us);
  line->p99_us.push_back(row.p99_us);
}

std::vector<ResultTable> ResultTables::list(uint32_t ranks) const {
  std::vector<ResultTable> tables;
  for (const std::string& name : operations_) {
    ResultTable& table = tables.emplace_back(make_table(name));
    const Operation operation = parse_operation(name).value();
    for (const Line& line : lines_.at(name)) {
      const Shape shape = make_shape(operation, line.row.requested_bytes, ranks);
      const double time_us = compute_median(line.times_us);
      const double algorithm_gbps = static_cast<double>(shape.size_bytes) * 1e-3 / time_us;
      table.rows.push_back({{"operation", name},
                            {"variant", line.variant},
                            {"size_bytes", shape.size_bytes},
                            {"count", shape.count},
                            {"time_us", time_us},
                            {"time_p99_us", compute_median(line.p99_us)},
                            {"algbw_GBps", algorithm_gbps},
                            {"busbw_GBps", algorithm_gbps * compute_bus_factor(operation, ranks)},
                            {"wrong_elements", line.row.wrong},
                            {"times_us", line.times_us}});
    }
  }
  return tables;
}

}  // namespace verbena::tools::nccl
