#pragma once
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/nccl_search.h"
#include "common/result.h"
#include "common/table.h"
#include "nccl-perf/comparison.h"
#include "nccl-perf/nccl_log.h"
#include "nccl-perf/options.h"
#include "nccl-perf/run.h"
#include "nccl-perf/variant.h"

namespace verbena::tools::nccl {

// The tables that are stored. Each operation has one table, with medians if there are several rounds.
class ResultTables {
 public:
  void add(const std::string& variant, const Row& row);
  std::vector<ResultTable> list(uint32_t ranks) const;

 private:
  struct Line {
    std::string variant;
    Row row;                       // figures of the last round, with the wrong elements of all rounds
    std::vector<double> times_us;  // one for each round
    std::vector<double> p99_us;
  };
  std::map<std::string, std::vector<Line>> lines_;  // by operation
  std::vector<std::string> operations_;             // in order of appearance
};

// Prints tables in the style of nccl-tests, one per operation and variant; from the second variant on with a
// ratio to the first. With several rounds, prints the comparison of all at the end instead.
class Report {
 public:
  // Throws ToolError if a file cannot be written.
  Report(const NcclPerfOptions& options, int ranks);
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  ~Report();

  void begin(const NcclCandidate& nccl);
  void begin_round(int round) { round_ = round; }
  void begin_variant(const Variant& variant, const std::vector<std::string>& settings);
  void add_row(const Row& row);
  // Prints what NCCL's logs report about the network, and the plugin's counters.
  void end_variant(const std::vector<NcclLog>& logs, const std::vector<std::string>& gpu_names, int status);
  void finish();
  // Adds all tables to the result to be stored.
  void fill(Result& result) const;

  uint64_t wrong_elements() const { return wrong_elements_; }

 private:
  void print(const std::string& text);
  void print_network(const std::vector<NcclLog>& logs);
  bool shows_ratio() const;
  Table make_table() const;

  const NcclPerfOptions& options_;
  uint32_t ranks_;
  std::FILE* out_ = nullptr;
  std::string first_variant_;
  std::string variant_;
  std::string operation_;  // of the current table
  std::map<std::string, double> first_times_us_;
  int round_ = 0;
  Comparison comparison_;
  ResultTables result_tables_;
  nlohmann::json document_;
  uint64_t wrong_elements_ = 0;
};

}  // namespace verbena::tools::nccl
