#include "verbena-perf/driver.h"
#include "verbena-perf/worker.h"

int main(int argc, char** argv) {
  const auto parsed = verbena::tools::perf::parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  return parsed.options.child >= 0 ? verbena::tools::perf::run_worker(parsed.options)
                                   : verbena::tools::perf::run_driver(parsed.options, argc, argv);
}
