// A topology file for NCCL (NCCL_TOPO_FILE).
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// Where the plugin's devices hang. GPUs are not in it: NCCL finds them and puts them beside. A device on no
// PCI bus gets an address that no real device has, at the first NUMA node.
std::string format_topology_xml(const Json& document);

}  // namespace verbena::tools::info
