#pragma once
#include <functional>
#include <stdexcept>
#include <string>

namespace verbena::tools {

// An error. The tool prints it as one line and exits with kExitFailed.
class ToolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The options cannot be satisfied: exit status kExitUsage.
class UsageError : public ToolError {
 public:
  using ToolError::ToolError;
};

// An expected event did not happen in time: exit status kExitHung.
class HangError : public ToolError {
 public:
  using ToolError::ToolError;
};

// The exit statuses of all tools. 0 means that everything was right. Wrong data and failures have the same
// status; the line on stderr distinguishes them.
enum ExitStatus : int {
  kExitOk = 0,
  kExitWrongData = 1,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitHung = 3,
  kExitNoDevice = 4,
};

// The end of a tool's main(): returns what `run` returns. Prints an exception as a line that begins with
// `who`, and returns its exit status.
int report_errors(const std::string& who, const std::function<int()>& run);

}  // namespace verbena::tools
