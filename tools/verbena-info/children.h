// Processes of ours that say what they found in lines of JSON.
#pragma once
#include <string>
#include <vector>

#include "common/environment.h"
#include "common/plugin_log.h"
#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

struct ChildAnswer {
  std::vector<Json> lines;
  std::string problem;  // how it ended, if not well: a predicate for "the process"
};

// Runs this tool with --child=`role`. Killed if `timeout_s` pass without a line.
ChildAnswer ask_child(const std::string& role, const Options& options, const Environment& environment,
                      double timeout_s);

// In a child: one line to the tool.
void answer(const Json& line);

// In a child: keeps what the plugin warns of; with show_plugin_lines all goes to stderr too.
void keep_plugin_line(const PluginLine& line);
void show_plugin_lines(bool verbose);
// `problem`, and behind it what the plugin has warned of.
std::string join_warnings(std::string problem);

}  // namespace verbena::tools::info
