#pragma once
#include <string>

#include "common/plot.h"

namespace verbena::tools::report {

// The plot as an <svg> for the middle of a page, its colors the page's variables --ink, --grid and
// --series-N. `number` sets its identifiers apart from those of the page's other charts. Throws ToolError
// where gnuplot fails.
std::string draw_chart(const Plot& plot, size_t number);

}  // namespace verbena::tools::report
