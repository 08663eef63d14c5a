// Processes of ours that say what they found in lines of JSON.
#pragma once
#include <string>
#include <vector>

#include "common/environment.h"
#include "nccl/abi.h"
#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

struct ChildAnswer {
  std::vector<Json> lines;
  std::string problem;  // how it ended, if not well
};

// Runs this tool with --child=`role`. Killed if `timeout_s` pass without a line.
ChildAnswer ask_child(const std::string& role, const Options& options, const Environment& environment,
                      double timeout_s);

// In a child: one line to the tool.
void answer(const Json& line);

// In a child: for the plugin's init. Keeps what it warns of; with show_plugin_lines all goes to stderr too.
void log_plugin_line(abi::LogLevel level, unsigned long flags, const char* file, int line, const char* format,
                     ...);
void show_plugin_lines(bool verbose);
std::vector<std::string> list_plugin_warnings();

}  // namespace verbena::tools::info
