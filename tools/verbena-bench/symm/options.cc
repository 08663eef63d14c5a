#include "verbena-bench/symm/options.h"

#include "common/option_style.h"

namespace verbena::tools::symm {

ParsedOptions parse_options(int argc, char** argv) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  CLI::App app{
      "Checks symmetric memory between the GPUs of this host, with one process per GPU, then measures "
      "barrier, put, signal and all-reduce. Times are those of the fastest rank, because the times of the "
      "other ranks include waiting for the last rank to start."};
  app.option_defaults()->group("What is measured");
  app.add_option("--ranks", options.ranks, "processes (default one per GPU; two on a single GPU)")
      ->check(CLI::Range(1, 64));
  app.add_option("-n", options.ranks)->check(CLI::Range(1, 64))->group("");
  app.add_option("--path,-p", options.path, "set VERBENA_SYMM_PATH: auto, lsa (loads and stores) or rdma")
      ->check(CLI::IsMember({"auto", "lsa", "rdma"}));
  app.add_option("--backend", options.backends,
                 "verbena, nccl, nvshmem, or a list; the backends run one after the other and are compared")
      ->delimiter(',')
      ->check(CLI::IsMember({"verbena", "nccl", "nvshmem"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_flag("--check", options.checks_only, "check the data only, measure nothing");
  app.add_flag("--checks-only", options.checks_only)->group("");
  app.add_option("--repeats,-r", options.repeats,
                 "number of samples per figure; the tool shows median and p99")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--rounds", options.repeats)->check(CLI::Range(1, 1000))->group("");
  add_timeout_option(app, options.timeout_s, "abort if no rank has reported anything for this time");
  add_output_options(app, options.output);
  style_help(app, "verbena-symm");
  // A child of this tool.
  auto* rank = app.add_option("--rank-of", options.rank_plan.id)->group("");
  app.add_option("--rank", options.rank_plan.rank)->group("");
  app.add_option("--gpu", options.rank_plan.gpu)->group("");
  try {
    app.parse(argc, argv);
    if (rank->count() == 0) check_output_options(options.output);
  } catch (const CLI::ParseError& error) {
    parsed.exit_status = leave_parsing(app, error);
  }
  options.is_rank = rank->count() > 0;
  options.rank_plan.count_ranks = static_cast<unsigned>(options.ranks);
  options.rank_plan.measures = !options.checks_only;
  options.rank_plan.rounds = options.repeats;
  return parsed;
}

}  // namespace verbena::tools::symm
