#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "common/result.h"

namespace verbena::tools::unpack {

// What is stored of a report's document: a table for each number of blocks, as cases of few blocks and of the
// whole GPU differ by an order; one of latencies, one of live connections. Tables without rows are left out.
std::vector<ResultTable> list_result_tables(const nlohmann::json& document);

}  // namespace verbena::tools::unpack
