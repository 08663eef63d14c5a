#include "verbena-perf/worker.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/samples.h"
#include "common/size.h"
#include "verbena-perf/connection.h"
#include "verbena-perf/exchange.h"

namespace verbena::tools::perf {
namespace {

constexpr double kReportTimeoutS = 10;
constexpr uint32_t kRingAllReduceOperation = 1U << 4;
constexpr uint32_t kRingAlgorithm = 1U << 1;

bool log_everything = false;
int log_child = 0;

void log_plugin_line(abi::LogLevel level, unsigned long, const char* file, int line, const char* format,
                     ...) {
  if (level > abi::kLogWarn && !log_everything) return;
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[%d] %s%s (%s:%d)\n", log_child, level <= abi::kLogWarn ? "WARN " : "", text,
               file != nullptr ? file : "?", line);
}

uint64_t choose_count(const Options& options, uint64_t length_bytes) {
  if (options.iterations != 0) return options.iterations;
  constexpr uint64_t kPassBytes = 512ULL << 20;
  return std::clamp<uint64_t>(kPassBytes / std::max<uint64_t>(length_bytes, 1), 10, 1000);
}

MessageAttributes describe_messages(Protocol protocol) {
  MessageAttributes attributes;
  attributes.operation = kRingAllReduceOperation;
  attributes.algorithm = kRingAlgorithm;
  attributes.protocol = protocol == Protocol::kLl      ? abi::kProtoLl
                        : protocol == Protocol::kLl128 ? abi::kProtoLl128
                                                       : abi::kProtoSimple;
  return attributes;
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
  void enter(const std::string& phase) { report({{"phase", phase}}); }
  void run_all();
  void run_sizes(NetPlugin& plugin, Exchange& exchange, ReceiveSide& receive);
  nlohmann::json measure(Exchange& exchange, ReceiveSide& receive, uint64_t length_bytes);

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
  enter("load " + options_.plugin);
  const PluginLibrary library(options_.plugin);
  const std::unique_ptr<NetPlugin> plugin = library.adapt(options_.abi_version);
  enter("init");
  plugin->init(log_plugin_line);
  enter("connect");
  Connection connection;
  establish(*plugin, partner_, options_, connection);
  const DeviceProperties device = plugin->read_properties(connection.device);
  report({{"device",
           {{"plugin", plugin->name()},
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
  plugin.set_attributes(describe_messages(options_.protocol));
  for (const uint64_t length_bytes : options_.sizes_bytes) {
    report({{"row", measure(exchange, receive, length_bytes)}});
  }
}

nlohmann::json Worker::measure(Exchange& exchange, ReceiveSide& receive, uint64_t length_bytes) {
  const uint64_t count = choose_count(options_, length_bytes);
  const std::string size = format_size(length_bytes) + " B";
  nlohmann::json row{{"size", length_bytes}, {"count", count}};
  if (options_.latency) {
    enter("latency, warm-up, " + size);
    exchange.run_latency(length_bytes, options_.verify ? std::max(count, options_.warmup) : options_.warmup,
                         true);
    enter("latency, timed, " + size);
    const std::vector<double> samples_us = exchange.run_latency(length_bytes, count, false);
    if (!samples_us.empty()) {
      row["latency_us"] = compute_median(samples_us);
      row["latency_p99_us"] = compute_percentile(samples_us, 99);
    }
  }
  if (options_.bandwidth) {
    enter("bandwidth, warm-up, " + size);
    exchange.run_bandwidth(length_bytes, options_.verify ? std::max(count, options_.warmup) : options_.warmup,
                           true);
    enter("bandwidth, timed, " + size);
    const double seconds = exchange.run_bandwidth(length_bytes, count, false);
    if (seconds > 0) row["bandwidth_gbps"] = static_cast<double>(length_bytes * count) * 1e-9 / seconds;
  }
  const ReceiveCounts counts = receive.take_counts();
  row["staged"] = counts.staged;
  row["direct"] = counts.direct;
  row["descriptors"] = counts.descriptors;
  row["verified_bytes"] = counts.verified_bytes;
  row["wrong_bytes"] = counts.wrong_bytes;
  return row;
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
