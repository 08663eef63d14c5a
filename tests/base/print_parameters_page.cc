// Prints docs/parameters.md; with --python, python/verbena/setting_table.py.
#include <cstdio>
#include <cstring>

#include "base/parameter_report.h"

int main(int argc, char** argv) {
  const bool is_python = argc > 1 && std::strcmp(argv[1], "--python") == 0;
  std::fputs(
      (is_python ? verbena::base::format_parameters_python() : verbena::base::format_parameters_markdown())
          .c_str(),
      stdout);
  return 0;
}
