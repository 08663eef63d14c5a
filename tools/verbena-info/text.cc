#include "verbena-info/text.h"

#include <algorithm>
#include <cstdio>

namespace verbena::tools::info {
namespace {

constexpr size_t kLineColumns = 120;

std::string pad(const std::string& text, size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text + " ";
}

// "    label         text\n"; empty if there is no text.
std::string format_fact(const std::string& label, const std::string& text) {
  constexpr size_t kLabelWidth = 15;
  const std::string start = "    " + pad(label, kLabelWidth);
  return text.empty() ? "" : start + wrap(text, start.size(), kLineColumns) + "\n";
}

std::string show(const std::optional<int>& number) {
  return number ? std::to_string(*number) : "?";
}

std::string show(const std::string& text) {
  return text.empty() ? "?" : text;
}

// Returns null if NCCL's view does not contain it.
const RailSet* find_rail_set(const NcclView& view, int index) {
  const auto found = std::find_if(view.rail_sets.begin(), view.rail_sets.end(), [&](const RailSet& set) {
    return std::find(set.members.begin(), set.members.end(), index) != set.members.end();
  });
  return found == view.rail_sets.end() ? nullptr : &*found;
}

std::string format_head(const Document& document) {
  const auto& [tool, host, plugin] = std::tie(document.tool, document.host, document.plugin);
  std::string text = "verbena-info " + tool.version + " (" + tool.build_type + ", " + tool.compiler + ")\n" +
                     format_fact("host", host.name + ": Linux " + host.kernel + ", " + host.architecture +
                                             ", " + std::to_string(host.cpus) + " CPUs") +
                     format_fact("plugin", plugin.path);
  if (document.problem.empty()) text += format_fact("", plugin.problem);
  if (!plugin.net_tables.empty())
    text += format_fact("for NCCL", "net tables " + format_versions(plugin.net_tables) + ", tuner tables " +
                                        format_versions(plugin.tuner_tables));
  if (!plugin.rma_tables.empty() || !plugin.gin_tables.empty())
    text += format_fact("device API", "RMA tables " + format_versions(plugin.rma_tables) + ", GIN tables " +
                                          format_versions(plugin.gin_tables));
  return text + format_fact("verbs library", document.verbs_library);
}

std::string format_messages(const Document& document, bool verbose) {
  std::string text;
  for (const auto& [level, words] : document.messages) {
    const bool is_warning = level == Level::kWarning;
    if (is_warning || verbose) text += (is_warning ? "  WARN  " : "  info  ") + words + "\n";
  }
  return text.empty() ? text : "\nTHE PLUGIN SAYS\n" + text;
}

std::string format_gid(const Gid& gid) {
  return "[" + std::to_string(gid.index) + "] " + gid.address + ", " + gid.type;
}

std::string format_address(const Port& port) {
  if (port.gid) return format_gid(*port.gid) + " (chosen: " + port.gid_reason + ")";
  return port.gid_reason.empty() ? "none" : "none used (" + port.gid_reason + ")";
}

std::string format_place(const Place& place) {
  if (place.pci_address.empty()) return "no PCI device";
  return place.pci_address + ", NUMA node " + show(place.numa_node) +
         (place.switches.empty() ? "" : ", behind PCI switch " + join(place.switches, " > "));
}

// The rails that the plugin let NCCL join.
std::string format_rail_set(const Nic& nic, const std::optional<NcclView>& view) {
  if (!view) return "";
  const RailSet* const set = find_rail_set(*view, nic.index);
  if (set == nullptr) return "alone: the card has no other port";
  return set->is_joined()
             ? "joined to " + set->name + ", " + format_speed(static_cast<uint64_t>(set->speed_mbps))
             : "alone: " + set->refused;
}

std::string format_port(const Port& port, const Document& document, bool verbose) {
  std::string text = port.nic
                         ? "[" + std::to_string(port.nic->index) + "] " + port.nic->name + "  " + port.title()
                         : " -  " + port.title() + "  NOT USED: " + port.why_not;
  text += "\n";
  if (!port.state.empty()) {
    text +=
        format_fact("link", port.state + ", " + show(describe(port.link_layer)) +
                                (port.interface.empty() ? "" : " (" + port.interface + ")") + ", " +
                                format_speed(port.speed_mbps) + ", MTU " + std::to_string(port.mtu_bytes) +
                                " of " + std::to_string(port.max_mtu_bytes) +
                                (port.lid == 0 ? "" : ", LID " + std::to_string(port.lid)));
    text += format_fact("GID", format_address(port));
  }
  if (verbose) {
    for (const Gid& gid : port.gids) text += format_fact("  table", format_gid(gid));
    text += format_fact("firmware", port.firmware);
  }
  text += format_fact("place", format_place(port.place));
  if (!port.nic) return text;
  const GpuMemory& memory = port.nic->gpu_memory;
  return text + format_fact("rail set", format_rail_set(*port.nic, document.nccl_view)) +
         format_fact("GPU memory", std::string(describe(memory.path)) + " (" + memory.why + ")");
}

std::string format_devices(const Document& document, bool verbose) {
  std::string text = "\nDEVICES\n";
  if (document.ports.empty()) text += "    none\n";
  for (const Port& port : document.ports) text += format_port(port, document, verbose);
  return text;
}

// As in nvidia-smi topo -m.
const char* abbreviate(topology::Distance distance) {
  constexpr const char* kWords[] = {"DEV", "PIX", "PHB", "NODE", "SYS", "?"};
  return kWords[static_cast<size_t>(distance)];
}

std::string format_distances(const Document& document) {
  constexpr size_t kMinWidth = 26, kCellWidth = 7;
  size_t width = kMinWidth;
  for (const Port& port : document.ports) {
    if (port.nic) width = std::max(width, port.nic->name.size() + 1);
  }
  std::string head = "    " + pad("", width), rows;
  for (const Gpu& gpu : document.gpus.devices) head += pad("GPU" + std::to_string(gpu.index), kCellWidth);
  for (const Port& port : document.ports) {
    if (!port.nic) continue;
    rows += "    " + pad(port.nic->name, width);
    for (const GpuDistance& to : port.nic->gpu_distances) rows += pad(abbreviate(to.distance), kCellWidth);
    rows += "\n";
  }
  if (rows.empty()) return "";
  return head + "\n" + rows +
         "    PIX: same PCI switch, PHB: same host bridge, NODE: same NUMA node, SYS: other NUMA node\n";
}

std::string format_gpus(const Document& document) {
  const auto yes_or_no = [](bool is_so) { return is_so ? "yes" : "no"; };
  std::string text = "\nGPUS\n";
  if (document.gpus.devices.empty()) return text + "    none: " + document.gpus.problem + "\n";
  for (const Gpu& gpu : document.gpus.devices) {
    text += "[" + std::to_string(gpu.index) + "] " + gpu.name + "  " + format_place(gpu.place) + "\n";
    text += format_fact("", "compute capability " + gpu.compute_capability + ", GPUDirect RDMA " +
                                yes_or_no(gpu.gpudirect) + ", dma-buf export " + yes_or_no(gpu.dmabuf));
  }
  return text + format_distances(document);
}

// How NCCL finds this library.
std::string explain_loading(const Document& document) {
  const auto setting = document.environment.find("NCCL_NET_PLUGIN");
  if (setting != document.environment.end() && !setting->second.empty())
    return "NCCL_NET_PLUGIN=" + setting->second;
  const std::string& path = document.plugin.path;
  const size_t slash = path.rfind('/');
  return "export NCCL_NET_PLUGIN=verbena (not set now), with " +
         (slash == std::string::npos ? "its folder" : path.substr(0, slash)) + " in LD_LIBRARY_PATH";
}

std::string format_view(const NcclView& view) {
  std::string text = format_fact("table", "v" + std::to_string(view.table) + " of plugin \"" + view.name +
                                              "\" (NCCL_NET=" + view.name + ")");
  for (const ViewedDevice& device : view.devices) {
    text += format_fact("device " + std::to_string(device.index),
                        device.name + ", " + format_speed(static_cast<uint64_t>(device.speed_mbps)) +
                            ", port " + std::to_string(device.port) + ", memory: " + join(device.memory) +
                            ", receives at once " + std::to_string(device.max_receives));
  }
  for (const RailSet& set : view.rail_sets) {
    text += format_fact("devices " + join(set.members, "+"),
                        set.is_joined() ? "may be joined: " + set.name + ", " +
                                              format_speed(static_cast<uint64_t>(set.speed_mbps))
                                        : "are not joined: " + set.refused);
  }
  return text;
}

std::string format_library(const NcclLibrary& library) {
  std::string text = library.version.empty() ? library.problem : "NCCL " + library.version;
  if (library.net_table) {
    text += " loads net table v" + show(library.net_table) + " and tuner table " +
            (library.tuner_table ? "v" + show(library.tuner_table) : "none");
    if (library.rma_table) text += "; its device API loads RMA table v" + show(library.rma_table);
    if (library.gin_table) text += "; its device API loads GIN table v" + show(library.gin_table);
  } else if (!library.version.empty()) {
    text += library.net_tables_known.empty() ? ", which looks up no net table"
                                             : ", which shares no net table with the plugin";
  }
  return "    " + library.path + " (" + library.source + ")\n" + format_fact("", text);
}

std::string format_nccl(const Document& document) {
  std::string text = "\nWHAT NCCL WOULD SEE\n";
  text += document.nccl_view ? format_view(*document.nccl_view)
                             : format_fact("devices", "none: the plugin does not start");
  text += format_fact("loaded by", explain_loading(document));
  text +=
      format_fact("UNPACK", (document.unpack.offered ? "offered: " : "not offered: ") + document.unpack.why);
  text += "\nNCCL LIBRARIES\n";
  for (const NcclLibrary& library : document.nccl_libraries) text += format_library(library);
  return document.nccl_libraries.empty() ? text + "    none found\n" : text;
}

std::string format_parameter(const base::ParameterRow& row) {
  constexpr const char* kTimeoutUnit = "4.096 us * 2^n";  // too long to follow a value
  const auto show_value = [](const std::string& value) { return value.empty() ? "(empty)" : value; };
  const bool has_short_unit = !row.unit.empty() && row.unit != kTimeoutUnit;
  std::string text =
      "    " + row.name + " = " + show_value(row.value) + (has_short_unit ? " " + row.unit : "");
  text += row.origin == "default" ? " (default"
                                  : " (from " + row.origin + "; default " + show_value(row.fallback);
  if (!row.range.empty() && row.range != row.type) text += "; " + row.range;
  std::string doc = row.doc;
  if (row.unit == kTimeoutUnit) doc += " (" + row.unit + ")";
  if (!row.aliases.empty()) doc += " [or " + row.aliases + "]";
  return text + ")\n        " + wrap(doc, 8, kLineColumns) + "\n";
}

std::string format_parameters(const Document& document, const TextOptions& options) {
  std::string text = "\nPARAMETERS\n";
  size_t left_out = 0;
  for (const base::ParameterRow& row : document.parameters) {
    if (row.origin != "default" || options.all_parameters || (options.parameters && !row.is_advanced)) {
      text += format_parameter(row);
    } else {
      ++left_out;
    }
  }
  if (left_out > 0)
    text += "    " + std::to_string(left_out) + " settings have their default values; --parameters" +
            (options.parameters ? " --all" : "") + " shows these settings\n";
  return text;
}

std::string format_environment(const Document& document) {
  std::string text;
  for (const auto& [name, value] : document.environment) text += "    " + name + "=" + value + "\n";
  return text.empty() ? text : "\nENVIRONMENT\n" + text;
}

std::string format_advice(const Document& document) {
  std::string text;
  for (const auto& [what, remedy] : document.advice)
    text += "  * " + wrap(what, 4, kLineColumns) + "\n    -> " + wrap(remedy, 7, kLineColumns) + "\n";
  return text.empty() ? text : "\nWHAT TO DO\n" + text;
}

}  // namespace

std::string wrap(const std::string& text, size_t first_column, size_t width) {
  std::string wrapped;
  size_t column = first_column;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column > first_column && column + 1 + end - at > width) {
      wrapped += "\n" + std::string(first_column, ' ');
      column = first_column;
    } else if (column > first_column) {
      wrapped += ' ';
      ++column;
    }
    wrapped.append(text, at, end - at);
    column += end - at;
    at = end + 1;
  }
  return wrapped;
}

std::string join(const std::vector<std::string>& words, const std::string& comma) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : comma) + word;
  return text;
}

std::string join(const std::vector<int>& numbers, const std::string& comma) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : comma) + std::to_string(number);
  return text;
}

std::string format_versions(const std::vector<int>& versions) {
  std::string text;
  for (size_t i = 0; i < versions.size();) {
    size_t last = i;
    while (last + 1 < versions.size() && versions[last + 1] == versions[last] + 1) ++last;
    text += (text.empty() ? "v" : ", v") + std::to_string(versions[i]);
    if (last > i) text += " to v" + std::to_string(versions[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::string format_speed(uint64_t mbps) {
  if (mbps == 0) return "unknown speed";
  char text[32];
  std::snprintf(text, sizeof text, "%g Gb/s", static_cast<double>(mbps) / 1000.0);
  return text;
}

std::string format_check(const Document& document, const Check& check) {
  constexpr size_t kStatusWidth = 9, kMinWidth = 28, kWithWidth = 13, kBetween = 2;
  size_t width = kMinWidth;
  for (const Port& port : document.ports)
    width =
        std::max({width, port.title().size() + kBetween, port.nic ? port.nic->name.size() + kBetween : 0});
  return pad(check.status == CheckStatus::kFailed ? "FAILED" : describe(check.status), kStatusWidth) +
         pad(check.what, width) + pad(check.with, kWithWidth) + check.detail +
         (check.remedy.empty() ? "" : "  -> " + check.remedy) + "\n";
}

std::string format_verdict(const std::vector<Check>& checks) {
  const auto count = [&](CheckStatus status) {
    return std::to_string(std::count_if(checks.begin(), checks.end(),
                                        [&](const Check& check) { return check.status == status; }));
  };
  return "# " + count(CheckStatus::kOk) + " ok, " + count(CheckStatus::kFailed) + " failed, " +
         count(CheckStatus::kSkipped) + " skipped\n";
}

std::string format_document(const Document& document, const TextOptions& options) {
  return format_head(document) + format_messages(document, options.verbose) +
         format_devices(document, options.verbose) + format_gpus(document) + format_nccl(document) +
         format_parameters(document, options) + format_environment(document) + format_advice(document);
}

}  // namespace verbena::tools::info
