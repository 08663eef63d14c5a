#include "nccl-perf/options.h"

#include <CLI/CLI.hpp>

#include "common/error.h"
#include "common/size.h"

namespace verbena::tools::nccl {
namespace {

struct RawOptions {
  std::vector<std::string> operations{"all"};
  std::string begin = "8";
  std::string end = "256M";
  uint64_t factor = 4;
};

void add_run_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--gpus,-g", options.gpus, "number of GPUs, a process each (default: all)")
      ->check(CLI::Range(1, 64));
  app.add_option("--op,-o", raw.operations,
                 "all_reduce, all_gather, reduce_scatter, broadcast, send_recv, all_to_all; a list, or all")
      ->delimiter(',');
  app.add_option("--begin,-b", raw.begin, "smallest size, with k, m, g")->capture_default_str();
  app.add_option("--end,-e", raw.end, "largest size")->capture_default_str();
  app.add_option("--factor,-f", raw.factor, "step between sizes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--iters,-n", options.iterations, "timed iterations a size")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--warmup,-w", options.warmup, "iterations before them (at least one)")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--verify", options.verify, "0: do not check the elements")->capture_default_str();
  app.add_flag("--graph", options.graph, "capture each operation in a CUDA graph and replay that");
  app.add_option("--timeout", options.timeout_s, "seconds any one step of a run may take")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
}

void add_nccl_options(CLI::App& app, Options& options) {
  app.add_option("--nccl", options.nccl,
                 "libnccl.so.2 to use (default: $NCCL_LIB, loader, CUDA, Python packages)");
  app.add_flag("--list-nccl", options.list_nccl, "list every libnccl.so.2 found, and leave");
  app.add_option("--plugin", options.plugin,
                 "libnccl-net.so (default: $NCCL_NET_PLUGIN, ../lib beside this tool)");
  app.add_option("--unpack", options.unpack, "0, 1, or both in turn: sets VERBENA_UNPACK")
      ->check(CLI::IsMember({"0", "1", "both"}));
  app.add_option("--threshold", options.threshold, "sets VERBENA_UNPACK_THRESHOLD (bytes, or unlimited)");
  app.add_option("--proto", options.protocol, "sets NCCL_PROTO");
  app.add_option("--algo", options.algorithm, "sets NCCL_ALGO");
  auto* rails =
      app.add_option("--rails", options.rails, "sets SOFTVERBS_DEVICES, and gives each a place for NCCL")
          ->check(CLI::Range(1, 8));
  app.add_flag("--join", options.join_rails, "the rails are ports of one card: NCCL joins them to one device")
      ->needs(rails);
  app.add_option("--compare", options.compare, "then the same with socket, ib, unpack0 or unpack1; a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"socket", "ib", "unpack0", "unpack1"}));
}

void add_output_options(CLI::App& app, Options& options) {
  app.add_option("--json", options.json_file, "write all figures to this file");
  app.add_option("--out", options.out_file, "write what is printed to this file too");
  app.add_option("--log-dir", options.log_folder, "keep NCCL's logs in this folder");
  app.add_flag("--verbose,-v", options.verbose, "show the environment of the processes");
  app.add_option("--child-rank", options.child_rank)->group("");
  app.add_option("--child-ranks", options.child_ranks)->group("");
  app.add_option("--child-nccl", options.child_nccl)->group("");
  app.add_option("--probe-nccl", options.probe_nccl)->group("");
}

void resolve_operations(Options& options, const RawOptions& raw) {
  for (const std::string& name : raw.operations) {
    if (name == "all") {
      options.operations.assign(std::begin(kAllOperations), std::end(kAllOperations));
      return;
    }
    const auto operation = parse_operation(name);
    if (!operation) throw CLI::ValidationError("--op", "no such operation: " + name);
    options.operations.push_back(*operation);
  }
}

void resolve(Options& options, const RawOptions& raw) {
  resolve_operations(options, raw);
  const auto range = parse_size_range(raw.begin + ":" + raw.end);
  if (!range)
    throw CLI::ValidationError("--begin/--end", "not a range of sizes: " + raw.begin + " to " + raw.end);
  options.sizes_bytes = list_sizes(*range, raw.factor);
  if (!options.threshold.empty() && options.threshold != "unlimited") {
    const auto threshold = parse_threshold(options.threshold);
    if (!threshold)
      throw CLI::ValidationError("--threshold", "neither a size nor unlimited: " + options.threshold);
    options.threshold = *threshold;
  }
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  RawOptions raw;
  CLI::App app(
      "NCCL's collectives over the Verbena plugin, one process a GPU, each its own node; every element "
      "checked");
  add_run_options(app, parsed.options, raw);
  add_nccl_options(app, parsed.options);
  add_output_options(app, parsed.options);
  try {
    app.parse(argc, argv);
    resolve(parsed.options, raw);
  } catch (const CLI::ParseError& error) {
    parsed.exit_status = app.exit(error) == 0 ? kExitOk : kExitFailed;
  }
  return parsed;
}

}  // namespace verbena::tools::nccl
