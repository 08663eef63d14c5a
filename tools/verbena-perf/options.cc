#include "verbena-perf/options.h"

#include <CLI/CLI.hpp>

#include "common/error.h"
#include "common/option_style.h"
#include "common/self_path.h"
#include "common/size.h"

namespace verbena::tools::perf {
namespace {

constexpr const char* kWorkloadGroup = "What is measured (a server takes these options from its client)";
constexpr const char* kHostGroup = "Two hosts";
constexpr const char* kVerbena = "verbena";
constexpr const char* kDatagram = "datagram";
constexpr const char* kNcclIb = "nccl-ib";
constexpr const char* kAgainst = "--against";
constexpr const char* kIb = "ib";
constexpr unsigned kComparedRepeats = 5;
constexpr double kServerWaitS = 600;
constexpr double kClientWaitS = 10;

struct RawWorkload {
  SizeOptions sizes;
  std::string mode = "both";
  std::string protocol = "simple";
  std::string transport = kVerbena;
  std::string against;
};

void add_shape_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  add_size_options(app, raw.sizes);
  app.add_option("--iters,-n", workload.iterations,
                 "number of timed messages per size and pass (0: the tool chooses the number by the size)")
      ->type_name("N");
  app.add_option("--warmup,-w", workload.warmup, "number of untimed messages before the timed messages")
      ->type_name("N")
      ->capture_default_str();
  add_range_option(app, "--window", workload.window, "messages in flight", 1, 8);
  app.add_option(
         "--consume-lag", workload.consume_lag,
         "read the data of a completed receive only after this number of later receives have completed")
      ->check(CLI::Range(0, 7));
  app.add_option("--mode", raw.mode, "latency, bandwidth or both")
      ->check(CLI::IsMember({"latency", "bandwidth", "both"}))
      ->capture_default_str();
  app.add_option("--src-offset", workload.source_offset_bytes,
                 "number of bytes by which the address of each send buffer is shifted")
      ->check(CLI::Range(0, 4096));
  app.add_option("--dst-offset", workload.destination_offset_bytes,
                 "number of bytes by which the address of each receive buffer is shifted")
      ->check(CLI::Range(0, 4096));
}

void add_transport_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  app.add_option("--transport", raw.transport,
                 "transport to measure. verbena: the plugin; datagram: the plugin with "
                 "VERBENA_TRANSPORT=datagram; nccl-ib: NCCL's own IB transport (see --nccl)")
      ->check(CLI::IsMember({kVerbena, kDatagram, kNcclIb}))
      ->capture_default_str();
  app.add_option(kAgainst, raw.against,
                 "transport to compare with (only ib is supported). The tool alternates between runs of the "
                 "plugin and runs of "
                 "NCCL's own IB transport, and shows the factor by which the plugin is better")
      ->check(CLI::IsMember({kIb}));
  add_range_option(app, "--rounds", workload.rounds, "with --against: number of runs of each transport", 1,
                   1000);
  app.add_option("--repeats,-r", workload.repeats,
                 "number of timed passes per size and run. Default: 1, or 5 with --against")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  app.add_option("--run", workload.run)->group("");
}

void add_contract_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  add_range_option(app, "--abi", workload.abi_version,
                   "version of NCCL's plugin table to use; 9 means ncclNetPlugin_v9", 7, 12);
  app.add_option("--rails", workload.rails,
                 "if N is greater than 1, join the first N devices into one virtual device")
      ->check(CLI::Range(1, 8));
  add_range_option(app, "--pairs", workload.pairs,
                   "number of connections in each direction. All connections carry messages, but the tool "
                   "measures only the first and the last connection",
                   1, 4096);
  app.add_option("--unpack", workload.unpack, "set VERBENA_UNPACK to 0 or 1")->check(CLI::Range(0, 1));
  app.add_option("--threshold", workload.threshold,
                 "value of VERBENA_UNPACK_THRESHOLD, in bytes, or unlimited. If VERBENA_UNPACK is not set, "
                 "this option sets VERBENA_UNPACK=1");
  app.add_option("--protocol", raw.protocol, "register buffers as NCCL does for this protocol")
      ->check(CLI::IsMember({"simple", "ll", "ll128"}))
      ->capture_default_str();
  app.add_flag("--user-buffer", workload.user_buffer,
               "receive into a buffer that is registered after the connection has been set up, as NCCL does "
               "with buffers of the application");
  app.add_flag("--cuda-type", workload.cuda_type,
               "register the buffers as GPU memory, although they are host memory");
  app.add_option("--verify", workload.verify,
                 "with 1, run a pass that checks every byte before the measurement; with 0, skip this pass")
      ->capture_default_str();
  // For tests that inject a failure while messages are in flight.
  app.add_option("--until", workload.until)->group("");
  add_timeout_option(app, workload.timeout_s);
}

void add_workload_options(CLI::App& app, Workload& workload, RawWorkload& raw) {
  app.option_defaults()->group(kWorkloadGroup);
  add_shape_options(app, workload, raw);
  add_transport_options(app, workload, raw);
  add_contract_options(app, workload, raw);
}

void add_host_options(CLI::App& app, PerfOptions& options) {
  app.option_defaults()->group(kHostGroup);
  auto* const server = app.add_flag("--server", options.server, "serve one client, then exit");
  app.add_option("--client", options.client, "host name or address of the server")->excludes(server);
  app.add_option("--port", options.port,
                 "TCP port of the server (0: any free port; the server prints the number of the port)")
      ->capture_default_str();
  add_duration_option(app, "--wait", options.wait_s,
                      "time to wait for the other host (default: 10m on the server, 10s on the client)", 0,
                      86400);
  add_duration_option(app, "--last-words", options.last_words_s,
                      "after a failure on one side, time to wait until the other side has reported the cause",
                      0, 3600);
}

void add_own_options(CLI::App& app, PerfOptions& options) {
  app.option_defaults()->group("Libraries and settings");
  app.add_option(
      "--plugin", options.plugin,
      "libnccl-net.so to load. Default: libnccl-net.so in the folder ../lib relative to this tool");
  app.add_option("--nccl", options.nccl,
                 "with --transport nccl-ib: path of libnccl.so.2. NCCL may be built for any CUDA release")
      ->capture_default_str();
  app.add_option("--device", options.device, "device index")->check(CLI::NonNegativeNumber);
  app.add_option("--calibrate", options.calibrate,
                 "measure direct and staged messages and write the fastest settings to this tuning file. "
                 "With --rails, also measure striped messages");
  app.add_flag("--verbose,-v", options.verbose,
               "show the environment of the child processes, and the plugin's log");
  app.add_option("--child", options.child)->group("");
  add_output_options(app, options.output);
}

void resolve(Workload& workload, const RawWorkload& raw) {
  workload.sizes_bytes = resolve_sizes(raw.sizes);
  if (!workload.threshold.empty() && workload.threshold != "unlimited") {
    const auto threshold = parse_threshold(workload.threshold);
    if (!threshold)
      throw CLI::ValidationError("--threshold",
                                 "the value is not a size and not the word unlimited: " + workload.threshold);
    workload.threshold = *threshold;
  }
  workload.latency = raw.mode != "bandwidth";
  workload.bandwidth = raw.mode != "latency";
  workload.against = !raw.against.empty();
  if (workload.repeats == 0) workload.repeats = workload.against ? kComparedRepeats : 1;
  if (raw.transport == kDatagram) workload.transport = Transport::kDatagram;
  if (raw.transport == kNcclIb) workload.transport = Transport::kNcclIb;
  if (raw.protocol == "ll") workload.protocol = Protocol::kLl;
  if (raw.protocol == "ll128") workload.protocol = Protocol::kLl128;
  if (workload.consume_lag >= workload.window) {
    throw CLI::ValidationError("--consume-lag", "must be below --window");
  }
}

// The arguments of the first `count` options of the application.
std::vector<std::string> list_workload_arguments(const CLI::App& app, size_t count) {
  std::vector<std::string> arguments;
  std::vector<const CLI::Option*> options = app.get_options();
  options.resize(count);
  for (const CLI::Option* option : options) {
    const bool is_workload = option != app.get_help_ptr() && option->count() != 0;
    // Hidden ones have no get_name().
    if (is_workload)
      arguments.push_back("--" + option->get_lnames().front() + "=" + option->results().back());
  }
  return arguments;
}

void settle_hosts(PerfOptions& options) {
  if (options.child >= 0) return;
  if (options.against && options.transport != Transport::kVerbena) {
    throw CLI::ValidationError("--transport",
                               "--against runs both transports; leave out one of the two options");
  }
  if (options.server && !options.workload_arguments.empty()) {
    throw CLI::ValidationError(options.workload_arguments.front(), "belongs to the client, not to --server");
  }
  if (!options.client.empty() && options.port == 0) {
    throw CLI::ValidationError(
        "--port", "only a server can use port 0; give the client the port that the server printed");
  }
  if (!options.calibrate.empty() && options.output.wants_anything())
    throw CLI::ValidationError("--calibrate",
                               "writes only the tuning file; leave out --json, --csv, --plot and --compare");
  if (options.wait_s < 0) options.wait_s = options.server ? kServerWaitS : kClientWaitS;
}

}  // namespace

Parsed<PerfOptions> parse_options(int argc, const char* const* argv) {
  Parsed<PerfOptions> parsed;
  PerfOptions& options = parsed.options;
  RawWorkload raw;
  CLI::App app(
      "Sends messages between two processes through an NCCL net plugin and verifies the messages. Needs "
      "neither NCCL nor a GPU.\nBy default, both processes run on this host. To use two hosts, start "
      "verbena-perf --server on one host, and then verbena-perf --client HOST on the other host, where HOST "
      "is the address of the first host.\nverbena-perf report DIR -o FILE makes a page from the results that "
      "--json has stored in the folder DIR.");
  add_workload_options(app, options, raw);
  const size_t workload_count = app.get_options().size();
  add_host_options(app, options);
  add_own_options(app, options);
  style_help(app, "verbena-perf");
  parsed.exit_status = parse_arguments(app, argc, argv, [&] {
    options.workload_arguments = list_workload_arguments(app, workload_count);
    resolve(options, raw);
    settle_hosts(options);
    if (options.child < 0) check_output_options(options.output);
    if (options.plugin.empty()) options.plugin = find_default_plugin().string();
  });
  return parsed;
}

void adopt_workload(PerfOptions& options, const std::vector<std::string>& arguments) {
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

PerfOptions make_run_options(const PerfOptions& options, unsigned run) {
  PerfOptions made = options;
  if (!options.against) return made;
  made.run = run;
  // 0 1, 1 0, 0 1, ...: drift affects both equally.
  made.transport = (run % 4 == 0 || run % 4 == 3) ? Transport::kVerbena : Transport::kNcclIb;
  made.run_arguments = {
      std::string("--transport=") + (made.transport == Transport::kNcclIb ? kNcclIb : kVerbena),
      "--run=" + std::to_string(run)};
  made.workload_arguments.insert(made.workload_arguments.end(), made.run_arguments.begin(),
                                 made.run_arguments.end());
  return made;
}

const char* describe_protocol(Protocol protocol) {
  static constexpr const char* kNames[] = {"simple", "ll", "ll128"};
  return kNames[static_cast<size_t>(protocol)];
}

}  // namespace verbena::tools::perf
