// GPUs and NICs where they hang: NUMA nodes, in these the innermost PCI switches, or none.
#pragma once
#include <string>
#include <vector>

#include "verbena-info/document.h"

namespace verbena::tools::info {

struct DeviceGroup {
  std::string pci_switch;               // empty: at the CPU itself
  std::vector<const Json*> gpus, nics;  // of the document
};

struct NodeGroup {
  Json numa_node;  // null: unknown, or no PCI device
  std::vector<DeviceGroup> groups;
};

// Refers to the document. Nodes by number, those without one last.
std::vector<NodeGroup> build_machine_tree(const Json& document);

}  // namespace verbena::tools::info
