#pragma once
#include <string>
#include <vector>

namespace verbena::tools {

struct ProgramResult {
  int status = -1;     // 128 + signal if it was killed
  std::string output;  // stdout and stderr
};

// The full path of an executable in the PATH; empty if there is none.
std::string find_program(const std::string& name);

// Runs a program without a shell, with `input` as its standard input, until it exits. Throws ToolError if it
// cannot be started, or was killed after `timeout_s`.
ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input,
                          double timeout_s);

}  // namespace verbena::tools
