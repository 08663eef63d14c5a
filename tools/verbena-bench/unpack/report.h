#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/result.h"
#include "verbena-bench/unpack/latency.h"
#include "verbena-bench/unpack/live.h"
#include "verbena-bench/unpack/measurement.h"

namespace verbena::tools::unpack {

// The output on the screen and in files. Rows appear as they are measured.
class Report {
 public:
  // A report that is not timed prints only cases with wrong bytes. A quiet one prints nothing to standard
  // output.
  explicit Report(bool is_timed, bool is_quiet = false);

  void begin(const std::string& gpu_name, int multiprocessors, int l2_bytes);
  void add_case(const TestCase& test_case, const std::vector<Figure>& figures);
  void add_latency(const LatencyFigure& figure);
  void add_live(const LiveFigure& figure);
  void finish() const;
  // Adds everything to the stored result.
  void fill(Result& result) const;

  uint64_t wrong_bytes() const { return wrong_bytes_; }

 private:
  void print(const std::string& text) const;
  void count_wrong(const std::string& what, const Finding& finding);

  bool is_timed_;
  bool is_quiet_;
  uint64_t cases_ = 0;
  uint64_t wrong_bytes_ = 0;
  // A table for each number of blocks, since cases of few blocks and of the whole GPU differ by an order of
  // magnitude.
  std::map<uint32_t, ResultTable> case_tables_;
  ResultTable latencies_, lives_;
  nlohmann::json setup_ = nlohmann::json::object();
};

}  // namespace verbena::tools::unpack
