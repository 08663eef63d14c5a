#pragma once
#include <optional>
#include <string>

#include "common/result.h"

namespace verbena::tools {

// Where a result goes besides the table on the screen; the same in every tool.
struct OutputOptions {
  std::string json;
  std::string csv;
  std::string plot;
  std::string compare;    // a stored result
  double fail_below = 0;  // times better than it; 0: a comparison only shows

  // What is written to standard output must be alone there.
  bool takes_stdout() const { return json == "-" || csv == "-"; }
  bool wants_anything() const { return !json.empty() || !csv.empty() || !plot.empty() || !compare.empty(); }
};

// To a file, or to standard output where the target is "-". Throws ToolError.
void write_text(const std::string& target, const std::string& text);

// A result with all that is known before anything is measured.
Result begin_result(const std::string& tool, int argc, const char* const* argv);

// Completes the result and gives it to everybody that the options name. Returns the status to leave with:
// `status`, unless the options ask for a worse one. Throws ToolError when a file cannot be written.
int deliver_result(Result& result, const OutputOptions& options, int status);

}  // namespace verbena::tools
