#include "verbena-info/plugin_view.h"

#include <map>

#include "common/error.h"
#include "common/net_plugin.h"
#include "verbena-info/children.h"

namespace verbena::tools::info {
namespace {

constexpr const char* kNetPrefix = "ncclNetPlugin_v";
constexpr const char* kTunerPrefix = "ncclTunerPlugin_v";
constexpr double kGraceS = 3;

Json list_memory(int support) {
  Json kinds = Json::array();
  if ((support & abi::kPtrHost) != 0) kinds.push_back("host");
  if ((support & abi::kPtrCuda) != 0) kinds.push_back("GPU pointer");
  if ((support & abi::kPtrDmabuf) != 0) kinds.push_back("dma-buf");
  return kinds;
}

Json describe_properties(int index, const DeviceProperties& properties) {
  return {{"index", index},
          {"name", properties.name},
          {"pci_path", text_or_null(properties.pci_path)},
          {"guid", properties.guid},
          {"port", properties.port},
          {"speed_mbps", properties.speed_mbps},
          {"latency_us", properties.latency_us},
          {"memory", list_memory(properties.pointer_support)},
          {"max_communicators", properties.max_communicators},
          {"max_receives", properties.max_receives},
          {"unpack", properties.device_type == abi::kDeviceUnpack}};
}

// NCCL asks to join the ports of one card; what is on no PCI bus counts as near to each other too.
std::vector<std::vector<int>> find_rail_sets(const std::vector<DeviceProperties>& devices) {
  std::map<std::string, std::vector<int>> by_card;
  for (size_t i = 0; i < devices.size(); ++i) by_card[devices[i].pci_path].push_back(static_cast<int>(i));
  std::vector<std::vector<int>> sets;
  for (const auto& [path, members] : by_card) {
    if (members.size() > 1) sets.push_back(members);
  }
  return sets;
}

Json try_to_join(NetPlugin& plugin, const std::vector<int>& members) {
  Json set{{"members", members}};
  try {
    const DeviceProperties joined = plugin.read_properties(plugin.make_virtual_device(members));
    set["name"] = joined.name;
    set["speed_mbps"] = joined.speed_mbps;
  } catch (const ToolError& error) {
    set["refused"] = error.what();
  }
  return set;
}

int choose_table(const std::vector<int>& versions) {
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    if (*version <= kNewestNetTable) return *version;
  }
  throw ToolError("the plugin exports no net table that this tool knows (up to v" +
                  std::to_string(kNewestNetTable) + ")");
}

void look_through_table(const PluginLibrary& library, int version) {
  const auto plugin = library.adapt(version);
  plugin->init(log_plugin_line<keep_plugin_line>);
  Json view{{"table", version}, {"name", plugin->name()}, {"devices", Json::array()}};
  std::vector<DeviceProperties> devices;
  const int count = plugin->count_devices();
  for (int index = 0; index < count; ++index) {
    devices.push_back(plugin->read_properties(index));
    view["devices"].push_back(describe_properties(index, devices.back()));
  }
  view["rail_sets"] = Json::array();
  for (const auto& members : find_rail_sets(devices))
    view["rail_sets"].push_back(try_to_join(*plugin, members));
  answer({{"view", view}});
  plugin->finalize();
}

}  // namespace

int run_plugin_view(const Options& options) {
  show_plugin_lines(options.verbose);
  try {
    const PluginLibrary library(options.plugin);
    const std::vector<int> versions = library.list_versions(kNetPrefix);
    answer({{"plugin",
             {{"path", library.find_path()},
              {"net_tables", versions},
              {"tuner_tables", library.list_versions(kTunerPrefix)}}}});
    look_through_table(library, choose_table(versions));
    return kExitOk;
  } catch (const std::exception& error) {
    answer({{"problem", join_warnings(error.what())}});
    return kExitFailed;
  }
}

void collect_plugin_view(Json& document, const Options& options, const Environment& environment) {
  document["plugin"] = {{"path", options.plugin}, {"problem", nullptr}};
  document["nccl_view"] = nullptr;
  ChildAnswer answer = ask_child("view", options, environment, options.timeout_s + kGraceS);
  std::string problem = answer.problem.empty() ? "" : "the process that asked it " + answer.problem;
  for (Json& line : answer.lines) {
    if (line.contains("plugin")) document["plugin"].update(line["plugin"]);
    if (line.contains("view")) document["nccl_view"] = std::move(line["view"]);
    if (line.contains("problem")) problem = line["problem"];
  }
  document["plugin"]["problem"] = text_or_null(problem);
}

}  // namespace verbena::tools::info
