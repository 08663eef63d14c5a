// Formats the settings of all components for users: as rows, as Markdown for docs/parameters.md, and as the
// table of the Python package.
#pragma once

#include <string>
#include <vector>

namespace verbena::base {

struct ParameterRow {
  std::string name;
  std::string type;      // flag, number, size, text or choice
  std::string fallback;  // the default
  std::string range;
  std::string unit;
  std::string aliases;  // separated by ", "
  std::string doc;
  std::string value;         // in the current set
  std::string origin;        // the environment name that set it, or "default"
  bool is_advanced = false;  // hidden where only the usual settings are shown
};

// Lists the settings of the plugin and libverbena.so, then of softverbs, then of the Python package.
std::vector<ParameterRow> list_parameters();

// Tables of names, aliases, defaults, ranges and meanings. They do not depend on the environment.
std::string format_parameters_markdown();
std::string format_parameters_python();

}  // namespace verbena::base
