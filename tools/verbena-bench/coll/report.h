// What the ranks' figures say. A figure's name is KIND/OPERATION/TYPE/BYTES/CONTENDER, and a contender of
// ours is verbena/ALGORITHM.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "tuner/calibration.h"
#include "verbena-bench/shared/figures.h"

namespace verbena::tools::coll {

class Report {
 public:
  // `chain`: the number of operations by which two graphs differ.
  Report(const bench::Figures& figures, unsigned chain) : figures_(figures), chain_(chain) {}

  // A table with a row for each operation, type and size: Verbena's fastest algorithm beside every other
  // contender's.
  std::string format_table() const;
  // A table of all algorithms, for choosing among them.
  std::vector<ResultTable> list_tables() const;
  // Verbena's measurements, for a tuning file. If the ranks were on several hosts, only those of bfloat16:
  // algorithms of different types send different numbers of bits per element. An operation encoded without
  // loss is an algorithm of the plain operation, which the library then compares with the others.
  std::vector<tuner::OpsMeasurement> list_measurements(unsigned hosts) const;

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
  double find_late_us(const std::string& kind, const std::string& key) const;
  std::vector<Row> list_rows() const;
  static std::string format_regret(const std::vector<Row>& rows);
  double find_bandwidth(const Row& row, double us) const;

  const bench::Figures& figures_;
  unsigned chain_;
};

}  // namespace verbena::tools::coll
