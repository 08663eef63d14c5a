#pragma once
#include <string>

namespace verbena::tools::nccl {

// How the topology file places the rails of the software device, which has no PCI address.
enum class RailPlacement {
  kSideBySide,  // one card per rail: NCCL gives them to different channels
  kJoined,      // functions of one card: NCCL joins them to one virtual device
};

// A topology for NCCL_TOPO_FILE with devices that are not in sysfs. It has no GPUs and CPUs: NCCL adds them,
// and drops devices that its transport does not have. NCCL's own IB transport calls a device softverbs<rail>,
// the plugin verbena_softverbs<rail>.
std::string make_topology_xml(const std::string& numa_node, int rails, RailPlacement placement);

// The NUMA node of a GPU as NCCL reads it; "-1" if unknown.
std::string find_gpu_numa_node(int gpu);

// Throws ToolError.
void write_topology_file(const std::string& file, int gpu, int rails, RailPlacement placement);

}  // namespace verbena::tools::nccl
