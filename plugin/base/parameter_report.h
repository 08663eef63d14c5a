// Formats the parameters for readers: as rows, and as Markdown for docs/parameters.md.
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
  std::string value;   // in the current set
  std::string origin;  // the environment name that set it, or "default"
};

std::vector<ParameterRow> list_parameters();

// A table of names, aliases, defaults, ranges and meanings. It does not depend on the environment.
std::string format_parameters_markdown();

}  // namespace verbena::base
