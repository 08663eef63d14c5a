#include "common/self_path.h"

#include <system_error>

namespace verbena::tools {

std::filesystem::path find_self_executable() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::filesystem::path find_default_plugin() {
  constexpr const char* kPluginName = "libnccl-net-verbena.so";
  const auto tools = find_self_executable().parent_path();
  for (const char* libraries : {"../lib", VERBENA_LIBRARIES_FROM_TOOLS}) {
    const auto beside = (tools / libraries / kPluginName).lexically_normal();
    std::error_code error;
    if (std::filesystem::exists(beside, error)) return beside;
  }
  return kPluginName;
}

}  // namespace verbena::tools
