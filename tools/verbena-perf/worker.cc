#include "verbena-perf/worker.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/nccl_ib.h"
#include "common/plugin_log.h"
#include "common/samples.h"
#include "common/size.h"
#include "verbena-perf/connection.h"
#include "verbena-perf/exchange.h"

namespace verbena::tools::perf {
namespace {

constexpr double kReportTimeoutS = 10;

bool log_everything = false;
int log_child = 0;

void show_plugin_line(const PluginLine& line) {
  if (!line.is_warning() && !log_everything) return;
  std::fprintf(stderr, "[%d] %s%s (%s:%d)\n", log_child, line.is_warning() ? "WARN " : "", line.text.c_str(),
               line.file != nullptr ? line.file : "?", line.line);
}

uint64_t choose_count(const Options& options, uint64_t length_bytes) {
  if (options.iterations != 0) return options.iterations;
  // A comparison has many passes.
  const uint64_t pass_bytes = (options.against ? 64ULL : 512ULL) << 20;
  const uint64_t least = options.against ? 4 : 10;
  return std::clamp<uint64_t>(pass_bytes / std::max<uint64_t>(length_bytes, 1), least, 1000);
}

uint32_t encode_protocol(Protocol protocol) {
  return protocol == Protocol::kLl      ? abi::kProtoLl
         : protocol == Protocol::kLl128 ? abi::kProtoLl128
                                        : abi::kProtoSimple;
}

std::unique_ptr<NetPlugin> load_nccl_ib(const std::string& path, std::string& release) {
  const NcclIbLibrary library(path);
  release = "NCCL " + library.release() + "'s own ";
  return library.adapt();
}

class Worker {
 public:
  explicit Worker(const Options& options)
      : options_(options), control_(kControlDescriptor), partner_(kPartnerDescriptor) {}

  int run();

 private:
  void report(const nlohmann::json& line) {
    control_.send_line(line.dump(), deadline_after_s(kReportTimeoutS));
  }
  // Only warm-ups have distinct patterns: with --verify as many messages as are timed.
  uint64_t warmup_count(uint64_t timed) const {
    return options_.verify ? std::max(timed, options_.warmup) : options_.warmup;
  }
  void enter(const std::string& phase) { report({{"phase", phase}}); }
  void run_all();
  void run_sizes(NetPlugin& plugin, Exchange& exchange, ReceiveSide& receive);
  nlohmann::json measure(Exchange& exchange, ReceiveSide& receive, uint64_t length_bytes);
  void measure_latency(Exchange& exchange, uint64_t length_bytes, nlohmann::json& row);
  void measure_bandwidth(Exchange& exchange, uint64_t length_bytes, nlohmann::json& row);

  const Options& options_;
  LineChannel control_;
  LineChannel partner_;
};

int Worker::run() {
  try {
    run_all();
    report({{"done", true}});
    return kExitOk;
  } catch (const std::exception& error) {
    report({{"error", error.what()}});
    return kExitFailed;
  }
}

void Worker::run_all() {
  const bool is_own = options_.transport == Transport::kVerbena;
  enter("load " + (is_own ? options_.plugin : options_.nccl));
  std::optional<PluginLibrary> library;
  std::string name;
  const std::unique_ptr<NetPlugin> plugin = is_own
                                                ? library.emplace(options_.plugin).adapt(options_.abi_version)
                                                : load_nccl_ib(options_.nccl, name);
  enter("init");
  plugin->init(log_plugin_line<show_plugin_line>);
  enter("connect");
  Connection connection;
  establish(*plugin, partner_, options_, connection);
  const DeviceProperties device = plugin->read_properties(connection.device);
  report({{"device",
           {{"plugin", name + plugin->name()},
            {"abi", plugin->version()},
            {"name", device.name},
            {"speed_mbps", device.speed_mbps},
            {"unpack", connection.unpacks}}}});
  enter("register");
  SendSide send(*plugin, connection.send_comm, options_);
  ReceiveSide receive(*plugin, connection, options_);
  Exchange exchange(send, receive, partner_, options_);
  run_sizes(*plugin, exchange, receive);
  enter("close");
  send.release();
  receive.release();
  connection.close(*plugin);
  plugin->finalize();
}

void Worker::run_sizes(NetPlugin& plugin, Exchange& exchange, ReceiveSide& receive) {
  plugin.set_attributes(describe_ring_all_reduce(encode_protocol(options_.protocol)));
  for (const uint64_t length_bytes : options_.sizes_bytes) {
    report({{"row", measure(exchange, receive, length_bytes)}});
  }
}

nlohmann::json Worker::measure(Exchange& exchange, ReceiveSide& receive, uint64_t length_bytes) {
  const uint64_t count = choose_count(options_, length_bytes);
  nlohmann::json row{{"size", length_bytes}, {"count", count}};
  if (options_.latency) measure_latency(exchange, length_bytes, row);
  if (options_.bandwidth) measure_bandwidth(exchange, length_bytes, row);
  const ReceiveCounts counts = receive.take_counts();
  row["staged"] = counts.staged;
  row["direct"] = counts.direct;
  row["descriptors"] = counts.descriptors;
  row["verified_bytes"] = counts.verified_bytes;
  row["wrong_bytes"] = counts.wrong_bytes;
  return row;
}

void Worker::measure_latency(Exchange& exchange, uint64_t length_bytes, nlohmann::json& row) {
  const std::string size = format_size(length_bytes) + " B";
  const uint64_t count = row["count"];
  enter("latency, warm-up, " + size);
  exchange.run_latency(length_bytes, warmup_count(count), true);
  enter("latency, timed, " + size);
  std::vector<double> samples_us, medians_us;
  for (unsigned pass = 0; pass < options_.repeats; ++pass) {
    const std::vector<double> pass_us = exchange.run_latency(length_bytes, count, false);
    if (pass_us.empty()) continue;
    medians_us.push_back(compute_median(pass_us));
    samples_us.insert(samples_us.end(), pass_us.begin(), pass_us.end());
  }
  if (samples_us.empty()) return;
  row["latency_us"] = compute_median(samples_us);
  row["latency_p99_us"] = compute_percentile(samples_us, 99);
  row["latency_min_us"] = *std::min_element(samples_us.begin(), samples_us.end());
  row["latency_passes_us"] = medians_us;
}

void Worker::measure_bandwidth(Exchange& exchange, uint64_t length_bytes, nlohmann::json& row) {
  const std::string size = format_size(length_bytes) + " B";
  const uint64_t count = row["count"];
  enter("bandwidth, warm-up, " + size);
  exchange.run_bandwidth(length_bytes, warmup_count(count), true);
  enter("bandwidth, timed, " + size);
  std::vector<double> passes_gbps;
  for (unsigned pass = 0; pass < options_.repeats; ++pass) {
    const double seconds = exchange.run_bandwidth(length_bytes, count, false);
    if (seconds > 0) passes_gbps.push_back(static_cast<double>(length_bytes * count) * 1e-9 / seconds);
  }
  if (passes_gbps.empty()) return;
  row["bandwidth_gbps"] = compute_median(passes_gbps);
  row["bandwidth_min_gbps"] = *std::min_element(passes_gbps.begin(), passes_gbps.end());
  row["bandwidth_passes_gbps"] = passes_gbps;
}

}  // namespace

int run_worker(const Options& options) {
  prepare_child_process();
  const char* const debug = std::getenv("NCCL_DEBUG");
  log_everything = options.verbose || (debug != nullptr && std::string(debug) == "INFO");
  log_child = options.child;
  return Worker(options).run();
}

}  // namespace verbena::tools::perf
