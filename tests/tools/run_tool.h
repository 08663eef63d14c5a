#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <source_location>
#include <string>
#include <vector>

namespace verbena::tools {

struct ToolRun {
  int status = -1;
  std::string output;  // of both streams
  std::string command;
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
  ToolRun run = read_tool(popen(("exec 2>&1; " + command).c_str(), "r"));
  run.command = command;
  return run;
}

// The run, which is to have ended with this status and to have said each of the texts.
inline ToolRun expect_run(ToolRun run, int status, const std::vector<std::string>& texts = {},
                          const std::source_location& at = std::source_location::current()) {
  const testing::ScopedTrace trace(at.file_name(), static_cast<int>(at.line()), run.command);
  EXPECT_EQ(run.status, status) << run.output;
  for (const std::string& text : texts) EXPECT_THAT(run.output, testing::HasSubstr(text));
  return run;
}

}  // namespace verbena::tools
