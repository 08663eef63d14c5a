#include "nccl-perf/result_tables.h"

#include <algorithm>

#include "common/samples.h"
#include "nccl-perf/collective.h"

namespace verbena::tools::nccl {
namespace {

using Role = ResultColumn::Role;

ResultTable make_table(const std::string& operation) {
  return {operation,
          {{"operation", "operation", "", Role::kKey},
           {"variant", "variant", "", Role::kKey},
           {"size_bytes", "size", "B", Role::kKey},
           {"count", "count", "elements"},
           {"time_us", "time", "us", Role::kLower, "median", true},
           {"time_p99_us", "time p99", "us", Role::kLower, "p99", true},
           {"algbw_GBps", "algbw", "GB/s", Role::kHigher, "median"},
           {"busbw_GBps", "busbw", "GB/s", Role::kHigher, "median", true},
           {"wrong_elements", "wrong", "elements"},
           {"times_us", "", "us", Role::kSamples}}};
}

}  // namespace

void ResultTables::add(const std::string& variant, const Row& row) {
  if (!lines_.contains(row.operation)) operations_.push_back(row.operation);
  std::vector<Line>& lines = lines_[row.operation];
  auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& known) {
    return known.variant == variant && known.row.requested_bytes == row.requested_bytes;
  });
  if (line == lines.end())
    line = lines.insert(lines.end(), {variant, row, {}, {}});
  else
    line->row.wrong += row.wrong;
  line->times_us.push_back(row.time_us);
  line->p99_us.push_back(row.p99_us);
}

std::vector<ResultTable> ResultTables::list(uint32_t ranks) const {
  std::vector<ResultTable> tables;
  for (const std::string& name : operations_) {
    ResultTable& table = tables.emplace_back(make_table(name));
    const Operation operation = parse_operation(name).value();
    for (const Line& line : lines_.at(name)) {
      const Shape shape = make_shape(operation, line.row.requested_bytes, ranks);
      const double time_us = compute_median(line.times_us);
      const double algorithm_gbps = static_cast<double>(shape.size_bytes) * 1e-3 / time_us;
      table.rows.push_back({{"operation", name},
                            {"variant", line.variant},
                            {"size_bytes", shape.size_bytes},
                            {"count", shape.count},
                            {"time_us", time_us},
                            {"time_p99_us", compute_median(line.p99_us)},
                            {"algbw_GBps", algorithm_gbps},
                            {"busbw_GBps", algorithm_gbps * compute_bus_factor(operation, ranks)},
                            {"wrong_elements", line.row.wrong},
                            {"times_us", line.times_us}});
    }
  }
  return tables;
}

}  // namespace verbena::tools::nccl
