// Information about an RDMA device that only /sys has. The root is a parameter, so that tests can use their
// own tree.
#pragma once

#include <cstdint>
#include <string>

#include "verbs/gid_choice.h"

namespace verbena::verbs {

// Returns <root>/class/infiniband/<name>/device, resolved; empty if the device is not on a bus (rxe,
// softverbs).
std::string find_pci_path(const std::string& root, const std::string& device_name);

// For libraries that cannot report the type of a GID.
GidType read_gid_type(const std::string& root, const std::string& device_name, int port_number,
                      int gid_index);

// Returns the network interface of an Ethernet port, such as "eth2", or an empty string.
std::string find_interface(const std::string& root, const std::string& device_name, int port_number);

// The ports that send for an interface.
struct Bond {
  uint32_t ports = 1;       // 1: the interface is no bond, or uses one port at a time
  uint32_t speed_mbps = 0;  // of all ports together; 0 if unknown
};
// Ports that have their own RDMA devices do not count as ports of this device's bond.
Bond read_bond(const std::string& root, const std::string& interface, const std::string& device_name);

// Returns whether nvidia_peermem, or one of its predecessors, allows a NIC to register pointers to GPU
// memory.
bool has_peer_memory_module(const std::string& root);

}  // namespace verbena::verbs
