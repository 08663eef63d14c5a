#include "common/self_path.h"

#include <system_error>

namespace verbena::tools {

std::filesystem::path find_self_executable() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::filesystem::path find_default_plugin() {
  constexpr const char* kPluginName = "libnccl-net.so";
  const auto beside = find_self_executable().parent_path().parent_path() / "lib" / kPluginName;
  std::error_code error;
  return std::filesystem::exists(beside, error) ? beside : std::filesystem::path(kPluginName);
}

}  // namespace verbena::tools
