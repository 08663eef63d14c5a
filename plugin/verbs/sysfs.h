// Facts about an RDMA device that only /sys has. The root is a parameter so that tests can use a tree of
// their own.
#pragma once

#include <cstdint>
#include <string>

#include "verbs/gid_choice.h"

namespace verbena::verbs {

// <root>/class/infiniband/<name>/device resolved; empty where the device has no place on a bus (rxe,
// softverbs).
std::string find_pci_path(const std::string& root, const std::string& device_name);

// For libraries that cannot tell the type of a GID themselves.
GidType read_gid_type(const std::string& root, const std::string& device_name, int port_number,
                      int gid_index);

// The network interface of an Ethernet port, such as "eth2"; empty if there is none.
std::string find_interface(const std::string& root, const std::string& device_name, int port_number);

// The ports that send for an interface.
struct Bond {
  uint32_t ports = 1;       // 1: the interface is no bond, or sends over one port at a time
  uint32_t speed_mbps = 0;  // of all together; 0: not known
};
// Ports with RDMA devices of their own are not of this device's bond.
Bond read_bond(const std::string& root, const std::string& interface, const std::string& device_name);

// Whether nvidia_peermem, or one of its predecessors, lets a NIC register pointers to GPU memory.
bool has_peer_memory_module(const std::string& root);

}  // namespace verbena::verbs
