#include "nccl-perf/topology_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <sstream>

#include "common/cuda_driver.h"
#include "common/error.h"

namespace verbena::tools::nccl {
namespace {

constexpr const char* kUnknownNode = "-1";
constexpr const char* kLink = R"(link_speed="32.0 GT/s PCIe" link_width="16")";

// A bus address in the last PCI domain, which has no real devices.
std::string make_bus_id(int bus, int function) {
  std::ostringstream text;
  text << "ffff:" << std::hex << 0xe0 + bus << ":00." << function;
  return text.str();
}

void write_card(std::ostream& xml, const std::string& bus_id, int rail) {
  xml << R"(    <pci busid=")" << bus_id << R"(" class="0x020000" )" << kLink << ">\n"
      << R"(      <nic><net name="softverbs)" << rail << R"("/><net name="verbena_softverbs)" << rail
      << "\"/></nic>\n"
      << "    </pci>\n";
}

}  // namespace

std::string make_topology_xml(const std::string& numa_node, int rails, RailPlacement placement) {
  std::ostringstream xml;
  xml << "<system version=\"1\">\n  <cpu numaid=\"" << numa_node << "\">\n";
  if (placement == RailPlacement::kJoined) {
    // NCCL puts the virtual device beside its members, below the bridge that they share.
    xml << R"(    <pci busid=")" << make_bus_id(0, 0) << R"(" class="0x060400" )" << kLink << ">\n";
    for (int rail = 0; rail < rails; ++rail) write_card(xml, make_bus_id(1, rail), rail);
    xml << "    </pci>\n";
  } else {
    for (int rail = 0; rail < rails; ++rail) write_card(xml, make_bus_id(1 + rail, 0), rail);
  }
  xml << "  </cpu>\n</system>\n";
  return xml.str();
}

std::string find_gpu_numa_node(int gpu) {
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError(why);
  CUdevice device = 0;
  driver->check(driver->cuDeviceGet(&device, gpu), "cuDeviceGet");
  std::array<char, 32> bus_id{};
  driver->check(driver->cuDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device),
                "cuDeviceGetPCIBusId");
  std::string name = bus_id.data();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  std::string node;
  std::ifstream(std::string("/sys/bus/pci/devices/") + name + "/numa_node") >> node;
  return node.empty() ? kUnknownNode : node;
}

void write_topology_file(const std::string& file, int gpu, int rails, RailPlacement placement) {
  std::ofstream out(file);
  out << make_topology_xml(find_gpu_numa_node(gpu), rails, placement);
  out.close();
  if (!out) throw ToolError("cannot write " + file);
}

}  // namespace verbena::tools::nccl
