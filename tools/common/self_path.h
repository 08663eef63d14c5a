#pragma once
#include <filesystem>

namespace verbena::tools {

std::filesystem::path find_self_executable();

// The plugin in ../lib beside the tool, or where else libraries were installed; otherwise its bare name,
// which the loader seeks in its library path.
std::filesystem::path find_default_plugin();

}  // namespace verbena::tools
