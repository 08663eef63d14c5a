// What is stored of the figures of all backends.
#pragma once

#include <vector>

#include "common/result.h"
#include "verbena-symm/comparison.h"

namespace verbena::tools::symm {

// A table for each kind of figure; those without rows are left out.
std::vector<ResultTable> list_result_tables(const std::vector<BackendFigures>& all);

}  // namespace verbena::tools::symm
