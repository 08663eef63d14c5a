#include <string_view>

#include "report/report.h"
#include "verbena-perf/calibrate.h"
#include "verbena-perf/driver.h"
#include "verbena-perf/worker.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "report")
    return verbena::tools::report::run_report(argc - 1, argv + 1);
  const auto parsed = verbena::tools::perf::parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const auto& options = parsed.options;
  if (options.child >= 0) return verbena::tools::perf::run_worker(options);
  if (!options.calibrate.empty()) return verbena::tools::perf::run_calibration(options);
  return verbena::tools::perf::run_driver(options, argc, argv);
}
