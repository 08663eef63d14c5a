// Child processes of the tool, which report results in lines of JSON.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"
#include "common/net_plugin.h"
#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

struct ChildAnswer {
  std::vector<ChildLine> lines;
  TestFault fault = TestFault::kNone;  // kSilent or kProcessEnded if the process failed
  std::string problem;                 // description of the failure: a predicate for "the process"
};

// Runs this tool with --child=`role`. Kills it if no line comes for a little more than the options' timeout.
ChildAnswer ask_child(const std::string& role, const InfoOptions& options, const Environment& environment);

// In a child: sends one line to the tool.
void answer(const ChildLine& line);

// In a child: keeps the plugin's warnings; show_plugin_lines(true) also prints all its lines to stderr.
void keep_plugin_line(const PluginLine& line);
void show_plugin_lines(bool verbose);
// `problem`, followed by the plugin's warnings.
std::string join_warnings(std::string problem);

// A line of the plugin without "verbena: ".
std::string strip_prefix(std::string_view line);

}  // namespace verbena::tools::info
