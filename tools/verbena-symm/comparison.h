// The figures of several backends beside each other.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "verbena-symm/figures.h"

namespace verbena::tools::symm {

using BackendFigures = std::pair<std::string, Figures>;  // the backend's name

// A row for each figure that any has, a column for each backend.
std::string format_comparison(const std::vector<BackendFigures>& all, unsigned ranks);

}  // namespace verbena::tools::symm
