#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace verbena::chaos {

// A folder in memory for what the ends of one round share; gone with it.
class Folder {
 public:
  explicit Folder(const std::string& name);
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  void write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;
  // Every line of the file that the POSIX extended pattern is found in.
  std::vector<std::string> find_lines(const std::string& name, const std::string& pattern) const;
  std::vector<std::string> list(const std::string& name) const;
  void keep() { is_kept_ = true; }

 private:
  std::filesystem::path path_;
  bool is_kept_ = false;
};

}  // namespace verbena::chaos
