#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "common/table.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// Joins the rows of the two workers and prints each size once both have sent theirs.
class Report {
 public:
  explicit Report(const Options& options);

  void add_device(const nlohmann::json& device);
  void add_row(const nlohmann::json& row);
  void finish();

  uint64_t wrong_bytes() const { return wrong_bytes_; }

 private:
  void print_row(const nlohmann::json& row);

  const Options& options_;
  Table table_;
  nlohmann::json device_;
  nlohmann::json half_rows_ = nlohmann::json::object();
  nlohmann::json rows_ = nlohmann::json::array();
  uint64_t wrong_bytes_ = 0;
  uint64_t verified_bytes_ = 0;
  uint64_t staged_ = 0;
  uint64_t direct_ = 0;
};

}  // namespace verbena::tools::perf
