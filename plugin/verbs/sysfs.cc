#include "verbs/sysfs.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

namespace verbena::verbs {

std::string find_pci_path(const std::string& root, const std::string& device_name) {
  const std::string link = root + "/class/infiniband/" + device_name + "/device";
  char resolved[PATH_MAX];
  return realpath(link.c_str(), resolved) != nullptr ? resolved : "";
}

GidType read_gid_type(const std::string& root, const std::string& device_name, int port_number,
                      int gid_index) {
  std::ifstream file(root + "/class/infiniband/" + device_name + "/ports/" + std::to_string(port_number) +
                     "/gid_attrs/types/" + std::to_string(gid_index));
  std::string text;
  if (!std::getline(file, text)) return GidType::kUnknown;
  return text.starts_with("RoCE v2") ? GidType::kRoceV2 : GidType::kInfiniBandOrRoceV1;
}

bool has_peer_memory_module(const std::string& root) {
  for (const char* file : {"/module/nvidia_peermem/version", "/kernel/mm/memory_peers/nv_mem/version",
                           "/kernel/mm/memory_peers/nv_mem_nc/version"}) {
    if (access((root + file).c_str(), F_OK) == 0) return true;
  }
  return false;
}

}  // namespace verbena::verbs
