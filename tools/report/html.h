#pragma once
#include <string>
#include <vector>

namespace verbena::tools::report {

struct HtmlColumn {
  std::string label;
  std::string unit;
  bool is_number = true;  // stands at the right
};

// Cells are escaped here. Wide tables scroll by themselves.
std::string format_html_table(const std::vector<HtmlColumn>& columns,
                              const std::vector<std::vector<std::string>>& rows);

}  // namespace verbena::tools::report
