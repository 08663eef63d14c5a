// NCCL's view: the devices in the plugin's tables, and which table each library of NCCL would load.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/file_descriptor.h"
#include "common/error.h"
#include "common/nccl_search.h"
#include "common/net_plugin.h"
#include "verbena-info/collect.h"

namespace verbena::tools::info {
namespace {

constexpr const char* kNetPrefix = "ncclNetPlugin_v";
constexpr const char* kTunerPrefix = "ncclTunerPlugin_v";
constexpr const char* kRmaPrefix = "ncclRmaPlugin_v";
constexpr const char* kGinPrefix = "ncclGinPlugin_v";

std::vector<std::string> list_memory(int support) {
  std::vector<std::string> kinds;
  if ((support & abi::kPtrHost) != 0) kinds.emplace_back("host");
  if ((support & abi::kPtrCuda) != 0) kinds.emplace_back("GPU pointer");
  if ((support & abi::kPtrDmabuf) != 0) kinds.emplace_back("dma-buf");
  return kinds;
}

// NCCL asks to join the ports of one card. Devices without PCI bus count as one card.
std::vector<std::vector<int>> find_rail_sets(const std::vector<ViewedDevice>& devices) {
  std::map<std::string, std::vector<int>> by_card;
  for (const ViewedDevice& device : devices) by_card[device.pci_path].push_back(device.index);
  std::vector<std::vector<int>> sets;
  for (const auto& [path, members] : by_card) {
    if (members.size() > 1) sets.push_back(members);
  }
  return sets;
}

RailSet try_to_join(NetPlugin& plugin, const std::vector<int>& members) {
  try {
    const DeviceProperties joined = plugin.read_properties(plugin.make_virtual_device(members));
    return {members, joined.name, "", joined.speed_mbps};
  } catch (const ToolError& error) {
    return {members, "", error.what(), 0};
  }
}

int choose_known_table(const std::vector<int>& versions) {
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    if (*version <= kNewestNetTable) return *version;
  }
  throw ToolError("the plugin exports no net table that this tool knows (up to v" +
                  std::to_string(kNewestNetTable) + ")");
}

void look_through_table(const PluginLibrary& library, int version) {
  const auto plugin = library.adapt(version);
  plugin->init(log_plugin_line<keep_plugin_line>);
  NcclView view{version, plugin->name(), {}, {}};
  const int count = plugin->count_devices();
  for (int index = 0; index < count; ++index) {
    const DeviceProperties p = plugin->read_properties(index);
    view.devices.push_back({index, p.name, p.pci_path, p.guid, p.port, p.speed_mbps, p.latency_us,
                            list_memory(p.pointer_support), p.max_communicators, p.max_receives,
                            p.device_type == abi::kDeviceUnpack});
  }
  for (const auto& members : find_rail_sets(view.devices))
    view.rail_sets.push_back(try_to_join(*plugin, members));
  answer({.plugin = {}, .view = view, .test = {}});
  plugin->finalize();
}

}  // namespace

int run_plugin_view(const InfoOptions& options) {
  show_plugin_lines(options.verbose);
  Plugin plugin{options.plugin, "", {}, {}};
  try {
    const PluginLibrary library(options.plugin);
    plugin = {library.find_path(),
              "",
              library.list_versions(kNetPrefix),
              library.list_versions(kTunerPrefix),
              library.list_versions(kRmaPrefix),
              library.list_versions(kGinPrefix)};
    answer({.plugin = plugin, .view = {}, .test = {}});
    look_through_table(library, choose_known_table(plugin.net_tables));
    return kExitOk;
  } catch (const std::exception& error) {
    plugin.problem = join_warnings(error.what());
    answer({.plugin = plugin, .view = {}, .test = {}});
    return kExitFailed;
  }
}

void collect_view(Document& document, const InfoOptions& options, const Environment& environment) {
  document.plugin.path = options.plugin;
  ChildAnswer answer = ask_child("view", options, environment);
  for (ChildLine& line : answer.lines) {
    if (line.plugin) document.plugin = std::move(*line.plugin);
    if (line.view) document.nccl_view = std::move(line.view);
  }
  if (document.plugin.problem.empty() && answer.fault != TestFault::kNone)
    document.plugin.problem = "the process that queried the plugin " + answer.problem;
}

std::vector<int> read_table_names(const std::string& path, const std::string& prefix) {
  const base::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts {};
  if (file.get() < 0 || fstat(file.get(), &facts) != 0 || facts.st_size <= 0) return {};
  const auto length_bytes = static_cast<size_t>(facts.st_size);
  void* const data = mmap(nullptr, length_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return {};
  const std::string_view text(static_cast<char*>(data), length_bytes);
  std::set<int> versions;
  for (size_t at = text.find(prefix); at != std::string_view::npos; at = text.find(prefix, at + 1)) {
    const char* const begin = text.data() + at + prefix.size();
    int version = 0;
    if (std::from_chars(begin, text.data() + text.size(), version).ec == std::errc())
      versions.insert(version);
  }
  munmap(data, length_bytes);
  return {versions.begin(), versions.end()};
}

std::optional<int> choose_table(const std::vector<int>& wanted, const std::vector<int>& exported) {
  for (auto version = wanted.rbegin(); version != wanted.rend(); ++version) {
    if (std::binary_search(exported.begin(), exported.end(), *version)) return *version;
  }
  return std::nullopt;
}

void collect_nccl_libraries(Document& document, const std::string& wanted) {
  for (const nccl::NcclCandidate& found : nccl::find_nccl_libraries(wanted)) {
    NcclLibrary& library = document.nccl_libraries.emplace_back();
    library = {found.path,
               found.source,
               found.version,
               found.problem,
               read_table_names(found.path, kNetPrefix),
               read_table_names(found.path, kTunerPrefix),
               {},
               {}};
    library.net_table = choose_table(library.net_tables_known, document.plugin.net_tables);
    library.tuner_table = choose_table(library.tuner_tables_known, document.plugin.tuner_tables);
    library.rma_table = choose_table(read_table_names(found.path, kRmaPrefix), document.plugin.rma_tables);
    if (!library.rma_table)
      library.gin_table = choose_table(read_table_names(found.path, kGinPrefix), document.plugin.gin_tables);
  }
}

}  // namespace verbena::tools::info
