#pragma once
#include <stdexcept>
#include <string>

namespace verbena::tools {

// What every tool prints as its one line before it leaves with kExitFailed.
class ToolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What was asked for cannot be: kExitUsage.
class UsageError : public ToolError {
 public:
  using ToolError::ToolError;
};

// Something that should have come did not come in time.
class HangError : public ToolError {
 public:
  using ToolError::ToolError;
};

// Of all tools. Whoever only asks "was it right?" asks for 0; the words on stderr tell wrong data from
// failures.
enum ExitStatus : int {
  kExitOk = 0,
  kExitWrongData = 1,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitHung = 3,
  kExitNoDevice = 4,
};

}  // namespace verbena::tools
