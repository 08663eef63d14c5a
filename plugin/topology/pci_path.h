// PCI devices by their path in sysfs, in the form that NCCL expects in `pciPath`.
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

// Reads a text such as "0000:3b:00.1".
std::optional<PciAddress> parse_pci_address(std::string_view text);

// Reads the last component of a path, or the text itself if it is not a path.
std::optional<PciAddress> find_pci_address(std::string_view path);

// Returns the part of a path under /sys/devices that ends with the device's PCI address (without a virtio or
// network child of the device); empty if the path contains no PCI device.
std::string trim_to_pci_device(std::string_view resolved_path);

// Returns this part for a sysfs entry such as /sys/class/infiniband/mlx5_0/device, after following its links.
std::string find_pci_path(const std::string& sysfs_entry);

// Returns the addresses of the PCI switches on the path to a device, the outermost first. Each one is the
// address of the switch's port towards the root, as in NCCL. `pci_path` comes from find_pci_path.
std::vector<std::string> list_switches(std::string_view pci_path);

// Returns the PCI device that represents a whole card: function 0 of the device or, for a virtual function,
// of the physical card. Returns the path itself if there is no such device. `pci_path` comes from
// find_pci_path.
std::string find_card_path(const std::string& pci_path);

}  // namespace verbena::topology
