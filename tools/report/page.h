#pragma once
#include <string>

#include "report/collection.h"

namespace verbena::tools::report {

// The whole page. Throws ToolError where a chart cannot be drawn.
std::string make_page(const Collection& collection, const std::string& folder);

}  // namespace verbena::tools::report
