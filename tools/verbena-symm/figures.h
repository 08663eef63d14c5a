// What the ranks measured, put together: of each sample the fastest rank's, of the samples the median.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace verbena::tools::symm {

class Figures {
 public:
  // A line of a rank: "figure NAME SAMPLES", "checked WRONG WHAT". False: neither.
  bool take(const std::string& line);

  uint64_t wrong() const { return wrong_; }
  // "ok" or "WRONG (count)", and what: a line for each check that all ranks have told of since the last call.
  std::string take_finished_checks(int ranks);
  bool has(const std::string& name) const { return samples_.count(name) != 0; }
  double median(const std::string& name) const;
  double p99(const std::string& name) const;
  // The best of the figures PREFIX/N, and its N.
  struct Best {
    double value = 0;
    std::string which;
  };
  Best best(const std::string& prefix) const;

  std::string format_table(unsigned ranks) const;
  const std::map<std::string, std::vector<double>>& samples() const { return samples_; }

 private:
  std::map<std::string, std::vector<double>> samples_;
  struct Check {
    std::string what;
    uint64_t wrong = 0;  // on all ranks
    int ranks = 0;       // that have told
  };
  std::vector<Check> checks_;  // not finished
  uint64_t wrong_ = 0;
};

}  // namespace verbena::tools::symm
