#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>

#include "common/result.h"
#include "common/table.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

const char* describe_transport(Transport transport);

// The table of a stored result, with one row per transport and size, from rows that Report has joined.
ResultTable make_message_table();
void add_message_rows(ResultTable& table, const std::string& transport, const nlohmann::json& rows);
// The description of the device, one line for each item.
nlohmann::json describe_setup(const nlohmann::json& device, const PerfOptions& options);

// Joins the rows of the two workers and prints each size when both have sent theirs. Prints nothing for a
// comparison, which is printed as a whole.
class Report {
 public:
  explicit Report(const PerfOptions& options);

  void add_device(const nlohmann::json& device);
  void add_row(const nlohmann::json& row);
  void finish();
  // Adds this run to the stored result.
  void fill(Result& result) const;

  const nlohmann::json& device() const { return device_; }
  const nlohmann::json& rows() const { return rows_; }
  uint64_t wrong_bytes() const { return wrong_bytes_; }

 private:
  void print_row(const nlohmann::json& row);

  const PerfOptions& options_;
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
