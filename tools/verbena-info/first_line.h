#pragma once
#include <fstream>
#include <string>

namespace verbena::tools::info {

// Of a file of /sys or /proc; empty if it is not there.
inline std::string read_first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace verbena::tools::info
