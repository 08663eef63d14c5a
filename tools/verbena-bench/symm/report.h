// What the ranks' figures of all backends say.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "verbena-bench/shared/figures.h"

namespace verbena::tools::symm {

using BackendFigures = std::pair<std::string, bench::Figures>;  // the backend's name

// A table for each kind of figure, in which the rows of all backends for the same thing are neighbours.
// Leaves out tables without rows.
std::vector<ResultTable> list_result_tables(const std::vector<BackendFigures>& all);

}  // namespace verbena::tools::symm
