#pragma once
#include <string>
#include <vector>

namespace verbena::tools {

struct ProgramResult {
  int status = -1;     // 128 + signal when killed
  std::string output;  // of both streams
};

// The full path of an executable in the PATH; empty where there is none.
std::string find_program(const std::string& name);

// Runs a program without a shell, its input given, until it ends; killed after `timeout_s`. Throws ToolError
// when it cannot be started or was killed for its time.
ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input,
                          double timeout_s);

}  // namespace verbena::tools
