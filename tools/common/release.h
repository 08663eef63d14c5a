#pragma once
#include <string>

namespace verbena::tools {

// "0.1.0", as CMakeLists.txt has it.
const char* release();

// What `tool --version` prints: "verbena-perf 0.1.0".
std::string describe_release(const char* tool);

}  // namespace verbena::tools
