// The processes of a measurement with several ranks, one for each GPU of this host.
#pragma once
#include <functional>
#include <string>

#include "common/child_group.h"
#include "common/output.h"
#include "verbena-bench/shared/figures.h"

namespace verbena::tools::bench {

// A new unique id for the ranks, in hexadecimal digits. Throws ToolError.
std::string make_unique_id();

// Prints nothing if standard output is reserved for the result.
void print(const OutputOptions& output, const std::string& text);

// Starts the ranks, and prints and joins their reports until all have ended. Throws HangError if no rank
// reports anything for `timeout_s`, and ToolError if a rank fails, which prints its error itself.
void run_ranks(unsigned ranks, const std::function<ChildCommand(unsigned rank)>& make_command,
               double timeout_s, const OutputOptions& output, Figures& figures);

// The environment of this process, with the settings that kernels which wait for each other need.
Environment make_rank_environment();

// Stores the status and writes the result. Returns the exit status.
int deliver_checked(Result& result, uint64_t wrong, const OutputOptions& output);

}  // namespace verbena::tools::bench
