#include "verbena-bench/shared/options.h"

namespace verbena::tools::bench {

void add_bench_options(CLI::App& app, const BenchOptions& options) {
  app.option_defaults()->group("How");
  app.add_flag("--check", options.checks_only, "check the data, but measure nothing");
  add_range_option(app, "--repeats,-r", options.repeats, "number of samples for each measured figure", 1,
                   10000);
  add_timeout_option(app, options.timeout_s, "abort if no process reports progress within this time");
  add_output_options(app, options.output);
}

}  // namespace verbena::tools::bench
