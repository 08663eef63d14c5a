#include "verbena-bench/unpack/report.h"

#include <cstdio>
#include <map>

#include "common/size.h"

namespace verbena::tools::unpack {
namespace {

const char* describe_place(BouncePlace place) {
  return place == BouncePlace::kHost ? "host" : "gpu";
}

Table make_case_table() {
  return Table(std::vector<Column>{{"blocks", "", 6},
                                   {"threads", "", 7},
                                   {"page", "", 6},
                                   {"slice", "", 6},
                                   {"src", "B", 4},
                                   {"dst", "B", 4},
                                   {"slots", "", 5},
                                   {"once", "", 4},
                                   {"bounce", "", 6},
                                   {"kernel", "", 9},
                                   {"a block", "GB/s", 8},
                                   {"in all", "GB/s", 8},
                                   {"p99", "GB/s", 8},
                                   {"best", "GB/s", 8},
                                   {"of copy", "", 8},
                                   {"#wrong", "B", 8}});
}

Table make_latency_table() {
  return Table(std::vector<Column>{{"size", "", 6},
                                   {"threads", "", 7},
                                   {"bounce", "", 6},
                                   {"kernel", "", 9},
                                   {"min", "us", 8},
                                   {"median", "us", 8},
                                   {"p90", "us", 8},
                                   {"p99", "us", 8},
                                   {"by clock", "us", 8},
                                   {"host", "us", 8},
                                   {"#wrong", "B", 8}});
}

// The number of messages per call. NCCL's code always unpacks one, and the copy has none: compare rows
// with 1.
std::string describe_at_once(const TestCase& test_case, Mover mover) {
  if (mover == Mover::kCopy) return "-";
  return mover == Mover::kNccl ? "1" : std::to_string(test_case.at_once);
}

double find_copy(const std::vector<Figure>& figures) {
  for (const Figure& figure : figures)
    if (figure.mover == Mover::kCopy) return figure.gbps;
  return 0;
}

nlohmann::json describe_case(const TestCase& test_case) {
  return {{"blocks", test_case.blocks},
          {"threads", test_case.threads},
          {"page", test_case.pages.describe()},
          {"slice_bytes", test_case.slice_bytes},
          {"source_align", test_case.source_align},
          {"destination_align", test_case.destination_align},
          {"slots", test_case.slots},
          {"at_once", test_case.at_once},
          {"bounce", describe_place(test_case.bounce)},
          {"name", test_case.describe()},
          {"kernels", nlohmann::json::object()}};
}

}  // namespace

void Report::begin(const std::string& gpu_name, int multiprocessors, int l2_bytes) {
  document_["gpu"] = {{"name", gpu_name}, {"multiprocessors", multiprocessors}, {"l2_bytes", l2_bytes}};
  print("# verbena-unpack: " + gpu_name + ", " + std::to_string(multiprocessors) + " multiprocessors, " +
        std::to_string(l2_bytes >> 20) +
        " MiB L2 cache; GB/s of payload, medians of the timed launches; p99: the 99th percentile\n");
  if (is_timed_) print(make_case_table().format_header());
}

void Report::print(const std::string& text) const {
  if (is_quiet_) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void Report::count_wrong(const std::string& what, const Finding& finding) {
  wrong_bytes_ += finding.wrong_bytes;
  if (finding.wrong_bytes == 0) return;
  print("# WRONG: " + what + ": " + std::to_string(finding.wrong_bytes) + " bytes, " + finding.where + "\n");
}

void Report::add_case(const TestCase& test_case, const std::vector<Figure>& figures) {
  const Table table = make_case_table();
  const double copy_gbps = find_copy(figures);
  nlohmann::json entry = describe_case(test_case);
  for (const Figure& figure : figures) {
    const char* const name = describe_mover(figure.mover);
    const double a_block_gbps = figure.gbps / test_case.blocks;
    const double of_copy = copy_gbps > 0 ? figure.gbps / copy_gbps : 0;
    const std::string at_once = describe_at_once(test_case, figure.mover);
    entry["kernels"][name] = {{"gbps", figure.gbps},
                              {"gbps_a_block", a_block_gbps},
                              {"best_gbps", figure.best_gbps},
                              {"p99_gbps", figure.p99_gbps},
                              {"of_copy", of_copy},
                              {"at_once", at_once},
                              {"wrong_bytes", figure.finding.wrong_bytes}};
    ++cases_;
    if (is_timed_) {
      const std::string row = table.format_row(
          {std::to_string(test_case.blocks), std::to_string(test_case.threads), test_case.pages.describe(),
           format_size(test_case.slice_bytes), std::to_string(test_case.source_align),
           std::to_string(test_case.destination_align), std::to_string(test_case.slots), at_once,
           describe_place(test_case.bounce), name, format_figure(a_block_gbps), format_figure(figure.gbps),
           format_figure(figure.p99_gbps), format_figure(figure.best_gbps),
           copy_gbps > 0 ? format_figure(of_copy) : "-",
           figure.mover == Mover::kCopy ? "-" : std::to_string(figure.finding.wrong_bytes)});
      print(row);
    }
    count_wrong(test_case.describe() + ", " + name, figure.finding);
  }
  document_["cases"].push_back(std::move(entry));
}

void Report::add_latency(const LatencyFigure& figure) {
  const Table table = make_latency_table();
  if (!has_latency_header_) {
    print("#\n# Latency of one message on one block, from reading its count to storing its last byte\n" +
          table.format_header());
  }
  has_latency_header_ = true;
  const char* const name = describe_mover(figure.mover);
  print(table.format_row({format_size(figure.message_bytes), std::to_string(figure.threads),
                          describe_place(figure.bounce), name, format_figure(figure.min_us),
                          format_figure(figure.median_us), format_figure(figure.p90_us),
                          format_figure(figure.p99_us), format_figure(figure.clock_median_us),
                          format_figure(figure.host_median_us), std::to_string(figure.finding.wrong_bytes)}));
  document_["latency"].push_back({{"kernel", name},
                                  {"threads", figure.threads},
                                  {"bounce", describe_place(figure.bounce)},
                                  {"message_bytes", figure.message_bytes},
                                  {"min_us", figure.min_us},
                                  {"median_us", figure.median_us},
                                  {"p90_us", figure.p90_us},
                                  {"p99_us", figure.p99_us},
                                  {"clock_median_us", figure.clock_median_us},
                                  {"host_median_us", figure.host_median_us},
                                  {"wrong_bytes", figure.finding.wrong_bytes}});
  ++cases_;
  count_wrong(std::string("latency, ") + name, figure.finding);
}

void Report::add_live(const LiveFigure& figure) {
  print("# live, " + figure.device + ": " + std::to_string(figure.messages) + " messages of " +
        format_size(figure.message_bytes) + ", " + std::to_string(figure.staged) + " staged, " +
        std::to_string(figure.descriptors) + " descriptors, " + std::to_string(figure.finding.wrong_bytes) +
        " bytes wrong\n");
  document_["live"].push_back({{"device", figure.device},
                               {"message_bytes", figure.message_bytes},
                               {"messages", figure.messages},
                               {"staged", figure.staged},
                               {"descriptors", figure.descriptors},
                               {"wrong_bytes", figure.finding.wrong_bytes}});
  ++cases_;
  count_wrong("live", figure.finding);
}

void Report::finish() const {
  print("# " + std::to_string(cases_) + " runs checked, " + std::to_string(wrong_bytes_) + " wrong bytes\n");
}

void Report::fill(Result& result) const {
  const nlohmann::json& gpu = document_.value("gpu", nlohmann::json::object());
  if (gpu.contains("name")) {
    result.setup["GPU"] = gpu["name"];
    result.setup["multiprocessors"] = gpu["multiprocessors"];
    result.setup["L2 cache"] = format_size(gpu["l2_bytes"].get<uint64_t>()) + "B";
  }
  result.status = wrong_bytes_ == 0 ? "ok" : "wrong data";
  result.tables = list_result_tables(document_);
  result.details = document_;
  result.details["wrong_bytes"] = wrong_bytes_;
}

namespace {
using nlohmann::json;
using Role = ResultColumn::Role;

ResultTable make_case_result(uint64_t blocks) {
  return {"unpacking, " + std::to_string(blocks) + " blocks",
          {{"blocks", "blocks", "", Role::kKey},
           {"threads", "threads", "", Role::kKey},
           {"page", "page", "B", Role::kKey},
           {"slice_bytes", "slice", "B", Role::kKey},
           {"source_align", "src", "B", Role::kKey},
           {"destination_align", "dst", "B", Role::kKey},
           {"slots", "slots", "", Role::kKey},
           {"at_once", "at once", "", Role::kKey},
           {"bounce", "bounce", "", Role::kKey},
           {"kernel", "kernel", "", Role::kKey, "", true},
           {"gbps", "in all", "GB/s", Role::kHigher, "median", true},
           {"gbps_a_block", "a block", "GB/s", Role::kHigher, "median"},
           {"p99_gbps", "p99", "GB/s", Role::kHigher, "p99"},
           {"best_gbps", "best", "GB/s", Role::kHigher, "best"},
           {"of_copy", "of copy", ""},
           {"wrong_bytes", "wrong", "B"}}};
}

ResultTable make_latency_result() {
  return {"latency of one message",
          {{"message_bytes", "size", "B", Role::kKey},
           {"threads", "threads", "", Role::kKey},
           {"bounce", "bounce", "", Role::kKey},
           {"kernel", "kernel", "", Role::kKey, "", true},
           {"median_us", "latency", "us", Role::kLower, "median", true},
           {"p99_us", "p99", "us", Role::kLower, "p99", true},
           {"p90_us", "p90", "us", Role::kLower, "p90"},
           {"min_us", "min", "us", Role::kLower, "best"},
           {"clock_median_us", "by clock", "us", Role::kLower, "median"},
           {"host_median_us", "host", "us", Role::kLower, "median"},
           {"wrong_bytes", "wrong", "B"}}};
}

ResultTable make_live_result() {
  return {"live connection",
          {{"device", "device", "", Role::kKey},
           {"message_bytes", "size", "B", Role::kKey},
           {"messages", "messages", ""},
           {"staged", "staged", "messages"},
           {"descriptors", "descriptors", ""},
           {"wrong_bytes", "wrong", "B"}}};
}

// Adds a row for each kernel: the members of its case, and its own. Columns of units follow the schema's
// names.
void add_case(ResultTable& table, const json& entry) {
  for (const auto& [kernel, figures] : entry.at("kernels").items()) {
    json row = entry;
    row.erase("kernels");
    row.erase("name");
    row.update(figures);
    row["at_once"] = entry.at("at_once");
    row["kernel"] = kernel;
    if (row["gbps"] == 0) {
      for (const char* untimed : {"gbps", "gbps_a_block", "p99_gbps", "best_gbps", "of_copy"})
        row.erase(untimed);
    }
    table.rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<ResultTable> list_result_tables(const json& document) {
  std::map<uint64_t, ResultTable> by_blocks;
  for (const json& entry : document.at("cases")) {
    const uint64_t blocks = entry.at("blocks");
    add_case(by_blocks.try_emplace(blocks, make_case_result(blocks)).first->second, entry);
  }
  std::vector<ResultTable> tables;
  tables.reserve(by_blocks.size());
  for (auto& [blocks, table] : by_blocks) tables.push_back(std::move(table));
  ResultTable latency = make_latency_result(), live = make_live_result();
  for (const json& row : document.at("latency")) latency.rows.push_back(row);
  for (const json& row : document.at("live")) live.rows.push_back(row);
  for (ResultTable* table : {&latency, &live}) {
    if (!table->rows.empty()) tables.push_back(std::move(*table));
  }
  return tables;
}

}  // namespace verbena::tools::unpack
