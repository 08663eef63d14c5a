// Joins the ranks' reports: takes the slowest rank's time of each sample. A report's lines are "figure KIND
// KEY SAMPLES", "checked WRONG WHAT" and "bits HASH WHAT"; a key is OPERATION/TYPE/BYTES/CONTENDER/WAY.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "tuner/calibration.h"

namespace verbena::tools::coll {

class Figures {
 public:
  explicit Figures(unsigned ranks, unsigned chain) : ranks_(ranks), chain_(chain) {}

  // Takes a line of a report. Returns false if it is not a valid line.
  bool take(const std::string& line);
  // Returns a line with "ok" or "WRONG (count)" for each check that all ranks have finished since the last
  // call.
  std::string take_finished_checks();
  uint64_t wrong() const { return wrong_; }

  // A table with a row for each operation, type and size: Verbena's fastest algorithm beside every other
  // contender's.
  std::string format_table() const;
  // A table of all algorithms, for choosing among them.
  std::vector<ResultTable> list_tables() const;
  // Verbena's measurements, for a tuning file.
  std::vector<tuner::OpsMeasurement> list_measurements() const;

 private:
  struct Way {
    std::string key;
    double us = 0, p90_us = 0;
  };
  struct Row {
    std::string operation, type;
    uint64_t bytes = 0;
    std::vector<Way> ways;  // of all contenders
  };
  std::vector<double> find(const std::string& kind, const std::string& key) const;
  double find_late_us(const std::string& kind, const std::string& key) const;
  std::vector<Row> list_rows() const;
  static std::string format_regret(const std::vector<Row>& rows);
  double find_bandwidth(const Row& row, double us) const;

  unsigned ranks_, chain_;
  std::map<std::string, std::map<std::string, std::vector<double>>> samples_;  // [kind][key]
  std::map<std::string, std::string> bits_;                                    // [what]: the first rank's
  struct Check {
    std::string what;
    uint64_t wrong = 0;
    unsigned ranks = 0;
  };
  std::vector<Check> checks_;  // not finished
  uint64_t wrong_ = 0;
  std::string gpu_;
};

}  // namespace verbena::tools::coll
