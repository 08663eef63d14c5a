#include "verbena-info/text.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <map>
#include <vector>

namespace verbena::tools::info {
namespace {

constexpr const char* kBridgeClass = "0x060400";
constexpr const char* kNetworkClass = "0x020000";
constexpr int kUnknownNode = -1;

// The GPUs and ports behind one PCI switch.
struct Group {
  std::vector<const Gpu*> gpus;
  std::vector<const Port*> ports;
};
using Groups = std::map<std::string, Group>;  // by the innermost switch; empty: directly at the CPU

// By NUMA node; devices without one come last.
std::map<int, Groups> build_tree(const Document& document) {
  std::map<int, Groups> nodes;
  const auto find = [&](const Place& place) -> Group& {
    return nodes[place.numa_node.value_or(INT_MAX)][place.switches.empty() ? "" : place.switches.back()];
  };
  for (const Gpu& gpu : document.gpus.devices) find(gpu.place).gpus.push_back(&gpu);
  for (const Port& port : document.ports) find(port.place).ports.push_back(&port);
  return nodes;
}

// Makes a string of Graphviz's language; its lines are centred.
std::string quote(const std::vector<std::string>& lines) {
  std::string quoted = "\"";
  for (const std::string& line : lines) {
    if (quoted.size() > 1) quoted += "\\n";
    for (const char letter : line) {
      if (letter == '"' || letter == '\\') quoted += '\\';
      if (static_cast<unsigned char>(letter) >= ' ') quoted += letter;
    }
  }
  return quoted + "\"";
}

std::string name_gpu(int index) {
  return "gpu" + std::to_string(index);
}

std::string draw_gpu(const Gpu& gpu) {
  return name_gpu(gpu.index) + " [fillcolor=\"#e2f2e0\", label=" +
         quote({"GPU " + std::to_string(gpu.index), gpu.name, gpu.place.pci_address}) + "];\n";
}

std::string draw_port(const Port& port) {
  const std::string place = port.place.pci_address.empty() ? "no PCI device" : port.place.pci_address;
  if (!port.nic)
    return quote({port.title()}) +
           " [fillcolor=\"#f6e3e1\", label=" + quote({port.title(), "not used", port.why_not, place}) +
           "];\n";
  return quote({port.title()}) + " [fillcolor=\"#dfebfa\", label=" +
         quote({port.title(), format_speed(port.speed_mbps) + ", " + describe(port.link_layer),
                std::string("GPU memory: ") + describe(port.nic->gpu_memory.path),
                port.gid ? port.gid->address : "LID " + std::to_string(port.lid), place}) +
         "];\n";
}

const char* style_line(topology::Distance distance) {
  if (distance <= topology::Distance::kSameSwitch) return "color=\"#4f9a48\", penwidth=3";
  if (distance <= topology::Distance::kSameNode) return "color=\"#c29a2e\", penwidth=2";
  return "color=\"#b5483d\", penwidth=2, style=dotted";
}

// Connects each GPU with its nearest ports.
std::string draw_nearest(const Document& document) {
  std::map<int, topology::Distance> nearest;
  std::string lines;
  for (const bool draws : {false, true}) {
    for (const Port& port : document.ports) {
      for (const auto& [gpu, distance] : port.nic ? port.nic->gpu_distances : std::vector<GpuDistance>()) {
        auto& least = nearest.try_emplace(gpu, distance).first->second;
        least = std::min(least, distance);
        if (draws && distance == least)
          lines +=
              "  " + name_gpu(gpu) + " -- " + quote({port.title()}) + " [" + style_line(distance) + "];\n";
      }
    }
  }
  return lines;
}

std::string count(size_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

struct Card {
  const Place* place = nullptr;    // of its first port
  std::vector<std::string> names;  // the plugin's names of its ports
};

// An element and its children, written when the tree is complete.
struct Element {
  std::string start;                        // without the closing bracket
  std::map<std::string, Element> children;  // by address
  std::vector<std::string> nets;
};

// Leaves out control characters, which XML does not allow.
std::string escape(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(letter) >= ' ') escaped += letter;
    }
  }
  return escaped;
}

std::string attribute(const char* name, const std::string& value) {
  return value.empty() ? "" : std::string(" ") + name + "=\"" + escape(value) + "\"";
}

// NCCL needs the speed and width of a link, and accepts only values that it knows.
std::string describe_pci(const std::string& address, const char* kind, const Place& place) {
  const auto& [speed, width] = std::tie(place.link_speed, place.link_width);
  return "<pci" + attribute("busid", address) + attribute("class", kind) +
         attribute("link_speed", speed.empty() ? "32.0 GT/s PCIe" : speed) +
         attribute("link_width", width.empty() ? "16" : width);
}

std::string describe_cpu(const Document& document, int node) {
  std::string affinity;
  for (const NumaNode& known : document.numa_nodes) {
    if (known.node == node) affinity = known.cpumap;
  }
  const Host& host = document.host;
  return "<cpu" + attribute("numaid", std::to_string(node)) + attribute("affinity", affinity) +
         attribute("arch", host.architecture == "aarch64" ? "arm64" : host.architecture) +
         attribute("vendor", host.cpu_vendor) + attribute("familyid", host.cpu_family) +
         attribute("modelid", host.cpu_model);
}

// An address in the last PCI domain, which has no real devices.
std::string make_address(size_t index) {
  char text[32];
  std::snprintf(text, sizeof text, "ffff:%02x:00.0", static_cast<unsigned>(0xe0 + index));
  return text;
}

// Ports of one card are one PCI device for NCCL.
std::map<std::string, Card> list_cards(const Document& document) {
  std::map<std::string, Card> cards;
  size_t invented = 0;
  for (const Port& port : document.ports) {
    if (!port.nic) continue;
    std::string address = port.nic->card_path.substr(port.nic->card_path.rfind('/') + 1);
    if (address.empty()) address = port.place.pci_address;
    if (address.empty()) address = make_address(invented++);
    Card& card = cards[address];
    if (card.place == nullptr) card.place = &port.place;
    card.names.push_back(port.nic->name);
  }
  return cards;
}

void write(const Element& element, const std::string& name, size_t depth, std::string& xml) {
  const std::string indent(2 * depth, ' ');
  xml += indent + element.start + ">\n";
  if (!element.nets.empty()) {
    xml += indent + "  <nic>\n";
    for (const std::string& net : element.nets) xml += indent + "    <net" + attribute("name", net) + "/>\n";
    xml += indent + "  </nic>\n";
  }
  for (const auto& [address, child] : element.children) write(child, "pci", depth + 1, xml);
  xml += indent + "</" + name + ">\n";
}

}  // namespace

std::string draw_topology(const Document& document) {
  std::string body;
  std::map<std::string, std::vector<const Port*>> networks;  // by subnet
  for (const auto& [node, groups] : build_tree(document)) {
    const std::string frame = std::to_string(node);
    body += "  subgraph cluster_" + frame + " {\n    bgcolor=\"#f3f5f8\"; label=" +
            quote({node == INT_MAX ? "no NUMA node known" : "NUMA node " + frame}) + ";\n";
    for (const auto& [pci_switch, group] : groups) {
      body += "    subgraph " + quote({"cluster_" + frame + "_" + pci_switch}) +
              " {\n      bgcolor=white; style=dashed; label=" +
              quote({pci_switch.empty() ? "no PCI switch" : "PCI switch " + pci_switch}) + ";\n";
      for (const Gpu* gpu : group.gpus) body += "      " + draw_gpu(*gpu);
      for (const Port* port : group.ports) {
        body += "      " + draw_port(*port);
        if (port->nic) networks[port->gid ? port->gid->subnet : "InfiniBand"].push_back(port);
      }
      body += "    }\n";
    }
    body += "  }\n";
  }
  body += draw_nearest(document);
  for (const auto& [subnet, ports] : networks) {
    const std::string name = quote({"network " + subnet});
    body += "  " + name + " [fillcolor=\"#fbf1d9\", label=" +
            quote({"network " + subnet + ": " + count(ports.size(), "rail")}) + "];\n";
    for (const Port* port : ports)
      body += "  " + quote({port->title()}) + " -- " + name + " [color=\"#3b73b9\"];\n";
  }
  const std::string title = "Verbena on " + document.host.name;
  return "graph " + quote({title}) + " {\n  graph [fontname=Helvetica, labelloc=t, label=" +
         quote({title,
                count(document.gpus.devices.size(), "GPU") + ", " +
                    count(document.count_usable_ports(), "usable port") + ", " +
                    count(networks.size(), "network"),
                "from each GPU to its nearest port: green: behind one PCI switch, yellow: same bridge or "
                "NUMA node, "
                "dotted: other node or unknown"}) +
         "];\n  node [fontname=Helvetica, shape=box, style=filled];\n" + body + "}\n";
}

std::string format_topology_xml(const Document& document) {
  const int first_node = document.numa_nodes.empty() ? kUnknownNode : document.numa_nodes[0].node;
  std::map<int, Element> cpus;
  for (const auto& [address, card] : list_cards(document)) {
    const Place& place = *card.place;
    const int node = place.numa_node.value_or(first_node);
    Element* parent = &cpus[node];
    parent->start = describe_cpu(document, node);
    for (const std::string& bridge : place.switches) {
      parent = &parent->children[bridge];
      if (parent->start.empty()) parent->start = describe_pci(bridge, kBridgeClass, place);
    }
    Element& own = parent->children[address];
    own.start = describe_pci(address, kNetworkClass, place);
    own.nets = card.names;
  }
  std::string xml = "<system version=\"1\">\n";
  for (const auto& [node, cpu] : cpus) write(cpu, "cpu", 1, xml);
  return xml + "</system>\n";
}

}  // namespace verbena::tools::info
