#pragma once

namespace verbena::tools::report {

// verbena-perf report: argv[0] is "report". Returns the exit status.
int run_report(int argc, const char* const* argv);

}  // namespace verbena::tools::report
