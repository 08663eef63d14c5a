#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "common/result.h"

namespace verbena::tools {

// The outputs of a result besides the table on the screen; the same in every tool.
struct OutputOptions {
  std::string json;
  std::string csv;
  std::string plot;
  std::string compare;    // a stored result
  double fail_below = 0;  // the least ratio to `compare`; 0: no limit

  // Returns true if the result itself goes to standard output; nothing else may then be written there.
  bool takes_stdout() const { return json == "-" || csv == "-"; }
  bool wants_anything() const { return !json.empty() || !csv.empty() || !plot.empty() || !compare.empty(); }
};

// Writes to a file, or to standard output if the target is "-". Throws ToolError.
void write_text(const std::string& target, const std::string& text);

// Why --plot and `verbena-perf report` cannot draw on this host; empty if they can.
std::string find_plot_problem();

// Why a file cannot be used for a comparison; empty if it can.
std::string find_compare_problem(const std::string& file);

// A result with everything that is known before the measurement.
Result begin_result(const std::string& tool, int argc, const char* const* argv);

// Completes the result and writes it to every output of the options. Returns the exit status: `status`, or
// kExitFailed if the comparison is below its limit. Throws ToolError if a file cannot be written.
int deliver_result(Result& result, const OutputOptions& options, int status);

// This host, for the stored result: name, system, CPU, memory.
nlohmann::json describe_machine();

// The environment variables that influence a measurement: VERBENA_*, NCCL_*, SOFTVERBS_*, CUDA_*.
nlohmann::json list_measured_environment();

}  // namespace verbena::tools
