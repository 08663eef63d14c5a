#pragma once
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/table.h"
#include "nccl-perf/comparison.h"
#include "nccl-perf/nccl_log.h"
#include "nccl-perf/nccl_search.h"
#include "nccl-perf/options.h"
#include "nccl-perf/result_tables.h"
#include "nccl-perf/run.h"
#include "nccl-perf/variant.h"

namespace verbena::tools::nccl {

// nccl-tests' tables, one an operation, for each variant; from the second on with a ratio to the first. Of
// several rounds, the comparison of all at the end instead.
class Report {
 public:
  // Throws ToolError when a file cannot be written.
  Report(const Options& options, int ranks);
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  ~Report();

  void begin(const NcclCandidate& nccl);
  void begin_round(int round) { round_ = round; }
  void begin_variant(const Variant& variant, const std::vector<std::string>& settings);
  void add_row(const Row& row);
  // What NCCL's logs say about the network, and the plugin's counters.
  void end_variant(const std::vector<NcclLog>& logs, const std::vector<std::string>& gpu_names, int status);
  void finish();
  // What is stored of everything.
  void fill(Result& result) const;

  uint64_t wrong_elements() const { return wrong_elements_; }

 private:
  void print(const std::string& text);
  void print_network(const std::vector<NcclLog>& logs);
  bool shows_ratio() const;
  Table make_table() const;

  const Options& options_;
  uint32_t ranks_;
  std::FILE* out_ = nullptr;
  std::string first_variant_;
  std::string variant_;
  std::string operation_;  // whose table is being printed
  std::map<std::string, double> first_times_us_;
  int round_ = 0;
  Comparison comparison_;
  ResultTables result_tables_;
  nlohmann::json document_;
  uint64_t wrong_elements_ = 0;
};

}  // namespace verbena::tools::nccl
