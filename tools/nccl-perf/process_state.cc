#include "nccl-perf/process_state.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace verbena::tools::nccl {
namespace {

std::string read_first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "1234 (name) S ..." -> "S"; the name may hold spaces and brackets.
std::string extract_state(const std::string& stat) {
  const size_t end = stat.rfind(") ");
  return end == std::string::npos ? "?" : stat.substr(end + 2, 1);
}

}  // namespace

std::vector<std::string> describe_threads(pid_t pid) {
  std::vector<std::string> lines;
  std::error_code error;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const std::string waits_in = read_first_line(task.path() / "wchan");
    lines.push_back(task.path().filename().string() + " " + read_first_line(task.path() / "comm") + ": " +
                    extract_state(read_first_line(task.path() / "stat")) +
                    (waits_in.empty() || waits_in == "0" ? "" : " in " + waits_in));
  }
  return lines;
}

}  // namespace verbena::tools::nccl
