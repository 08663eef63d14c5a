// Joins the reports of all ranks. A report's lines are "figure NAME SAMPLES", "checked WRONG WHAT", "bits
// HASH WHAT" and "gpu NAME".
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace verbena::tools::bench {

class Figures {
 public:
  // The rank whose time of a sample counts.
  enum class Join : uint8_t { kFastest, kSlowest };

  Figures(unsigned ranks, Join join) : ranks_(ranks), join_(join) {}

  // Takes a line of a report. Returns false if it is not one of the four kinds.
  bool take(const std::string& line);
  // Returns a line with "ok" or "WRONG (count)" for each check that all ranks have finished since the last
  // call. The check of a measurement needs no line if the data is right.
  std::string take_finished_checks();

  unsigned ranks() const { return ranks_; }
  uint64_t wrong() const { return wrong_; }
  const std::string& gpu() const { return gpu_; }
  const std::map<std::string, std::vector<double>>& samples() const { return samples_; }
  // Empty if there are none.
  std::vector<double> find(const std::string& name) const;

 private:
  void take_check(uint64_t wrong, const std::string& what);

  unsigned ranks_;
  Join join_;
  std::map<std::string, std::vector<double>> samples_;
  std::map<std::string, std::string> bits_;  // [what]: the first rank's
  struct Check {
    std::string what;
    uint64_t wrong = 0;  // on all ranks
    unsigned ranks = 0;  // that have finished the check
  };
  std::vector<Check> checks_;  // not finished
  uint64_t wrong_ = 0;
  std::string gpu_;
};

}  // namespace verbena::tools::bench
