#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "verbena-perf/options.h"
#include "verbena-perf/report.h"

namespace verbena::tools::perf {

// Joins the runs of both transports: the median, best and worst of all passes, and the factor by which the
// plugin is better.
class Comparison {
 public:
  void add_run(Transport transport, const Report& report);
  // Does nothing if standard output is reserved for the result.
  void print(const PerfOptions& options) const;
  void fill(Result& result, const PerfOptions& options) const;

 private:
  struct Figures {
    std::vector<double> latency_us;
    std::vector<double> latency_p99_us;  // one for each run
    double latency_min_us = 0;
    std::vector<double> bandwidth_gbps;
    uint64_t wrong_bytes = 0;
    uint64_t messages = 0;  // in one pass
    std::string path;
  };
  struct Side {
    nlohmann::json device;
    std::map<uint64_t, Figures> sizes;
  };

  static nlohmann::json list_rows(const Side& side);

  Side ours_, theirs_;
};

}  // namespace verbena::tools::perf
