#pragma once
#include <filesystem>

namespace verbena::tools {

std::filesystem::path find_self_executable();

// The plugin in ../lib beside the tool; otherwise its bare name, which the loader seeks in its library path.
std::filesystem::path find_default_plugin();

}  // namespace verbena::tools
