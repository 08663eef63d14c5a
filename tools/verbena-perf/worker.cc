#include "verbena-perf/driver.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/nccl_host.h"
#include "common/nccl_ib.h"
#include "common/net_plugin.h"
#include "common/size.h"
#include "common/table.h"
#include "protocol/datagram/greeting.h"
#include "verbena-perf/exchange.h"
#include "verbena-perf/report.h"

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

uint64_t choose_count(const PerfOptions& options, uint64_t length_bytes) {
  if (options.iterations != 0) return options.iterations;
  // Passes of a comparison are shorter, because there are many.
  const uint64_t pass_bytes = (options.against ? 64ULL : 512ULL) << 20;
  const uint64_t least = options.against ? 4 : 10;
  return std::clamp<uint64_t>(pass_bytes / std::max<uint64_t>(length_bytes, 1), least, 1000);
}

uint32_t encode_protocol(Protocol protocol) {
  return protocol == Protocol::kLl      ? abi::kProtoLl
         : protocol == Protocol::kLl128 ? abi::kProtoLl128
                                        : abi::kProtoSimple;
}

NcclHost::Handle swap_handles(LineChannel& partner, const NcclHost::Handle& own, double timeout_s) {
  const int64_t deadline_ns = deadline_after_s(timeout_s);
  if (!partner.send_line(nlohmann::json(own).dump(), deadline_ns)) throw ToolError("the partner is gone");
  const auto received = partner.receive_line(deadline_ns);
  if (received.status == LineChannel::Status::kTimeout) throw ToolError("the partner sent no handle in time");
  if (received.status == LineChannel::Status::kClosed) throw ToolError("the partner is gone");
  return nlohmann::json::parse(received.line).get<NcclHost::Handle>();
}

std::unique_ptr<NetPlugin> load_nccl_ib(const std::string& path, std::string& release) {
  const NcclIbLibrary library(path);
  release = "NCCL " + library.release() + "'s own ";
  return library.adapt();
}

// The connections to the partner, one in each direction, and what is done with them.
struct Pair {
  Pair(NetPlugin& plugin, const PerfOptions& options, LineChannel& partner, int device)
      : host(plugin, options.timeout_s) {
    host.connect(device, [&](const NcclHost::Handle& own) {
      uses_datagrams = protocol::datagram::is_datagram_handle(own.data());
      return swap_handles(partner, own, options.timeout_s);
    });
  }
  // One carries messages at a time, so that all do with the memory of `first`; null: this is the first.
  void start(NetPlugin& plugin, const PerfOptions& options, LineChannel& partner, const Pair* first) {
    send.emplace(plugin, host.send_comm(), options, first == nullptr ? nullptr : &*first->send);
    receive.emplace(plugin, host, options, first == nullptr ? nullptr : &*first->receive);
    exchange.emplace(*send, *receive, partner, options);
  }
  void close() {
    send->release();
    receive->release();
    host.close();
  }

  NcclHost host;
  bool uses_datagrams = false;  // by its handle: a setting of either host may say so
  std::optional<SendSide> send;
  std::optional<ReceiveSide> receive;
  std::optional<Exchange> exchange;
};

class Worker {
 public:
  explicit Worker(const PerfOptions& options)
      : options_(options), control_(kControlDescriptor), partner_(kPartnerDescriptor) {}

  int run();

 private:
  void report(const nlohmann::json& line) {
    control_.send_line(line.dump(), deadline_after_s(kReportTimeoutS));
  }
  // Only warm-ups have distinct patterns. With --verify they are as many messages as the timed ones.
  uint64_t warmup_count(uint64_t timed) const {
    return options_.verify ? std::max(timed, options_.warmup) : options_.warmup;
  }
  void enter(const std::string& phase) { report({{"phase", phase}}); }
  void run_all();
  void run_sizes(NetPlugin& plugin);
  nlohmann::json measure(uint64_t length_bytes);
  void measure_last(uint64_t length_bytes, nlohmann::json& row);
  void measure_latency(Exchange& exchange, uint64_t length_bytes, nlohmann::json& row);
  void measure_bandwidth(Exchange& exchange, uint64_t length_bytes, nlohmann::json& row);

  const PerfOptions& options_;
  LineChannel control_;
  LineChannel partner_;
  std::vector<std::unique_ptr<Pair>> pairs_;
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
  const bool is_own = options_.transport != Transport::kNcclIb;
  enter("load " + (is_own ? options_.plugin : options_.nccl));
  std::optional<PluginLibrary> library;
  std::string name;
  const std::unique_ptr<NetPlugin> plugin = is_own
                                                ? library.emplace(options_.plugin).adapt(options_.abi_version)
                                                : load_nccl_ib(options_.nccl, name);
  enter("init");
  plugin->init(log_plugin_line<show_plugin_line>);
  enter("connect");
  const int index = choose_device(*plugin, options_.device, options_.rails);
  for (unsigned i = 0; i < options_.pairs; ++i)
    pairs_.push_back(std::make_unique<Pair>(*plugin, options_, partner_, index));
  const DeviceProperties device = plugin->read_properties(index);
  report({{"device",
           {{"plugin", name + plugin->name()},
            {"abi", plugin->version()},
            {"transport", describe_transport(!is_own                          ? Transport::kNcclIb
                                             : pairs_.front()->uses_datagrams ? Transport::kDatagram
                                                                              : Transport::kVerbena)},
            {"name", device.name},
            {"speed_mbps", device.speed_mbps},
            {"unpack", pairs_.front()->host.slots() != nullptr}}}});
  enter("register");
  for (const auto& pair : pairs_)
    pair->start(*plugin, options_, partner_, pair == pairs_.front() ? nullptr : pairs_.front().get());
  run_sizes(*plugin);
  enter("close");
  for (const auto& pair : pairs_) pair->close();
  plugin->finalize();
}

void Worker::run_sizes(NetPlugin& plugin) {
  plugin.set_attributes(describe_ring_all_reduce(encode_protocol(options_.protocol)));
  for (const uint64_t length_bytes : options_.sizes_bytes) {
    report({{"row", measure(length_bytes)}});
  }
}

nlohmann::json Worker::measure(uint64_t length_bytes) {
  const uint64_t count = choose_count(options_, length_bytes);
  nlohmann::json row{{"size", length_bytes}, {"count", count}};
  Exchange& first = *pairs_.front()->exchange;
  if (options_.latency) measure_latency(first, length_bytes, row);
  if (options_.bandwidth) measure_bandwidth(first, length_bytes, row);
  if (pairs_.size() > 1) measure_last(length_bytes, row);
  ReceiveCounts counts;
  for (const auto& pair : pairs_) counts += pair->receive->take_counts();
  row["staged"] = counts.staged;
  row["direct"] = counts.direct;
  row["descriptors"] = counts.descriptors;
  row["verified_bytes"] = counts.verified_bytes;
  row["wrong_bytes"] = counts.wrong_bytes;
  return row;
}

// After those between have carried something too.
void Worker::measure_last(uint64_t length_bytes, nlohmann::json& row) {
  enter("all connections, " + format_size(length_bytes) + " B");
  for (const auto& pair : pairs_) pair->exchange->run_bandwidth(length_bytes, options_.window, true);
  nlohmann::json last{{"count", row["count"]}};
  if (options_.latency) measure_latency(*pairs_.back()->exchange, length_bytes, last);
  if (options_.bandwidth) measure_bandwidth(*pairs_.back()->exchange, length_bytes, last);
  for (const char* name : {"latency_us", "bandwidth_gbps"})
    if (last.contains(name)) row[std::string("last_") + name] = last[name];
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
  do exchange.run_bandwidth(length_bytes, warmup_count(count), true);
  while (exchange.is_wanted_again());
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

int run_worker(const PerfOptions& options) {
  prepare_child_process();
  const char* const debug = std::getenv("NCCL_DEBUG");
  log_everything = options.verbose || (debug != nullptr && std::string(debug) == "INFO");
  log_child = options.child;
  return Worker(options).run();
}

}  // namespace verbena::tools::perf
