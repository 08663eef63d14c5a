#include "transport/support/memory_use.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

namespace verbena::transport {

namespace {

constexpr uint64_t kKiB = 1024, kBlockBytes = 512;
constexpr char kSegmentFolder[] = "/softverbs";
constexpr uint64_t kPidMask = (1 << 22) - 1;  // of the number at the end of a segment's name

bool is_segment(const std::string& path) {
  return path.find(kSegmentFolder) != std::string::npos && path.rfind('-') != std::string::npos;
}

bool is_own(const std::string& segment) {
  const uint64_t owner = std::strtoull(segment.c_str() + segment.rfind('-') + 1, nullptr, 16);
  return (owner & kPidMask) == static_cast<uint64_t>(getpid());
}

// Includes pages of the file that were not accessed yet.
uint64_t measure_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * kBlockBytes : 0;
}

uint64_t read_kib(const std::string& line, const char* name) {
  return line.rfind(name, 0) == 0 ? std::strtoull(line.c_str() + std::string(name).size(), nullptr, 10) * kKiB
                                  : 0;
}

}  // namespace

MemoryUse measure_memory() {
  MemoryUse use;
  std::set<std::string> own_segments;
  std::ifstream maps("/proc/self/smaps");
  bool is_in_segment = false;
  for (std::string line; std::getline(maps, line);) {
    const size_t name_end = line.find_first_of(": ");
    if (name_end != std::string::npos && line[name_end] == ' ') {  // the range that begins a mapping
      const size_t path_start = line.find('/');
      const std::string path = path_start == std::string::npos ? "" : line.substr(path_start);
      is_in_segment = is_segment(path);
      if (is_in_segment && is_own(path)) own_segments.insert(path);
    } else if (!is_in_segment) {
      use.process_bytes += read_kib(line, "Pss:");
    }
  }
  for (const auto& segment : own_segments) use.device_bytes += measure_file(segment);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) use.pinned_bytes += read_kib(line, "VmPin:");
  return use;
}

}  // namespace verbena::transport
