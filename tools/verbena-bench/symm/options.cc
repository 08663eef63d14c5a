#include "verbena-bench/symm/options.h"

#include "verbena-bench/shared/options.h"

namespace verbena::tools::symm {

Parsed<SymmOptions> parse_options(int argc, const char* const* argv) {
  Parsed<SymmOptions> parsed;
  SymmOptions& options = parsed.options;
  CLI::App app{
      "Checks symmetric memory between the GPUs of this host, with one process for each GPU. Then measures "
      "barrier, put, signal and all-reduce. The tool shows the time of the fastest rank, because the times "
      "of the other ranks also include the wait for the last rank to start."};
  app.option_defaults()->group("What is measured");
  app.add_option("--ranks,-n", options.ranks,
                 "number of processes. Default: one for each GPU, or two if there is only one GPU")
      ->check(CLI::Range(1, 64));
  app.add_option("--path,-p", options.path,
                 "value of VERBENA_SYMM_PATH: auto, lsa (loads and stores) or rdma")
      ->check(CLI::IsMember({"auto", "lsa", "rdma"}));
  app.add_option("--backend", options.backends,
                 "verbena, nccl, nvshmem, or a list. The backends run one after the other, and the tool "
                 "compares them")
      ->delimiter(',')
      ->check(CLI::IsMember({"verbena", "nccl", "nvshmem"}))
      ->type_name("NAME")
      ->capture_default_str();
  bench::add_bench_options(app, {options.checks_only, options.repeats, options.timeout_s, options.output});
  style_help(app, "verbena-bench symm");
  parsed.exit_status = parse_arguments(app, argc, argv, [&] { check_output_options(options.output); });
  return parsed;
}

}  // namespace verbena::tools::symm
