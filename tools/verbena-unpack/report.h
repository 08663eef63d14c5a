#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/table.h"
#include "verbena-unpack/latency.h"
#include "verbena-unpack/live.h"
#include "verbena-unpack/measurement.h"

namespace verbena::tools::unpack {

// What is printed and what is written to files. Rows appear as they are measured.
class Report {
 public:
  // A check alone has no figures: only its wrong cases are printed. A quiet one leaves standard output alone.
  explicit Report(bool is_timed, bool is_quiet = false) : is_timed_(is_timed), is_quiet_(is_quiet) {}

  void begin(const std::string& gpu_name, int multiprocessors, int l2_bytes);
  void add_case(const TestCase& test_case, const std::vector<Figure>& figures);
  void add_latency(const LatencyFigure& figure);
  void add_live(const LiveFigure& figure);
  void finish() const;
  // What is stored of everything.
  void fill(Result& result) const;

  uint64_t wrong_bytes() const { return wrong_bytes_; }

 private:
  void print(const std::string& text) const;
  void count_wrong(const std::string& what, const Finding& finding);

  bool is_timed_;
  bool is_quiet_;
  bool has_latency_header_ = false;
  uint64_t cases_ = 0;
  uint64_t wrong_bytes_ = 0;
  nlohmann::json document_{{"cases", nlohmann::json::array()},
                           {"latency", nlohmann::json::array()},
                           {"live", nlohmann::json::array()}};
};

}  // namespace verbena::tools::unpack
