#include "verbena-unpack/report.h"

#include <cstdio>

#include "common/size.h"
#include "verbena-unpack/result_tables.h"

namespace verbena::tools::unpack {
namespace {

const char* describe_place(BouncePlace place) {
  return place == BouncePlace::kHost ? "host" : "gpu";
}

Table make_case_table() {
  return {{{"blocks", "", 6},
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
           {"#wrong", "B", 8}},
          Table::Format::kText};
}

Table make_latency_table() {
  return {{{"size", "", 6},
           {"threads", "", 7},
           {"bounce", "", 6},
           {"kernel", "", 9},
           {"min", "us", 8},
           {"median", "us", 8},
           {"p90", "us", 8},
           {"p99", "us", 8},
           {"by clock", "us", 8},
           {"host", "us", 8},
           {"#wrong", "B", 8}},
          Table::Format::kText};
}

// NCCL's code places one message a call whatever ours does, and the copy knows none: the two are not alike
// where this is above 1.
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
        " MiB L2 cache; GB/s of payload, medians of the timed launches; p99: the slowest but 1 %\n");
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
    print("#\n# One message on one block, from its count seen to its last byte stored\n" +
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

}  // namespace verbena::tools::unpack
