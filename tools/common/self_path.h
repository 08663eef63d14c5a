#pragma once
#include <filesystem>
#include <string>

namespace verbena::tools {

std::filesystem::path find_self_executable();

// The plugin in ../lib beside the tool, or in the folder where libraries were installed; otherwise its bare
// name, which the loader looks up in its library path.
std::filesystem::path find_default_plugin();

// A file that a tool needs and users do not start, in ../share/verbena beside the tool.
std::filesystem::path find_own_file(const char* name);

// The version in CMakeLists.txt, such as "0.1.0".
const char* release();

// The output of `tool --version`: "verbena-perf 0.1.0".
std::string describe_release(const char* tool);

}  // namespace verbena::tools
