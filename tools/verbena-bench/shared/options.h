// The options that all subcommands have.
#pragma once
#include "common/option_style.h"

namespace verbena::tools::bench {

// Where the values go, which have their defaults.
struct BenchOptions {
  bool& checks_only;
  unsigned& repeats;
  double& timeout_s;
  OutputOptions& output;
};
void add_bench_options(CLI::App& app, const BenchOptions& options);

}  // namespace verbena::tools::bench
