#include "verbena-info/topology_xml.h"

#include <cstdio>
#include <map>
#include <vector>

#include "common/markup.h"

namespace verbena::tools::info {
namespace {

constexpr const char* kBridgeClass = "0x060400";
constexpr const char* kNetworkClass = "0x020000";
constexpr const char* kUnknownNode = "-1";

struct Card {
  const Json* place = nullptr;     // the first of its ports
  std::vector<std::string> names;  // the plugin's, of its ports
};

// An element with its children, written when the tree is complete.
struct Element {
  std::string start;                        // without the closing bracket
  std::map<std::string, Element> children;  // by address
  std::vector<std::string> nets;
};

std::string attribute(const char* name, const std::string& value) {
  return value.empty() ? "" : std::string(" ") + name + "=\"" + escape_markup(value) + "\"";
}

// NCCL asks for a link's speed and width, and takes what it knows only.
std::string describe_pci(const std::string& address, const char* kind, const Json& place) {
  const std::string speed = read_text(place, "link_speed"), width = read_text(place, "link_width");
  return "<pci" + attribute("busid", address) + attribute("class", kind) +
         attribute("link_speed", speed.empty() ? "32.0 GT/s PCIe" : speed) +
         attribute("link_width", width.empty() ? "16" : width);
}

std::string describe_cpu(const Json& document, const std::string& node) {
  std::string affinity;
  for (const Json& known : document.value("numa_nodes", Json::array())) {
    if (known["node"].dump() == node) affinity = known["cpumap"];
  }
  const Json& host = document["host"];
  const std::string machine = read_text(host, "architecture");
  return "<cpu" + attribute("numaid", node) + attribute("affinity", affinity) +
         attribute("arch", machine == "aarch64" ? "arm64" : machine) +
         attribute("vendor", read_text(host, "cpu_vendor")) +
         attribute("familyid", read_text(host, "cpu_family")) +
         attribute("modelid", read_text(host, "cpu_model"));
}

// In the last PCI domain, where no real device is.
std::string make_address(size_t index) {
  char text[32];
  std::snprintf(text, sizeof text, "ffff:%02x:00.0", static_cast<unsigned>(0xe0 + index));
  return text;
}

// Ports of one card are one PCI device for NCCL.
std::map<std::string, Card> list_cards(const Json& document) {
  std::map<std::string, Card> cards;
  size_t invented = 0;
  for (const Json& device : document["devices"]) {
    if (!device["usable"].get<bool>()) continue;
    std::string address = read_text(device, "card_path");
    address = address.substr(address.rfind('/') + 1);
    if (address.empty()) address = read_text(device, "pci_address");
    if (address.empty()) address = make_address(invented++);
    Card& card = cards[address];
    if (card.place == nullptr) card.place = &device;
    card.names.push_back(read_text(device, "name"));
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

std::string format_topology_xml(const Json& document) {
  const Json nodes = document.value("numa_nodes", Json::array());
  const std::string first_node = nodes.empty() ? kUnknownNode : nodes[0]["node"].dump();
  std::map<std::string, Element> cpus;
  for (const auto& [address, card] : list_cards(document)) {
    const Json& place = *card.place;
    const std::string node = place["numa_node"].is_null() ? first_node : place["numa_node"].dump();
    Element* parent = &cpus[node];
    parent->start = describe_cpu(document, node);
    for (const Json& bridge : place["switches"]) {
      parent = &parent->children[bridge.get<std::string>()];
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
