#include "common/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/file_descriptor.h"
#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/line_channel.h"

namespace verbena::tools {
namespace {

using base::FileDescriptor;

// Puts the input into a file in memory, so that we need not write to the program while we read from it.
FileDescriptor make_input(const std::string& text) {
  FileDescriptor file(memfd_create("input", MFD_CLOEXEC));
  if (!file) throw ToolError(std::string("memfd_create: ") + std::strerror(errno));
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(file.get(), text.data() + written, text.size() - written);
    if (count < 0) throw ToolError(std::string("write: ") + std::strerror(errno));
    written += static_cast<size_t>(count);
  }
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

pid_t start(const std::vector<std::string>& arguments, int input, int output) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw ToolError("cannot start " + arguments[0] + ": " + std::strerror(error));
  return pid;
}

// Reads until the program closes its output; false if the deadline is earlier.
bool read_all(int descriptor, int64_t deadline_ns, std::string& text) {
  for (;;) {
    pollfd poll_entry{descriptor, POLLIN, 0};
    if (poll(&poll_entry, 1, compute_poll_timeout_ms(deadline_ns)) == 0) return false;
    char chunk[4096];
    const ssize_t count = read(descriptor, chunk, sizeof chunk);
    if (count == 0) return true;
    if (count > 0) text.append(chunk, static_cast<size_t>(count));
  }
}

}  // namespace

std::string find_program(const std::string& name) {
  const Environment environment = Environment::copy_own();
  const std::string* const path = environment.find("PATH");
  std::istringstream folders(path == nullptr ? "" : *path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (std::filesystem::path(folder) / name).string();
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

ProgramResult run_program(const std::vector<std::string>& arguments, const std::string& input,
                          double timeout_s) {
  const FileDescriptor source(make_input(input));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw ToolError(std::string("pipe: ") + std::strerror(errno));
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t pid = start(arguments, source.get(), writing.get());
  writing.reset();
  ProgramResult result;
  const bool ended = read_all(reading.get(), deadline_after_s(timeout_s), result.output);
  if (!ended) kill(pid, SIGKILL);
  int wait_status = 0;
  waitpid(pid, &wait_status, 0);
  if (!ended) throw ToolError(arguments[0] + " did not finish within " + format_seconds(timeout_s));
  result.status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
  return result;
}

}  // namespace verbena::tools
