#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace verbena::tests {

inline std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Where a test may put a file or a folder, gone with its holder. Other cases and other builds run meanwhile,
// each in its own process.
class ScratchPath {
 public:
  explicit ScratchPath(const std::string& name)
      : path_(::testing::TempDir() + "verbena." + std::to_string(getpid()) + "." + name) {
    remove();
  }
  ScratchPath(const ScratchPath&) = delete;
  ~ScratchPath() { remove(); }

  const std::string& get() const { return path_; }
  // The whole file.
  std::string read() const { return read_file(path_); }

 private:
  void remove() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path_;
};

}  // namespace verbena::tests
