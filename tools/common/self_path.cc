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
    auto beside = (tools / libraries / kPluginName).lexically_normal();
    std::error_code error;
    if (std::filesystem::exists(beside, error)) return beside;
  }
  return kPluginName;
}

std::filesystem::path find_own_file(const char* name) {
  return (find_self_executable().parent_path() / VERBENA_DATA_FROM_TOOLS / "verbena" / name)
      .lexically_normal();
}

const char* release() {
  return VERBENA_RELEASE;
}

std::string describe_release(const char* tool) {
  return std::string(tool) + " " + release();
}

}  // namespace verbena::tools
