#include "verbena-perf/options.h"

#include <CLI/CLI.hpp>
#include <map>

#include "common/error.h"
#include "common/self_path.h"
#include "common/size.h"

namespace verbena::tools::perf {
namespace {

constexpr const char* kWorkloadGroup = "What is measured (a server takes these from its client)";
constexpr const char* kHostGroup = "Two hosts";
constexpr double kServerWaitS = 600;
constexpr double kClientWaitS = 10;

struct RawWorkload {
  std::string sizes = "8:64M";
  std::string size;
  uint64_t factor = 2;
  std::string mode = "both";
  std::string protocol = "simple";
};

void add_shape_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  app.add_option("--sizes", raw.sizes, "message sizes BEGIN:END, with k, m, g")->capture_default_str();
  app.add_option("--size", raw.size, "one message size instead of a range");
  app.add_option("--factor", raw.factor, "step between sizes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--iters", workload.iterations, "timed messages a size (0: chosen by size)");
  app.add_option("--warmup", workload.warmup, "messages before the timed ones")->capture_default_str();
  app.add_option("--window", workload.window, "messages outstanding at once")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--consume-lag", workload.consume_lag, "completed receives consumed this much later")
      ->check(CLI::Range(0, 7));
  app.add_option("--mode", raw.mode, "latency, bandwidth or both")
      ->check(CLI::IsMember({"latency", "bandwidth", "both"}))
      ->capture_default_str();
  app.add_option("--src-offset", workload.source_offset_bytes, "misalign sources by these bytes")
      ->check(CLI::Range(0, 4096));
  app.add_option("--dst-offset", workload.destination_offset_bytes, "misalign destinations by these bytes")
      ->check(CLI::Range(0, 4096));
}

void add_contract_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  app.add_option("--abi", workload.abi_version, "table version to drive")
      ->check(CLI::Range(7, 12))
      ->capture_default_str();
  app.add_option("--rails", workload.rails, "above 1: one virtual device over the first N devices")
      ->check(CLI::Range(1, 8));
  app.add_option("--unpack", workload.unpack, "0 or 1: sets VERBENA_UNPACK")->check(CLI::Range(0, 1));
  app.add_option("--threshold", workload.threshold, "sets VERBENA_UNPACK_THRESHOLD (bytes, or unlimited)");
  app.add_option("--protocol", raw.protocol, "pose as NCCL's protocol")
      ->check(CLI::IsMember({"simple", "ll", "ll128"}))
      ->capture_default_str();
  app.add_flag("--user-buffer", workload.user_buffer,
               "receive into a buffer registered later, as NCCL's users may");
  app.add_flag("--cuda-type", workload.cuda_type, "declare the (host) buffers as GPU memory");
  app.add_option("--verify", workload.verify, "0: skip the pass that checks every byte")
      ->capture_default_str();
  app.add_option("--timeout", workload.timeout_s, "seconds any one step may take")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

void add_workload_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  app.option_defaults()->group(kWorkloadGroup);
  add_shape_options(app, workload, raw);
  add_contract_options(app, workload, raw);
}

void add_host_options(CLI::App& app, Options& options) {
  app.option_defaults()->group(kHostGroup);
  auto* const server = app.add_flag("--server", options.server, "serve one client, then leave");
  app.add_option("--client", options.client, "host name or address of the server")->excludes(server);
  app.add_option("--port", options.port, "the server's TCP port (0: any, which it prints)")
      ->capture_default_str();
  app.add_option("--wait", options.wait_s,
                 "seconds to wait for the other host to turn up (server 600, client 10)")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--last-words", options.last_words_s,
                 "seconds one side has to tell its own cause after the other has failed")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
}

void add_own_options(CLI::App& app, Options& options) {
  app.option_defaults()->group("This process");
  app.add_option("--plugin", options.plugin, "libnccl-net.so to load (default: ../lib beside this tool)");
  app.add_option("--device", options.device, "device index")->check(CLI::NonNegativeNumber);
  app.add_flag("--json", options.json, "print one JSON document");
  app.add_flag("--csv", options.csv, "print comma-separated values");
  app.add_flag("--verbose,-v", options.verbose, "show the children's environment and the plugin's log");
  app.add_option("--child", options.child)->group("");
}

void resolve(Workload& workload, const RawWorkload& raw) {
  const std::string& sizes = raw.size.empty() ? raw.sizes : raw.size;
  const auto range = parse_size_range(sizes);
  if (!range) throw CLI::ValidationError("--sizes", "not a size or a range: " + sizes);
  workload.sizes_bytes = list_sizes(*range, raw.factor);
  if (!workload.threshold.empty() && workload.threshold != "unlimited") {
    const auto threshold = parse_threshold(workload.threshold);
    if (!threshold)
      throw CLI::ValidationError("--threshold", "neither a size nor unlimited: " + workload.threshold);
    workload.threshold = *threshold;
  }
  workload.latency = raw.mode != "bandwidth";
  workload.bandwidth = raw.mode != "latency";
  if (raw.protocol == "ll") workload.protocol = Protocol::kLl;
  if (raw.protocol == "ll128") workload.protocol = Protocol::kLl128;
  if (workload.consume_lag >= workload.window) {
    throw CLI::ValidationError("--consume-lag", "must be below --window");
  }
}

std::vector<std::string> list_workload_arguments(const CLI::App& app) {
  std::vector<std::string> arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != kWorkloadGroup || option->count() == 0) continue;
    arguments.push_back(option->get_name() + "=" + option->results().back());
  }
  return arguments;
}

void settle_hosts(Options& options) {
  if (options.child >= 0) return;
  if (options.server && !options.workload_arguments.empty()) {
    throw CLI::ValidationError(options.workload_arguments.front(), "belongs to the client, not to --server");
  }
  if (!options.client.empty() && options.port == 0) {
    throw CLI::ValidationError("--port", "a client needs the server's");
  }
  if (options.wait_s < 0) options.wait_s = options.server ? kServerWaitS : kClientWaitS;
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  RawWorkload raw;
  CLI::App app(
      "Moves and verifies messages between two processes through a NCCL net plugin, without NCCL or a GPU.\n"
      "Both run here, or one on each of two hosts: --server there, then --client HOST here.");
  add_workload_options(app, options, raw);
  add_host_options(app, options);
  add_own_options(app, options);
  try {
    app.parse(argc, argv);
    resolve(options, raw);
    options.workload_arguments = list_workload_arguments(app);
    settle_hosts(options);
    if (options.plugin.empty()) options.plugin = find_default_plugin().string();
  } catch (const CLI::ParseError& error) {
    parsed.exit_status = app.exit(error) == 0 ? kExitOk : kExitFailed;
  }
  return parsed;
}

void adopt_workload(Options& options, const std::vector<std::string>& arguments) {
  Workload workload;
  RawWorkload raw;
  CLI::App app;
  app.set_help_flag();
  add_workload_options(app, workload, raw);
  try {
    // CLI11 takes a vector from its back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    resolve(workload, raw);
  } catch (const CLI::ParseError& error) {
    throw ToolError(std::string("the client's options: ") + error.what());
  }
  static_cast<Workload&>(options) = workload;
  options.workload_arguments = arguments;
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
