#include "verbena-unpack/result_tables.h"

#include <map>

namespace verbena::tools::unpack {
namespace {

using nlohmann::json;
using Role = ResultColumn::Role;

ResultTable make_case_table(uint64_t blocks) {
  return {"unpacking, " + std::to_string(blocks) + " blocks",
          {{"blocks", "blocks", "", Role::kKey},
           {"threads", "threads", "", Role::kKey},
           {"page", "page", "B", Role::kKey},
           {"slice_bytes", "slice", "B", Role::kKey},
           {"source_align", "src", "B", Role::kKey},
           {"destination_align", "dst", "B", Role::kKey},
           {"slots", "slots", "", Role::kKey},
           {"at_once", "at once", "", Role::kKey},
           {"bounce", "bounce", "", Role::kKey},
           {"kernel", "kernel", "", Role::kKey, "", true},
           {"gbps", "in all", "GB/s", Role::kHigher, "median", true},
           {"gbps_a_block", "a block", "GB/s", Role::kHigher, "median"},
           {"p99_gbps", "p99", "GB/s", Role::kHigher, "p99"},
           {"best_gbps", "best", "GB/s", Role::kHigher, "best"},
           {"of_copy", "of copy", ""},
           {"wrong_bytes", "wrong", "B"}}};
}

ResultTable make_latency_table() {
  return {"latency of one message",
          {{"message_bytes", "size", "B", Role::kKey},
           {"threads", "threads", "", Role::kKey},
           {"bounce", "bounce", "", Role::kKey},
           {"kernel", "kernel", "", Role::kKey, "", true},
           {"median_us", "latency", "us", Role::kLower, "median", true},
           {"p99_us", "p99", "us", Role::kLower, "p99", true},
           {"p90_us", "p90", "us", Role::kLower, "p90"},
           {"min_us", "min", "us", Role::kLower, "best"},
           {"clock_median_us", "by clock", "us", Role::kLower, "median"},
           {"host_median_us", "host", "us", Role::kLower, "median"},
           {"wrong_bytes", "wrong", "B"}}};
}

ResultTable make_live_table() {
  return {"live connection",
          {{"device", "device", "", Role::kKey},
           {"message_bytes", "size", "B", Role::kKey},
           {"messages", "messages", ""},
           {"staged", "staged", "messages"},
           {"descriptors", "descriptors", ""},
           {"wrong_bytes", "wrong", "B"}}};
}

// A row a kernel: the members of its case, and its own. The columns of units follow the schema's names.
void add_case(ResultTable& table, const json& entry) {
  for (const auto& [kernel, figures] : entry.at("kernels").items()) {
    json row = entry;
    row.erase("kernels");
    row.erase("name");
    row.update(figures);
    row["at_once"] = entry.at("at_once");
    row["kernel"] = kernel;
    if (row["gbps"] == 0) {
      for (const char* untimed : {"gbps", "gbps_a_block", "p99_gbps", "best_gbps", "of_copy"})
        row.erase(untimed);
    }
    table.rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<ResultTable> list_result_tables(const json& document) {
  std::map<uint64_t, ResultTable> by_blocks;
  for (const json& entry : document.at("cases")) {
    const uint64_t blocks = entry.at("blocks");
    add_case(by_blocks.try_emplace(blocks, make_case_table(blocks)).first->second, entry);
  }
  std::vector<ResultTable> tables;
  for (auto& [blocks, table] : by_blocks) tables.push_back(std::move(table));
  ResultTable latency = make_latency_table(), live = make_live_table();
  for (const json& row : document.at("latency")) latency.rows.push_back(row);
  for (const json& row : document.at("live")) live.rows.push_back(row);
  for (ResultTable* table : {&latency, &live}) {
    if (!table->rows.empty()) tables.push_back(std::move(*table));
  }
  return tables;
}

}  // namespace verbena::tools::unpack
