#include "verbena-info/machine.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "topology/topology.h"
#include "verbena-info/first_line.h"

namespace verbena::tools::info {
namespace {

bool is_of_interest(std::string_view name) {
  for (const char* prefix : {"NCCL_", "VERBENA_", "SOFTVERBS_"}) {
    if (name.starts_with(prefix)) return true;
  }
  return name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD" || name == "CUDA_VISIBLE_DEVICES";
}

// Null: no limit.
Json read_memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return nullptr;
  return limit.rlim_cur;
}

// Of the first processor; empty where this architecture has no such line.
std::string read_cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const size_t end = line.find_last_not_of(" \t", colon - 1) + 1;
    if (line.substr(0, end) == key) return line.substr(std::min(colon + 2, line.size()));
  }
  return {};
}

}  // namespace

Json list_numa_nodes() {
  constexpr int kMostNodes = 256;
  Json nodes = Json::array();
  for (int node = 0; node < kMostNodes; ++node) {
    const std::string map =
        read_first_line("/sys/devices/system/node/node" + std::to_string(node) + "/cpumap");
    if (!map.empty()) nodes.push_back({{"node", node}, {"cpumap", map}});
  }
  return nodes;
}

Json describe_tool() {
  return {{"name", "verbena-info"},
          {"version", VERBENA_RELEASE},
          {"build_type", VERBENA_BUILD_TYPE},
          {"compiler", VERBENA_COMPILER}};
}

Json describe_host() {
  utsname names{};
  uname(&names);
  return {{"name", names.nodename},
          {"kernel", names.release},
          {"architecture", names.machine},
          {"cpu_vendor", text_or_null(read_cpuinfo("vendor_id"))},
          {"cpu_family", text_or_null(read_cpuinfo("cpu family"))},
          {"cpu_model", text_or_null(read_cpuinfo("model"))},
          {"cpus", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memlock_limit_bytes", read_memlock_limit()},
          {"hwloc", topology::Topology::system().is_known()}};
}

Json list_environment(const Environment& environment) {
  Json variables = Json::object();
  for (const std::string& assignment : environment.list_all()) {
    const size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    if (is_of_interest(name)) variables[name] = assignment.substr(equals + 1);
  }
  return variables;
}

}  // namespace verbena::tools::info
