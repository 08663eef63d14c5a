#include "verbena-perf/options.h"

#include <CLI/CLI.hpp>
#include <map>

#include "common/error.h"
#include "common/self_path.h"
#include "common/size.h"

namespace verbena::tools::perf {
namespace {

struct RawOptions {
  std::string sizes = "8:64M";
  std::string size;
  uint64_t factor = 2;
  std::string mode = "both";
  std::string protocol = "simple";
};

void add_shape_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--sizes", raw.sizes, "message sizes BEGIN:END, with k, m, g")->capture_default_str();
  app.add_option("--size", raw.size, "one message size instead of a range");
  app.add_option("--factor", raw.factor, "step between sizes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--iters", options.iterations, "timed messages a size (0: chosen by size)");
  app.add_option("--warmup", options.warmup, "messages before the timed ones")->capture_default_str();
  app.add_option("--window", options.window, "messages outstanding at once")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--consume-lag", options.consume_lag, "completed receives consumed this much later")
      ->check(CLI::Range(0, 7));
  app.add_option("--mode", raw.mode, "latency, bandwidth or both")
      ->check(CLI::IsMember({"latency", "bandwidth", "both"}))
      ->capture_default_str();
  app.add_option("--src-offset", options.source_offset_bytes, "misalign sources by these bytes")
      ->check(CLI::Range(0, 4096));
  app.add_option("--dst-offset", options.destination_offset_bytes, "misalign destinations by these bytes")
      ->check(CLI::Range(0, 4096));
}

void add_plugin_options(CLI::App& app, Options& options, RawOptions& raw) {
  app.add_option("--plugin", options.plugin, "libnccl-net.so to load (default: ../lib beside this tool)");
  app.add_option("--abi", options.abi_version, "table version to drive")
      ->check(CLI::Range(7, 12))
      ->capture_default_str();
  app.add_option("--rails", options.rails, "above 1: one virtual device over the first N devices")
      ->check(CLI::Range(1, 8));
  app.add_option("--device", options.device, "device index")->check(CLI::NonNegativeNumber);
  app.add_option("--unpack", options.unpack, "0 or 1: sets VERBENA_UNPACK")->check(CLI::Range(0, 1));
  app.add_option("--threshold", options.threshold, "sets VERBENA_UNPACK_THRESHOLD (bytes, or unlimited)");
  app.add_option("--protocol", raw.protocol, "pose as NCCL's protocol")
      ->check(CLI::IsMember({"simple", "ll", "ll128"}))
      ->capture_default_str();
  app.add_flag("--user-buffer", options.user_buffer,
               "receive into a buffer registered later, as NCCL's users may");
  app.add_flag("--cuda-type", options.cuda_type, "declare the (host) buffers as GPU memory");
}

void add_output_options(CLI::App& app, Options& options) {
  app.add_option("--verify", options.verify, "0: skip the pass that checks every byte")
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_s, "seconds any one step may take")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_flag("--json", options.json, "print one JSON document");
  app.add_flag("--csv", options.csv, "print comma-separated values");
  app.add_flag("--verbose,-v", options.verbose, "show the children's environment and the plugin's log");
  app.add_option("--child", options.child)->group("");
}

void resolve(Options& options, const RawOptions& raw) {
  const auto range = parse_size_range(raw.size.empty() ? raw.sizes : raw.size);
  if (!range)
    throw CLI::ValidationError("--sizes",
                               "not a size or a range: " + (raw.size.empty() ? raw.sizes : raw.size));
  options.sizes_bytes = list_sizes(*range, raw.factor);
  if (!options.threshold.empty() && options.threshold != "unlimited") {
    const auto threshold = parse_threshold(options.threshold);
    if (!threshold)
      throw CLI::ValidationError("--threshold", "neither a size nor unlimited: " + options.threshold);
    options.threshold = *threshold;
  }
  options.latency = raw.mode != "bandwidth";
  options.bandwidth = raw.mode != "latency";
  if (raw.protocol == "ll") options.protocol = Protocol::kLl;
  if (raw.protocol == "ll128") options.protocol = Protocol::kLl128;
  if (options.consume_lag >= options.window) {
    throw CLI::ValidationError("--consume-lag", "must be below --window");
  }
  if (options.plugin.empty()) options.plugin = find_default_plugin().string();
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  RawOptions raw;
  CLI::App app(
      "Moves and verifies messages between two processes through a NCCL net plugin, without NCCL or a GPU");
  add_shape_options(app, parsed.options, raw);
  add_plugin_options(app, parsed.options, raw);
  add_output_options(app, parsed.options);
  try {
    app.parse(argc, argv);
    resolve(parsed.options, raw);
  } catch (const CLI::ParseError& error) {
    parsed.exit_status = app.exit(error) == 0 ? kExitOk : kExitFailed;
  }
  return parsed;
}

const char* describe_protocol(Protocol protocol) {
  switch (protocol) {
    case Protocol::kLl:
      return "ll";
    case Protocol::kLl128:
      return "ll128";
    case Protocol::kSimple:
      break;
  }
  return "simple";
}

}  // namespace verbena::tools::perf
