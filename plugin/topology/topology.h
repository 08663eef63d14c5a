// The distances of PCI devices from each other and from the memory of the CPUs. A device is identified by its
// sysfs path, as find_pci_path returns it, or by its PCI address alone (a GPU). There is a separate value for
// unknown distances; no function fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/movable.h"
#include "base/status.h"

struct hwloc_topology;
struct hwloc_obj;

namespace verbena::topology {

inline constexpr int kNoNode = -1;

// From near to far.
enum class Distance : uint8_t {
  kSameDevice,  // functions of one PCI device included
  kSameSwitch,  // a PCI switch or one root port
  kSameBridge,  // the same host bridge: through the root complex
  kSameNode,    // the same NUMA node: between host bridges
  kOtherNode,   // over the link between NUMA nodes
  kUnknown,
};

const char* describe(Distance distance);

class Topology {
 public:
  // The topology of this machine, read on the first call. All distances are unknown if hwloc is missing or
  // fails. Any thread may call it.
  static const Topology& system();
  // The topology of a machine that is described in hwloc's XML, such as lstopo writes.
  static base::Result<Topology> from_xml(const std::string& xml);

  Topology() = default;
  Topology(Topology&&) noexcept = default;
  Topology& operator=(Topology&&) noexcept = default;
  ~Topology();

  // Returns false if hwloc is missing or failed; all distances are then unknown.
  bool is_known() const { return topology_ != nullptr; }
  // Returns kNoNode if unknown, or if the device is equally near to several nodes.
  int find_numa_node(std::string_view device) const;
  Distance measure_distance(std::string_view from, std::string_view to) const;
  // Binds the calling thread to those of its allowed CPUs that are near the device. Returns false, and
  // changes nothing, if these CPUs are unknown or none of them is allowed. Only for the topology of this
  // machine.
  bool bind_thread(std::string_view device) const;
  // Returns a text such as "0000:3b:00.0 on NUMA node 0".
  std::string describe_device(std::string_view device) const;

 private:
  static base::Result<Topology> load(const std::string* xml);
  const hwloc_obj* find_object(std::string_view device) const;

  base::Movable<hwloc_topology*> topology_;
};

}  // namespace verbena::topology
