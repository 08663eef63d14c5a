#include "chaos/folder.h"

#include <regex.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "common/error.h"

namespace verbena::chaos {
namespace {

constexpr const char* kMemory = "/dev/shm";

// The C library's: std::regex does not compile without warnings under gcc 12's address sanitizer.
class Pattern {
 public:
  explicit Pattern(const std::string& text) {
    if (regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB) != 0)
      throw tools::ToolError(text + ": not a pattern");
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { regfree(&compiled_); }

  bool is_in(const std::string& line) const { return regexec(&compiled_, line.c_str(), 0, nullptr, 0) == 0; }

 private:
  regex_t compiled_{};
};

}  // namespace

Folder::Folder(const std::string& name)
    : path_(std::filesystem::path(kMemory) / ("verbena-chaos-" + std::to_string(getpid()) + "-" + name)) {
  std::filesystem::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  if (!is_kept_) std::filesystem::remove_all(path_, ignored);
}

// In one step, for those that watch it; readable by this user alone, as a key must be.
void Folder::write(const std::string& name, const std::string& text) const {
  const std::string next = path(name + ".next");
  {
    std::ofstream file(next);
    file << text;
  }
  if (chmod(next.c_str(), 0600) != 0) throw tools::ToolError(next + ": cannot be written");
  std::filesystem::rename(next, path(name));
}

std::string Folder::read(const std::string& name) const {
  std::ifstream file(path(name));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> Folder::find_lines(const std::string& name, const std::string& pattern) const {
  const Pattern wanted(pattern);
  std::vector<std::string> lines;
  std::ifstream file(path(name));
  for (std::string line; std::getline(file, line);)
    if (wanted.is_in(line)) lines.push_back(line);
  return lines;
}

std::vector<std::string> Folder::list(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path(name)))
    names.push_back(entry.path().string());
  return names;
}

}  // namespace verbena::chaos
