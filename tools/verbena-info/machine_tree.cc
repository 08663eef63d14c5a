#include "verbena-info/machine_tree.h"

#include <algorithm>
#include <climits>

namespace verbena::tools::info {
namespace {

int rank_node(const Json& node) {
  return node.is_null() ? INT_MAX : node.get<int>();
}

DeviceGroup& find_group(std::vector<NodeGroup>& nodes, const Json& place) {
  auto node = std::find_if(nodes.begin(), nodes.end(),
                           [&](const NodeGroup& n) { return n.numa_node == place["numa_node"]; });
  if (node == nodes.end()) node = nodes.insert(nodes.end(), NodeGroup{place["numa_node"], {}});
  const Json& switches = place["switches"];
  const std::string innermost = switches.empty() ? "" : switches.back().get<std::string>();
  auto group = std::find_if(node->groups.begin(), node->groups.end(),
                            [&](const DeviceGroup& g) { return g.pci_switch == innermost; });
  if (group == node->groups.end())
    group = node->groups.insert(node->groups.end(), DeviceGroup{innermost, {}, {}});
  return *group;
}

}  // namespace

std::vector<NodeGroup> build_machine_tree(const Json& document) {
  std::vector<NodeGroup> nodes;
  for (const Json& gpu : document["gpus"]["devices"]) find_group(nodes, gpu).gpus.push_back(&gpu);
  for (const Json& nic : document["devices"]) find_group(nodes, nic).nics.push_back(&nic);
  std::stable_sort(nodes.begin(), nodes.end(), [](const NodeGroup& a, const NodeGroup& b) {
    return rank_node(a.numa_node) < rank_node(b.numa_node);
  });
  for (NodeGroup& node : nodes) {
    std::stable_sort(node.groups.begin(), node.groups.end(),
                     [](const DeviceGroup& a, const DeviceGroup& b) { return a.pci_switch < b.pci_switch; });
  }
  return nodes;
}

}  // namespace verbena::tools::info
