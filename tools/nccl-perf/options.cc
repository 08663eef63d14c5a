#include "nccl-perf/options.h"

#include "common/option_style.h"
#include "common/size.h"

namespace verbena::tools::nccl {
namespace {

struct RawOptions {
  std::vector<std::string> operations{"all"};
  SizeOptions sizes;
};

void add_run_options(CLI::App& app, NcclPerfOptions& options, RawOptions& raw) {
  app.option_defaults()->group("What is measured");
  app.add_option("--ranks", options.ranks,
                 "number of processes. Default: one for each GPU, or two if there is only one GPU")
      ->check(CLI::Range(2, 64));
  app.add_option("--op,-o", raw.operations,
                 "all_reduce, all_gather, reduce_scatter, broadcast, send_recv, all_to_all, or a list "
                 "(default: all of them)")
      ->delimiter(',');
  add_size_options(app, raw.sizes);
  add_range_option(app, "--iters,-n", options.iterations, "timed iterations per size", 1, 100000);
  add_range_option(app, "--warmup,-w", options.warmup,
                   "number of untimed iterations before the timed iterations; at least one", 1, 100000);
  add_duration_option(app, "--soak", options.soak_s,
                      "soak test: for each size, repeat the timed iterations for this time, check the "
                      "elements after each repetition, and show a histogram of the times",
                      1, 86400);
  app.add_option("--verify", options.verify, "1 checks the elements of every result; 0 skips these checks")
      ->capture_default_str();
  app.add_flag("--graph", options.graph, "capture each operation in a CUDA graph and replay the graph");
  add_range_option(
      app, "--communicators", options.communicators,
      "run each operation on this number of communicators at the same time; ncclCommSplit creates "
      "all except the first",
      1, 8);
  add_timeout_option(app, options.timeout_s);
}

void add_nccl_options(CLI::App& app, NcclPerfOptions& options) {
  app.option_defaults()->group("Libraries and settings");
  app.add_option("--nccl", options.nccl,
                 "libnccl.so.2 to use. Default: $NCCL_LIB, or the first libnccl.so.2 in the loader's path, "
                 "in CUDA's folders or in Python's packages");
  app.add_flag("--list-nccl", options.list_nccl, "list every libnccl.so.2 that the tool finds, and exit");
  app.add_option("--plugin", options.plugin,
                 "libnccl-net.so to load. Default: $NCCL_NET_PLUGIN, or libnccl-net.so in the folder ../lib "
                 "relative to this tool");
  app.add_option("--unpack", options.unpack,
                 "value of VERBENA_UNPACK, 0 or 1. both means one run with 0 and one run with 1")
      ->check(CLI::IsMember({"0", "1", "both"}));
  app.add_option("--threshold", options.threshold,
                 "value of VERBENA_UNPACK_THRESHOLD, in bytes, or unlimited. If VERBENA_UNPACK is not set, "
                 "this option sets VERBENA_UNPACK=1");
  app.add_option("--protocol", options.protocol, "set NCCL_PROTO");
  app.add_option("--algorithm", options.algorithm, "set NCCL_ALGO");
  auto* rails =
      app.add_option("--rails", options.rails,
                     "set SOFTVERBS_DEVICES, and show NCCL each software device as a separate PCI device")
          ->check(CLI::Range(1, 8));
  app.add_flag("--join", options.join_rails,
               "show NCCL the rails as ports of one card, so that NCCL joins the rails into one device")
      ->needs(rails);
  app.add_option("--against", options.against,
                 "also run with these transports or settings (socket, ib, unpack0, unpack1, or a list), and "
                 "show the ratios of the results")
      ->delimiter(',')
      ->check(CLI::IsMember({"socket", "ib", "unpack0", "unpack1"}))
      ->type_name("NAME");
  add_range_option(
      app, "--rounds", options.rounds,
      "number of times to repeat all runs. Every second repetition has the reverse order, and the "
      "tool shows the medians",
      1, 1000);
}

void add_calibration_options(CLI::App& app, NcclPerfOptions& options) {
  app.add_option("--calibrate", options.calibrate,
                 "measure collectives with each algorithm, protocol and number of channels, and write the "
                 "costs to this tuning file");
  add_duration_option(app, "--budget", options.budget_s,
                      "with --calibrate: time after which no further run is started", 1, 86400);
}

void add_log_options(CLI::App& app, NcclPerfOptions& options) {
  add_output_options(app, options.output);
  app.add_option("--out", options.out_file, "also write everything that the tool prints to this file");
  app.add_option("--log-dir", options.log_folder, "keep NCCL's logs in this folder");
  app.add_flag("--verbose,-v", options.verbose, "show the environment of the processes");
  app.add_option("--child-rank", options.child_rank)->group("");
  app.add_option("--child-ranks", options.child_ranks)->group("");
  app.add_option("--child-nccl", options.child_nccl)->group("");
  app.add_option("--child-op", options.child_operations)->group("");
  app.add_option("--child-end", options.child_end_bytes)->group("");
  app.add_option("--probe-nccl", options.probe_nccl)->group("");
}

void resolve_operations(NcclPerfOptions& options, const RawOptions& raw) {
  for (const std::string& name :
       options.child_operations.empty() ? raw.operations : options.child_operations) {
    if (name == "all") {
      options.operations.assign(std::begin(kAllOperations), std::end(kAllOperations));
      return;
    }
    const auto operation = parse_operation(name);
    if (!operation) throw CLI::ValidationError("--op", "unknown operation: " + name);
    options.operations.push_back(*operation);
  }
}

void resolve(NcclPerfOptions& options, const RawOptions& raw) {
  resolve_operations(options, raw);
  options.sizes_bytes = resolve_sizes(raw.sizes);
  if (options.child_end_bytes != 0) {
    std::erase_if(options.sizes_bytes, [&](uint64_t bytes) { return bytes > options.child_end_bytes; });
  }
  if (!options.calibrate.empty() && options.unpack == "both")
    throw CLI::ValidationError("--calibrate",
                               "can be combined only with --unpack 0 or 1. Without --unpack, the tool "
                               "measures both settings and keeps the faster one");
  if (!options.calibrate.empty() && options.output.takes_stdout())
    throw CLI::ValidationError("--calibrate",
                               "prints to standard output; give file names to --json and --csv");
  if (!options.threshold.empty() && options.threshold != "unlimited") {
    const auto threshold = parse_threshold(options.threshold);
    if (!threshold)
      throw CLI::ValidationError("--threshold",
                                 "the value is not a size and not the word unlimited: " + options.threshold);
    options.threshold = *threshold;
  }
}

}  // namespace

Parsed<NcclPerfOptions> parse_options(int argc, const char* const* argv) {
  Parsed<NcclPerfOptions> parsed;
  RawOptions raw;
  CLI::App app(
      "Runs NCCL's collectives over the Verbena plugin and checks every element. There is one process for "
      "each GPU, and NCCL treats each process as a separate node.");
  add_run_options(app, parsed.options, raw);
  add_nccl_options(app, parsed.options);
  add_calibration_options(app, parsed.options);
  add_log_options(app, parsed.options);
  style_help(app, "nccl-perf");
  parsed.exit_status = parse_arguments(app, argc, argv, [&] {
    resolve(parsed.options, raw);
    const bool is_child = parsed.options.child_rank >= 0 || !parsed.options.probe_nccl.empty();
    if (!is_child) check_output_options(parsed.options.output);
  });
  return parsed;
}

}  // namespace verbena::tools::nccl
