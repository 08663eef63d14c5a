#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/self_path.h"
#include "verbena-perf/driver.h"

namespace {

// Replaces this process by the script that makes the page of stored results.
int run_report(int argc, char** argv) {
  std::string python = "python3", script = verbena::tools::find_own_file("stored_results.py").string();
  std::vector<char*> arguments{python.data(), script.data()};
  arguments.insert(arguments.end(), argv + 2, argv + argc);
  arguments.push_back(nullptr);
  execvp(python.c_str(), arguments.data());
  std::fprintf(stderr, "verbena-perf report: cannot start python3: %s\n", std::strerror(errno));
  return verbena::tools::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "report") return run_report(argc, argv);
  const auto parsed = verbena::tools::perf::parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const auto& options = parsed.options;
  if (options.child >= 0) return verbena::tools::perf::run_worker(options);
  if (!options.calibrate.empty()) return verbena::tools::perf::run_calibration(options);
  return verbena::tools::perf::run_driver(options, argc, argv);
}
