#include "verbena-info/child.h"

#include <cstdio>
#include <mutex>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/self_path.h"

namespace verbena::tools::info {
namespace {

constexpr double kAnswerTimeoutS = 10, kGraceS = 3;

struct KeptLines {
  std::mutex mutex;  // guards what follows
  std::vector<std::string> warnings;
  bool verbose = false;
};

KeptLines& kept() {
  static auto* const lines = new KeptLines;  // never freed: the plugin's threads may outlive main
  return *lines;
}

}  // namespace

ChildAnswer ask_child(const std::string& role, const InfoOptions& options, const Environment& environment) {
  ChildCommand command{
      find_self_executable().string(),
      {"--child", role, "--plugin", options.plugin, "--timeout", std::to_string(options.timeout_s)},
      environment,
      -1};
  if (options.verbose) command.arguments.emplace_back("--verbose");
  const double timeout_s = options.timeout_s + kGraceS;
  ChildAnswer answer;
  ChildGroup group;
  try {
    group.start(command);
  } catch (const ToolError& error) {
    return {{}, TestFault::kProcessEnded, error.what()};
  }
  for (;;) {
    const ChildEvent event = group.wait_event(deadline_after_s(timeout_s));
    if (event.kind == ChildEvent::Kind::kLine) {
      answer.lines.push_back(parse_child_line(event.line));
      continue;
    }
    if (event.kind == ChildEvent::Kind::kTimeout) {
      answer.fault = TestFault::kSilent;
      answer.problem = "made no progress for " + format_seconds(timeout_s) + " and was killed";
    } else if (group.exit_status(0) != kExitOk) {
      const bool was_killed = group.exit_status(0) >= 128;
      answer.fault = TestFault::kProcessEnded;
      answer.problem = (was_killed ? "" : "exited with status ") + group.describe_exit(0);
    }
    return answer;
  }
}

void answer(const ChildLine& line) {
  static LineChannel channel(kControlDescriptor);
  channel.send_line(format_child_line(line), deadline_after_s(kAnswerTimeoutS));
}

void keep_plugin_line(const PluginLine& line) {
  const std::string words = strip_prefix(line.text);
  const std::lock_guard lock(kept().mutex);
  if (line.is_warning()) kept().warnings.push_back(words);
  if (kept().verbose) std::fprintf(stderr, "# %s\n", words.c_str());
}

void show_plugin_lines(bool verbose) {
  kept().verbose = verbose;
}

std::string join_warnings(std::string problem) {
  const std::lock_guard lock(kept().mutex);
  for (const std::string& warning : kept().warnings) problem += "; " + warning;
  return problem;
}

std::string strip_prefix(std::string_view line) {
  constexpr std::string_view kPrefix = "verbena: ";
  if (line.starts_with(kPrefix)) line.remove_prefix(kPrefix.size());
  return std::string(line);
}

}  // namespace verbena::tools::info
