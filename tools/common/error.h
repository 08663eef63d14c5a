#pragma once
#include <stdexcept>
#include <string>

namespace verbena::tools {

// What every tool prints as its one line before it leaves with kExitFailed.
class ToolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Something that should have come did not come in time.
class HangError : public ToolError {
 public:
  using ToolError::ToolError;
};

enum ExitStatus : int {
  kExitOk = 0,
  kExitWrongData = 1,
  kExitFailed = 2,
  kExitHung = 3,
  kExitNoDevice = 4,
};

}  // namespace verbena::tools
