#include "verbena-bench/unpack/report.h"

#include <cstdio>

#include "common/size.h"
#include "common/table.h"

namespace verbena::tools::unpack {
namespace {

using Role = ResultColumn::Role;

const char* describe_place(BouncePlace place) {
  return place == BouncePlace::kHost ? "host" : "gpu";
}

ResultTable make_case_table(uint32_t blocks) {
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

ResultTable make_latency_table() {
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

ResultTable make_live_table() {
  return {"live connection",
          {{"device", "device", "", Role::kKey},
           {"message_bytes", "size", "B", Role::kKey},
           {"messages", "messages", ""},
           {"staged", "staged", "messages"},
           {"descriptors", "descriptors", ""},
           {"wrong_bytes", "wrong", "B"}}};
}

// Rows are printed as they are measured: the columns are wide enough for the longest name of a kernel.
ResultTable stretch(ResultTable table) {
  table.rows = {{{"kernel", describe_mover(Mover::kRegisters)}}};
  return table;
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

}  // namespace

Report::Report(bool is_timed, bool is_quiet)
    : is_timed_(is_timed), is_quiet_(is_quiet), latencies_(make_latency_table()), lives_(make_live_table()) {}

void Report::begin(const std::string& gpu_name, int multiprocessors, int l2_bytes) {
  setup_ = {{"GPU", gpu_name},
            {"multiprocessors", multiprocessors},
            {"L2 cache", format_size(static_cast<uint64_t>(l2_bytes)) + "B"}};
  print("# verbena-bench unpack: " + gpu_name + ", " + std::to_string(multiprocessors) +
        " multiprocessors, " + std::to_string(l2_bytes >> 20) +
        " MiB L2 cache; GB/s of payload, medians of the timed launches; p99: the 99th percentile\n");
  if (is_timed_) print(make_text_table(stretch(make_case_table(0))).format_header());
}

void Report::print(const std::string& text) const {
  if (is_quiet_) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void Report::count_wrong(const std::string& what, const Finding& finding) {
  ++cases_;
  wrong_bytes_ += finding.wrong_bytes;
  if (finding.wrong_bytes == 0) return;
  print("# WRONG: " + what + ": " + std::to_string(finding.wrong_bytes) + " bytes, " + finding.where + "\n");
}

void Report::add_case(const TestCase& test_case, const std::vector<Figure>& figures) {
  const double copy_gbps = find_copy(figures);
  for (const Figure& figure : figures) {
    nlohmann::json row = {{"blocks", test_case.blocks},
                          {"threads", test_case.threads},
                          {"page", test_case.pages.describe()},
                          {"slice_bytes", test_case.slice_bytes},
                          {"source_align", test_case.source_align},
                          {"destination_align", test_case.destination_align},
                          {"slots", test_case.slots},
                          {"at_once", describe_at_once(test_case, figure.mover)},
                          {"bounce", describe_place(test_case.bounce)},
                          {"kernel", describe_mover(figure.mover)},
                          {"wrong_bytes", figure.finding.wrong_bytes}};
    if (figure.gbps != 0)
      row.update({{"gbps", figure.gbps},
                  {"gbps_a_block", figure.gbps / test_case.blocks},
                  {"p99_gbps", figure.p99_gbps},
                  {"best_gbps", figure.best_gbps}});
    if (copy_gbps > 0) row["of_copy"] = figure.gbps / copy_gbps;
    if (is_timed_) print(format_text_row(stretch(make_case_table(0)), row));
    case_tables_.try_emplace(test_case.blocks, make_case_table(test_case.blocks))
        .first->second.rows.push_back(std::move(row));
    count_wrong(test_case.describe() + ", " + describe_mover(figure.mover), figure.finding);
  }
}

void Report::add_latency(const LatencyFigure& figure) {
  if (latencies_.rows.empty())
    print(
        "#\n# Latency of one message on one block, from the read of the message's count to the store of the "
        "last byte\n" +
        make_text_table(stretch(latencies_)).format_header());
  const char* const name = describe_mover(figure.mover);
  const nlohmann::json row = {{"kernel", name},
                              {"threads", figure.threads},
                              {"bounce", describe_place(figure.bounce)},
                              {"message_bytes", figure.message_bytes},
                              {"min_us", figure.min_us},
                              {"median_us", figure.median_us},
                              {"p90_us", figure.p90_us},
                              {"p99_us", figure.p99_us},
                              {"clock_median_us", figure.clock_median_us},
                              {"host_median_us", figure.host_median_us},
                              {"wrong_bytes", figure.finding.wrong_bytes}};
  print(format_text_row(stretch(make_latency_table()), row));
  latencies_.rows.push_back(row);
  count_wrong(std::string("latency, ") + name, figure.finding);
}

void Report::add_live(const LiveFigure& figure) {
  const nlohmann::json row = {
      {"device", figure.device},           {"message_bytes", figure.message_bytes},
      {"messages", figure.messages},       {"staged", figure.staged},
      {"descriptors", figure.descriptors}, {"wrong_bytes", figure.finding.wrong_bytes}};
  lives_.rows.push_back(row);
  if (lives_.rows.size() == 1) print(make_text_table(lives_).format_header());
  print(format_text_row(lives_, row));
  count_wrong("live", figure.finding);
}

void Report::finish() const {
  print("# " + std::to_string(cases_) + " runs checked, " + std::to_string(wrong_bytes_) + " wrong bytes\n");
}

void Report::fill(Result& result) const {
  result.setup = setup_;
  for (const auto& [blocks, table] : case_tables_) result.tables.push_back(table);
  for (const ResultTable& table : {latencies_, lives_})
    if (!table.rows.empty()) result.tables.push_back(table);
}

}  // namespace verbena::tools::unpack
