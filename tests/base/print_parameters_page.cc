// Prints docs/parameters.md.
#include <cstdio>

#include "base/parameter_report.h"

int main() {
  std::fputs(verbena::base::format_parameters_markdown().c_str(), stdout);
  return 0;
}
