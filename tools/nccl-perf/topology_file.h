#pragma once
#include <string>

namespace verbena::tools::nccl {

// How NCCL is to see the rails of the software device, which is on no PCI bus.
enum class RailPlacement {
  kSideBySide,  // a card each: NCCL gives them to different channels
  kJoined,      // functions of one card: NCCL joins them to one virtual device
};

// A topology for NCCL_TOPO_FILE: what NCCL cannot find out about devices that are not in sysfs. GPUs and CPUs
// are not in it; NCCL adds them, and drops the devices that its transport does not name. NCCL's own IB
// transport calls a device softverbs<rail>, the plugin verbena_softverbs<rail>.
std::string make_topology_xml(const std::string& numa_node, int rails, RailPlacement placement);

// The NUMA node of a GPU as NCCL reads it; "-1" where the machine does not say.
std::string find_gpu_numa_node(int gpu);

// Throws ToolError.
void write_topology_file(const std::string& file, int gpu, int rails, RailPlacement placement);

}  // namespace verbena::tools::nccl
