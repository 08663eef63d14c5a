#include "common/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "common/environment.h"

namespace verbena::tools {
namespace {

// What stands behind the first line that begins with `name`, without separators and quotes.
std::string find_entry(const char* file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    const size_t begin = line.find_first_not_of(" \t:=\"", name.size());
    const size_t end = line.find_last_not_of(" \t\"");
    if (begin != std::string::npos) return line.substr(begin, end - begin + 1);
  }
  return "";
}

}  // namespace

nlohmann::json describe_machine() {
  utsname names{};
  uname(&names);
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  std::string cpu = find_entry("/proc/cpuinfo", "model name");
  if (cpu.empty()) cpu = names.machine;  // not every architecture tells one
  return {{"host", names.nodename},
          {"system", find_entry("/etc/os-release", "PRETTY_NAME")},
          {"kernel", std::string(names.sysname) + " " + names.release + " " + names.machine},
          {"cpu", cpu},
          {"cpus", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", pages * page_bytes}};
}

nlohmann::json list_measured_environment() {
  constexpr std::array kPrefixes{"VERBENA_", "NCCL_", "SOFTVERBS_", "CUDA_"};
  nlohmann::json listed = nlohmann::json::object();
  for (const std::string& pair : Environment::copy_own().list_all()) {
    for (const char* prefix : kPrefixes) {
      const size_t equals = pair.find('=');
      if (pair.starts_with(prefix)) listed[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
  }
  return listed;
}

}  // namespace verbena::tools
