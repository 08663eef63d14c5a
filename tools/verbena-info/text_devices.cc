// The text's sections about NICs and GPUs.
#include <algorithm>

#include "verbena-info/text.h"
#include "verbena-info/text_part.h"

namespace verbena::tools::info {
namespace {

std::string format_gid(const Json& gid) {
  return "[" + show(gid["index"]) + "] " + read_text(gid, "address") + ", " + read_text(gid, "type");
}

std::string format_address(const Json& device) {
  const Json gid = device.value("gid", Json());
  const std::string reason = read_text(device, "gid_reason");
  if (!gid.is_null()) return format_gid(gid) + " (chosen: " + reason + ")";
  return reason.empty() ? "none" : "none used (" + reason + ")";
}

std::string format_place(const Json& place) {
  const std::string address = read_text(place, "pci_address");
  if (address.empty()) return "no PCI device";
  std::string text = address + ", NUMA node " + show(place["numa_node"]);
  if (!place["switches"].empty()) text += ", behind PCI switch " + join(place["switches"], " > ");
  return text;
}

std::string format_gpu_memory(const Json& device) {
  const Json memory = device.value("gpu_memory", Json());
  return memory.is_null() ? "" : read_text(memory, "path") + " (" + read_text(memory, "why") + ")";
}

// What the plugin let NCCL join; NCCL's view has it.
std::string format_rail_set(const Json& device, const Json& document) {
  const Json& view = document["nccl_view"];
  if (view.is_null()) return "";
  for (const Json& set : view["rail_sets"]) {
    const auto& members = set["members"];
    if (std::find(members.begin(), members.end(), device["index"]) == members.end()) continue;
    if (set.contains("name"))
      return "joined to " + read_text(set, "name") + ", " + format_speed(set["speed_mbps"]);
    return "alone: " + read_text(set, "refused");
  }
  return "alone: no other port of its card";
}

std::string format_device(const Json& device, const Json& document, bool verbose) {
  const bool usable = device["usable"];
  const std::string name = name_port(device);
  std::string text = usable ? "[" + show(device["index"]) + "] " + read_text(device, "name") + "  " + name
                            : " -  " + name + "  NOT USED: " + read_text(device, "why_not");
  text += "\n";
  if (!read_text(device, "state").empty()) {
    const std::string interface = read_text(device, "interface");
    text += format_fact("link", read_text(device, "state") + ", " + show(device["link_layer"]) +
                                    (interface.empty() ? "" : " (" + interface + ")") + ", " +
                                    format_speed(device["speed_mbps"]) + ", MTU " +
                                    show(device["mtu_bytes"]) + " of " + show(device["max_mtu_bytes"]) +
                                    (device["lid"] == 0 ? "" : ", LID " + show(device["lid"])));
    text += format_fact("GID", format_address(device));
  }
  if (verbose) {
    for (const Json& gid : device["gids"]) text += format_fact("  table", format_gid(gid));
    text += format_fact("firmware", read_text(device, "firmware"));
  }
  text += format_fact("place", format_place(device));
  if (!usable) return text;
  text += format_fact("rail set", format_rail_set(device, document));
  return text + format_fact("GPU memory", format_gpu_memory(device));
}

// In the words of nvidia-smi topo -m.
std::string abbreviate(const std::string& distance) {
  if (distance == "same device") return "DEV";
  if (distance == "same PCI switch") return "PIX";
  if (distance == "same host bridge") return "PHB";
  if (distance == "same NUMA node") return "NODE";
  return distance == "other NUMA node" ? "SYS" : "?";
}

std::string format_distances(const Json& document) {
  constexpr size_t kLeastWidth = 26, kCellWidth = 7;
  const Json& gpus = document["gpus"]["devices"];
  size_t width = kLeastWidth;
  for (const Json& device : document["devices"])
    width = std::max(width, read_text(device, "name").size() + 1);
  std::string head = "    " + pad("", width), rows;
  for (const Json& gpu : gpus) head += pad("GPU" + show(gpu["index"]), kCellWidth);
  for (const Json& device : document["devices"]) {
    if (!device["usable"].get<bool>()) continue;
    rows += "    " + pad(read_text(device, "name"), width);
    for (const Json& distance : device["gpu_distances"])
      rows += pad(abbreviate(read_text(distance, "distance")), kCellWidth);
    rows += "\n";
  }
  if (rows.empty()) return "";
  return head + "\n" + rows +
         "    PIX: same PCI switch, PHB: same host bridge, NODE: same NUMA node, SYS: other NUMA node\n";
}

}  // namespace

std::string format_devices(const Json& document, bool verbose) {
  std::string text = "\nDEVICES\n";
  if (document["devices"].empty()) text += "    none\n";
  for (const Json& device : document["devices"]) text += format_device(device, document, verbose);
  return text;
}

std::string format_gpus(const Json& document) {
  const Json& gpus = document["gpus"];
  std::string text = "\nGPUS\n";
  if (gpus["devices"].empty()) return text + "    none: " + read_text(gpus, "problem") + "\n";
  for (const Json& gpu : gpus["devices"]) {
    text += "[" + show(gpu["index"]) + "] " + read_text(gpu, "name") + "  " + format_place(gpu) + "\n";
    text += format_fact("", "compute capability " + read_text(gpu, "compute_capability") +
                                ", GPUDirect RDMA " + (gpu["gpudirect"].get<bool>() ? "yes" : "no") +
                                ", dma-buf export " + (gpu["dmabuf"].get<bool>() ? "yes" : "no"));
  }
  return text + format_distances(document);
}

}  // namespace verbena::tools::info
