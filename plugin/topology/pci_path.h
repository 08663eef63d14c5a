// PCI devices by their place in sysfs, as NCCL wants them in `pciPath`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::topology {

struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0, function = 0;

  bool operator==(const PciAddress&) const = default;
};

// Of "0000:3b:00.1".
std::optional<PciAddress> parse_pci_address(std::string_view text);

// Of the last component of a path, or of the text itself if it is no path.
std::optional<PciAddress> find_pci_address(std::string_view path);

// The part of a path under /sys/devices that ends with the device's PCI address (a virtio or network child of
// it is cut off); empty if no PCI device is on the way.
std::string trim_to_pci_device(std::string_view resolved_path);

// The same for a sysfs entry such as /sys/class/infiniband/mlx5_0/device, whose links are followed first.
std::string find_pci_path(const std::string& sysfs_entry);

// Addresses of the PCI switches on the way to a device, the outermost first; each by the port that looks at
// the root, as NCCL names it. `pci_path` as find_pci_path gives it.
std::vector<std::string> list_switches(std::string_view pci_path);

// The PCI device that stands for a whole card: function 0 of it; of a virtual function the physical one's.
// The path itself if there is no such device. `pci_path` as find_pci_path gives it.
std::string find_card_path(const std::string& pci_path);

}  // namespace verbena::topology
