#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace verbena::tools::unpack {

// gnuplot's program for a report: a group of bars a case, a bar a kernel, GB/s of payload in all.
std::string write_plot(const nlohmann::json& document, const std::string& svg_file);

// False, having said so on stderr, where there is no gnuplot. Throws ToolError when it fails.
bool draw_picture(const nlohmann::json& document, const std::string& svg_file);

}  // namespace verbena::tools::unpack
