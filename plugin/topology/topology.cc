#include "topology/topology.h"

#include <cerrno>
#include <memory>
#include <utility>

#include "base/log.h"
#include "topology/hwloc_api.h"
#include "topology/pci_path.h"

namespace verbena::topology {
namespace {

using base::fail_errno;
using base::Status;

// Discovery components that would initialise a GPU runtime, or connect to an X server, without the
// application's knowledge.
constexpr const char* kUnwantedComponents[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};

// Devices are attached to an object that has CPUs; this object knows which memory is near.
const hwloc_obj* find_attachment(const hwloc_obj* object) {
  while (object != nullptr && object->cpuset == nullptr) object = object->parent;
  return object;
}

int find_node_of_object(const hwloc_obj* object) {
  const hwloc_obj* attachment = find_attachment(object);
  if (attachment == nullptr || attachment->nodeset == nullptr) return kNoNode;
  const HwlocApi& hwloc = *find_hwloc();
  return hwloc.bitmap_weight(attachment->nodeset) == 1 ? hwloc.bitmap_first(attachment->nodeset) : kNoNode;
}

bool is_ancestor_or_self(const hwloc_obj* ancestor, const hwloc_obj* object) {
  while (object != nullptr && object != ancestor) object = object->parent;
  return object == ancestor;
}

const hwloc_obj* find_common_ancestor(const hwloc_obj* from, const hwloc_obj* to) {
  while (from != nullptr && !is_ancestor_or_self(from, to)) from = from->parent;
  return from;
}

bool is_same_device(const hwloc_obj* from, const hwloc_obj* to) {
  const auto& a = from->attr->pcidev;
  const auto& b = to->attr->pcidev;
  return a.domain == b.domain && a.bus == b.bus && a.dev == b.dev;
}

Distance measure_between(const hwloc_obj* from, const hwloc_obj* to) {
  if (is_same_device(from, to)) return Distance::kSameDevice;
  const hwloc_obj* common = find_common_ancestor(from, to);
  if (common != nullptr && common->type == HWLOC_OBJ_BRIDGE) {
    const bool is_host_bridge = common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
    return is_host_bridge ? Distance::kSameBridge : Distance::kSameSwitch;
  }
  if (find_attachment(from) == find_attachment(to)) return Distance::kSameNode;
  const int from_node = find_node_of_object(from), to_node = find_node_of_object(to);
  if (from_node == kNoNode || to_node == kNoNode) return Distance::kUnknown;
  return from_node == to_node ? Distance::kSameNode : Distance::kOtherNode;
}

}  // namespace

const char* describe(Distance distance) {
  switch (distance) {
    case Distance::kSameDevice:
      return "same device";
    case Distance::kSameSwitch:
      return "same PCI switch";
    case Distance::kSameBridge:
      return "same host bridge";
    case Distance::kSameNode:
      return "same NUMA node";
    case Distance::kOtherNode:
      return "other NUMA node";
    case Distance::kUnknown:
      break;
  }
  return "unknown distance";
}

base::Result<Topology> Topology::load(const std::string* xml) {
  const HwlocApi* hwloc = find_hwloc();
  if (hwloc == nullptr) return base::Error{Status::kSystem, 0};  // find_hwloc has logged the reason
  Topology result;
  if (hwloc->topology_init(&result.topology_.get()) != 0) {
    result.topology_ = nullptr;
    return fail_errno(Status::kSystem, errno, "topology: cannot create a topology object of hwloc");
  }
  for (const char* name : kUnwantedComponents) {
    hwloc->topology_set_components(result.topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, name);
  }
  hwloc->topology_set_io_types_filter(result.topology_, HWLOC_TYPE_FILTER_KEEP_ALL);
  // The length includes the final zero.
  const int length = xml == nullptr ? 0 : static_cast<int>(xml->size()) + 1;
  if (xml != nullptr && hwloc->topology_set_xmlbuffer(result.topology_, xml->c_str(), length) != 0) {
    return fail_errno(Status::kInvalidArgument, errno, "topology: cannot read the XML description");
  }
  if (hwloc->topology_load(result.topology_) != 0) {
    return fail_errno(Status::kSystem, errno, "topology: cannot read the topology of the machine");
  }
  return result;
}

const Topology& Topology::system() {
  static const Topology topology = [] {
    base::Result<Topology> loaded = load(nullptr);
    return loaded ? *std::move(loaded) : Topology();
  }();
  return topology;
}

base::Result<Topology> Topology::from_xml(const std::string& xml) {
  return load(&xml);
}

Topology::~Topology() {
  if (topology_ != nullptr) find_hwloc()->topology_destroy(topology_);
}

const hwloc_obj* Topology::find_object(std::string_view device) const {
  const auto address = find_pci_address(device);
  if (topology_ == nullptr || !address) return nullptr;
  const HwlocApi& hwloc = *find_hwloc();
  for (unsigned i = 0;; ++i) {
    const hwloc_obj* object = hwloc.get_obj_by_depth(topology_, HWLOC_TYPE_DEPTH_PCI_DEVICE, i);
    if (object == nullptr) return nullptr;
    const auto& pci = object->attr->pcidev;
    if (PciAddress{pci.domain, pci.bus, pci.dev, pci.func} == *address) return object;
  }
}

int Topology::find_numa_node(std::string_view device) const {
  const hwloc_obj* object = find_object(device);
  return object == nullptr ? kNoNode : find_node_of_object(object);
}

Distance Topology::measure_distance(std::string_view from, std::string_view to) const {
  const hwloc_obj* from_object = find_object(from);
  const hwloc_obj* to_object = find_object(to);
  if (from_object == nullptr || to_object == nullptr) return Distance::kUnknown;
  return measure_between(from_object, to_object);
}

bool Topology::bind_thread(std::string_view device) const {
  const hwloc_obj* object = find_attachment(find_object(device));
  if (object == nullptr) return false;
  const HwlocApi& hwloc = *find_hwloc();
  const std::unique_ptr<hwloc_bitmap_s, decltype(hwloc.bitmap_free)> cpus(hwloc.bitmap_alloc(),
                                                                          hwloc.bitmap_free);
  return cpus != nullptr && hwloc.get_cpubind(topology_, cpus.get(), HWLOC_CPUBIND_THREAD) == 0 &&
         hwloc.bitmap_and(cpus.get(), cpus.get(), object->cpuset) == 0 &&
         hwloc.bitmap_iszero(cpus.get()) == 0 &&
         hwloc.set_cpubind(topology_, cpus.get(), HWLOC_CPUBIND_THREAD) == 0;
}

std::string Topology::describe_device(std::string_view device) const {
  if (!find_pci_address(device)) return "no PCI device";
  const size_t slash = device.rfind('/');
  const std::string address(slash == std::string_view::npos ? device : device.substr(slash + 1));
  const int node = find_numa_node(device);
  return address + " on " + (node == kNoNode ? "an unknown NUMA node" : "NUMA node " + std::to_string(node));
}

}  // namespace verbena::topology
