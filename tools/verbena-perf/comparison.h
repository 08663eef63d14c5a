#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "verbena-perf/options.h"
#include "verbena-perf/report.h"

namespace verbena::tools::perf {

// Joins the runs of both transports: medians of all passes, the best and worst of them, and how many times
// better the plugin is.
class Comparison {
 public:
  void add_run(Transport transport, const Report& report);
  // Unless standard output is for the result alone.
  void print(const Options& options) const;
  void fill(Result& result, const Options& options) const;

 private:
  struct Figures {
    std::vector<double> latency_us;
    std::vector<double> latency_p99_us;  // of each run
    double latency_min_us = 0;
    std::vector<double> bandwidth_gbps;
    uint64_t wrong_bytes = 0;
    uint64_t messages = 0;  // of a pass
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
