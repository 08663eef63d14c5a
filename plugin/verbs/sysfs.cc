#include "verbs/sysfs.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace verbena::verbs {

namespace {

std::string name_port_folder(const std::string& root, const std::string& device_name, int port_number) {
  return root + "/class/infiniband/" + device_name + "/ports/" + std::to_string(port_number);
}

// Returns an empty string if the file is missing or empty.
std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string find_pci_path(const std::string& root, const std::string& device_name) {
  const std::string link = root + "/class/infiniband/" + device_name + "/device";
  char resolved[PATH_MAX];
  return realpath(link.c_str(), resolved) != nullptr ? resolved : "";
}

GidType read_gid_type(const std::string& root, const std::string& device_name, int port_number,
                      int gid_index) {
  const std::string text = read_line(name_port_folder(root, device_name, port_number) + "/gid_attrs/types/" +
                                     std::to_string(gid_index));
  if (text.empty()) return GidType::kUnknown;
  return text.starts_with("RoCE v2") ? GidType::kRoceV2 : GidType::kInfiniBandOrRoceV1;
}

std::string find_interface(const std::string& root, const std::string& device_name, int port_number) {
  // The first GID is derived from the interface's hardware address, and exists as long as the interface.
  const std::string of_gid =
      read_line(name_port_folder(root, device_name, port_number) + "/gid_attrs/ndevs/0");
  return of_gid.empty() ? read_line(root + "/class/infiniband/" + device_name + "/parent") : of_gid;
}

Bond read_bond(const std::string& root, const std::string& interface, const std::string& device_name) {
  Bond bond;
  const std::string net = root + "/class/net/";
  if (interface.empty() || read_line(net + interface + "/bonding/mode").starts_with("active-backup"))
    return bond;
  std::istringstream members(read_line(net + interface + "/bonding/slaves"));
  uint32_t ports = 0;
  for (std::string member; members >> member;) {
    const std::string devices = net + member + "/device/infiniband/";
    const bool is_of_another =
        access(devices.c_str(), F_OK) == 0 && access((devices + device_name).c_str(), F_OK) != 0;
    if (!is_of_another && read_line(net + member + "/bonding_slave/mii_status") != "down") ++ports;
  }
  if (ports < 2) return bond;
  bond.ports = ports;
  int64_t speed_mbps = 0;  // negative if unknown
  std::istringstream(read_line(net + interface + "/speed")) >> speed_mbps;
  bond.speed_mbps = static_cast<uint32_t>(std::max<int64_t>(speed_mbps, 0));
  return bond;
}

bool has_peer_memory_module(const std::string& root) {
  for (const char* file : {"/module/nvidia_peermem/version", "/kernel/mm/memory_peers/nv_mem/version",
                           "/kernel/mm/memory_peers/nv_mem_nc/version"}) {
    if (access((root + file).c_str(), F_OK) == 0) return true;
  }
  return false;
}

}  // namespace verbena::verbs
