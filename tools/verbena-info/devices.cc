#include "verbena-info/devices.h"

#include <filesystem>
#include <memory>

#include "base/log.h"
#include "base/parameter_report.h"
#include "base/parameters.h"
#include "common/net_plugin.h"
#include "nccl/process.h"
#include "topology/pci_path.h"
#include "topology/topology.h"
#include "verbena-info/first_line.h"
#include "verbena-info/gpu_memory.h"
#include "verbs/port_survey.h"

namespace verbena::tools::info {
namespace {

constexpr uint64_t kCommunicator = 0x696e666f;

const char* name_gid_type(verbs::GidType type) {
  switch (type) {
    case verbs::GidType::kRoceV2:
      return "RoCE v2";
    case verbs::GidType::kInfiniBandOrRoceV1:
      return "InfiniBand or RoCE v1";
    case verbs::GidType::kUnknown:
      break;
  }
  return "unknown";
}

Json describe_gid(const verbs::GidEntry& entry) {
  return {
      {"index", entry.index},
      {"address", verbs::format_gid(entry.gid)},
      {"type", name_gid_type(entry.type)},
      {"subnet", verbs::format_subnet(entry.gid, static_cast<int>(base::parameters().subnet_prefix_bits))}};
}

Json describe_gid(const verbs::SurveyedPort& port, int index) {
  for (const verbs::GidEntry& entry : port.gids) {
    if (entry.index == index) return describe_gid(entry);
  }
  return nullptr;
}

void add_place(Json& entry, const std::string& pci_path) {
  const auto& topology = topology::Topology::system();
  const int node = pci_path.empty() ? topology::kNoNode : topology.find_numa_node(pci_path);
  entry["pci_path"] = text_or_null(pci_path);
  entry["pci_address"] = pci_path.empty() ? Json() : Json(pci_path.substr(pci_path.rfind('/') + 1));
  entry["numa_node"] = node == topology::kNoNode ? Json() : Json(node);
  entry["switches"] = topology::list_switches(pci_path);
  entry["link_speed"] = text_or_null(read_first_line(pci_path + "/max_link_speed"));
  entry["link_width"] = text_or_null(read_first_line(pci_path + "/max_link_width"));
}

Json describe_port(const verbs::SurveyedPort& port) {
  Json entry{{"device", port.device}, {"port", port.port_number}};
  entry["state"] = text_or_null(port.state);
  const uint8_t layer = port.address.port.link_layer;
  entry["link_layer"] = layer == verbs::kEthernet     ? Json("Ethernet")
                        : layer == verbs::kInfiniBand ? Json("InfiniBand")
                                                      : Json();
  entry["interface"] = text_or_null(port.interface);
  entry["speed_mbps"] = port.speed_mbps;
  entry["mtu_bytes"] = port.mtu_bytes;
  entry["max_mtu_bytes"] = port.max_mtu_bytes;
  entry["lid"] = port.address.port.lid;
  entry["firmware"] = text_or_null(port.firmware);
  entry["vendor_id"] = port.vendor_id;
  entry["part_id"] = port.part_id;
  entry["gid"] = describe_gid(port, port.address.gid_index);
  if (!entry["gid"].is_null() || layer == verbs::kInfiniBand) entry["gid_reason"] = port.gid_reason;
  entry["other_gid"] = describe_gid(port, port.address.other_gid_index);
  entry["gids"] = Json::array();
  for (const verbs::GidEntry& gid : port.gids) entry["gids"].push_back(describe_gid(gid));
  add_place(entry, topology::trim_to_pci_device(port.sysfs_path));
  return entry;
}

struct FoundNic {
  const transport::Nic* nic;
  int index;
};

// The plugin's device that stands for a port alone.
FoundNic find_nic(const transport::NicRegistry* nics, const verbs::SurveyedPort& port) {
  for (int i = 0; nics != nullptr && i < nics->size(); ++i) {
    const transport::Nic* nic = nics->find(i);
    const verbs::Device& rail = *nic->rails[0];
    if (nic->rails.size() == 1 && rail.name() == port.device && rail.port_number() == port.port_number)
      return {nic, i};
  }
  return {nullptr, -1};
}

std::string explain_disuse(const verbs::SurveyedPort& port, const Json& problem) {
  if (!port.is_selected)
    return base::parameter_origin("VERBENA_HCA") + "=" + base::parameters().hca + " leaves it out";
  if (!port.problem.empty()) return port.problem;
  return problem.is_null() ? "the plugin could not open it: verbena-info --verbose shows what it says"
                           : "the plugin does not start, see above";
}

void add_nic(Json& entry, const FoundNic& found, const Json& gpus) {
  const transport::Nic& nic = *found.nic;
  const verbs::Device& rail = *nic.rails[0];
  entry["index"] = found.index;
  entry["name"] = nic.name;
  entry["software"] = rail.is_softverbs() ? Json("softverbs") : rail.is_software() ? Json("kernel") : Json();
  entry["card_path"] = text_or_null(nic.pci_path);
  entry["gpu_memory"] = explain_gpu_memory(rail, gpus);
  entry["gpu_distances"] = Json::array();
  for (const Json& gpu : gpus["devices"]) {
    const auto distance =
        topology::Topology::system().measure_distance(nic.pci_path, read_text(gpu, "pci_address"));
    entry["gpu_distances"].push_back({{"gpu", gpu["index"]}, {"distance", topology::describe(distance)}});
  }
}

// Without "bin/..".
std::string shorten(const std::string& path) {
  return path.starts_with('/') ? std::filesystem::path(path).lexically_normal().string() : path;
}

void collect_ports(Json& document, const transport::NicRegistry* nics) {
  const auto settings = verbs::read_discovery_settings(base::parameters().hca);
  if (!settings) return;
  const auto survey = verbs::survey_ports(*settings);
  if (!survey) return;
  document["verbs_library"] = shorten(survey->library_path);
  for (const verbs::SurveyedPort& port : survey->ports) {
    Json entry = describe_port(port);
    const FoundNic found = find_nic(nics, port);
    entry["usable"] = found.nic != nullptr;
    entry["why_not"] = found.nic != nullptr ? Json() : Json(explain_disuse(port, document["problem"]));
    if (found.nic != nullptr) add_nic(entry, found, document["gpus"]);
    document["devices"].push_back(std::move(entry));
  }
}

// The table tells NCCL no more than that it refuses.
void explain_rail_sets(Json& view) {
  if (view.is_null()) return;
  const auto setting = base::parameters().merge_nics;
  for (Json& set : view["rail_sets"]) {
    if (!set.contains("refused")) continue;
    if (setting == 0) set["refused"] = "VERBENA_MERGE_NICS=0";
    if (setting == 2) set["refused"] = "VERBENA_MERGE_NICS=2 joins PCI devices only";
  }
}

Json list_parameters() {
  Json rows = Json::array();
  for (const base::ParameterRow& row : base::list_parameters()) {
    rows.push_back({{"name", row.name},
                    {"value", row.value},
                    {"origin", row.origin},
                    {"default", row.fallback},
                    {"type", row.type},
                    {"range", row.range},
                    {"unit", row.unit},
                    {"aliases", row.aliases},
                    {"doc", row.doc}});
  }
  return rows;
}

}  // namespace

void collect_devices(Json& document) {
  document["problem"] = nullptr;
  document["verbs_library"] = nullptr;
  document["devices"] = Json::array();
  // What NCCL's init does: settings, devices, the tuning file.
  auto context = nccl::Process::get().open_context(kCommunicator, -1, kNewestNetTable);
  if (!context) document["problem"] = base::last_failure();
  const auto nics = nccl::Process::get().nics();
  collect_ports(document, nics.get());
  document["parameters"] = list_parameters();
  explain_rail_sets(document["nccl_view"]);
  if (context) nccl::Process::get().close_context(*context);
}

}  // namespace verbena::tools::info
