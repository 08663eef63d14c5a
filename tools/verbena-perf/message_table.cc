#include "verbena-perf/report.h"

namespace verbena::tools::perf {
namespace {

using Role = ResultColumn::Role;

// A worker's name for a figure, and the stored one.
struct Renamed {
  const char* from;
  const char* to;
};
constexpr Renamed kMembers[] = {{"size", "size_bytes"},
                                {"path", "path"},
                                {"count", "messages"},
                                {"latency_us", "latency_us"},
                                {"latency_p99_us", "latency_p99_us"},
                                {"latency_min_us", "latency_min_us"},
                                {"bandwidth_gbps", "bandwidth_GBps"},
                                {"bandwidth_min_gbps", "bandwidth_min_GBps"},
                                {"staged", "staged_messages"},
                                {"direct", "direct_messages"},
                                {"descriptors", "descriptors"},
                                {"verified_bytes", "verified_bytes"},
                                {"wrong_bytes", "wrong_bytes"},
                                {"latency_passes_us", "latency_passes_us"},
                                {"bandwidth_passes_gbps", "bandwidth_passes_GBps"}};

}  // namespace

const char* describe_transport(Transport transport) {
  return transport == Transport::kNcclIb ? "nccl-ib" : "verbena";
}

ResultTable make_message_table() {
  return {"messages",
          {{"transport", "transport", "", Role::kKey},
           {"size_bytes", "size", "B", Role::kKey},
           {"path", "path", ""},
           {"messages", "messages", ""},
           {"latency_us", "latency", "us", Role::kLower, "median", true},
           {"latency_p99_us", "latency p99", "us", Role::kLower, "p99", true},
           {"latency_min_us", "latency min", "us", Role::kLower, "best"},
           {"bandwidth_GBps", "bandwidth", "GB/s", Role::kHigher, "median", true},
           {"bandwidth_min_GBps", "bandwidth min", "GB/s", Role::kHigher, "worst"},
           {"staged_messages", "staged", "messages"},
           {"direct_messages", "direct", "messages"},
           {"descriptors", "descriptors", ""},
           {"verified_bytes", "verified", "B"},
           {"wrong_bytes", "wrong", "B"},
           {"latency_passes_us", "", "us", Role::kSamples},
           {"bandwidth_passes_GBps", "", "GB/s", Role::kSamples}}};
}

void add_message_rows(ResultTable& table, Transport transport, const nlohmann::json& rows) {
  for (const nlohmann::json& row : rows) {
    nlohmann::json& stored =
        table.rows.emplace_back(nlohmann::json{{"transport", describe_transport(transport)}});
    for (const Renamed& member : kMembers) {
      if (row.contains(member.from)) stored[member.to] = row[member.from];
    }
  }
}

nlohmann::json describe_setup(const nlohmann::json& device, const Options& options) {
  nlohmann::json setup{{"protocol", describe_protocol(options.protocol)},
                       {"window", std::to_string(options.window) + " messages"},
                       {"rails", std::to_string(options.rails)}};
  if (device.is_object()) {
    setup["transport"] =
        device["plugin"].get<std::string>() + ", table v" + std::to_string(device["abi"].get<int>());
    setup["device"] =
        device["name"].get<std::string>() + ", " + std::to_string(device["speed_mbps"].get<int>()) + " Mb/s";
    setup["unpack"] = device["unpack"].get<bool>() ? "on" : "off";
  }
  if (!options.client.empty()) setup["server"] = options.client;
  return setup;
}

}  // namespace verbena::tools::perf
