#pragma once
#include <sys/wait.h>
#include <cstdio>
#include <string>

namespace verbena::tools {

struct ToolRun {
  int status = -1;
  std::string output;  // of both streams
};

// All that a started command still says, and how it ends.
inline ToolRun read_tool(std::FILE* pipe) {
  ToolRun run;
  if (pipe == nullptr) return run;
  char chunk[4096];
  for (size_t count; (count = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) run.output.append(chunk, count);
  const int wait_status = pclose(pipe);
  run.status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
  return run;
}

// Runs a shell command without a time limit; a limit must be in the command.
inline ToolRun run_tool(const std::string& command) {
  return read_tool(popen(("exec 2>&1; " + command).c_str(), "r"));
}

}  // namespace verbena::tools
