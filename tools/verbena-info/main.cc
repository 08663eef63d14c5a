#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "common/child_group.h"
#include "common/error.h"
#include "common/output.h"
#include "nccl-perf/nccl_search.h"
#include "verbena-info/advice.h"
#include "verbena-info/check.h"
#include "verbena-info/collect.h"
#include "verbena-info/options.h"
#include "verbena-info/picture.h"
#include "verbena-info/plugin_view.h"
#include "verbena-info/rail_test.h"
#include "verbena-info/text.h"
#include "verbena-info/topology_xml.h"

namespace verbena::tools::info {
namespace {

// What every view of a document takes for granted.
constexpr std::array kMembers{"tool",        "host",     "plugin",     "nccl_view", "gpus",
                              "problem",     "devices",  "parameters", "unpack",    "nccl_libraries",
                              "environment", "messages", "advice"};
constexpr std::array kMembersOfPorts{"device", "port", "usable",    "speed_mbps",
                                     "lid",    "gids", "numa_node", "switches"};
constexpr std::array kMembersOfGpus{"index", "numa_node", "switches", "gpudirect", "dmabuf"};

template <size_t kCount>
void demand_members(const Json& object, const std::array<const char*, kCount>& members,
                    const std::string& path) {
  for (const char* member : members) {
    if (!object.contains(member))
      throw ToolError(path + " is damaged, it lacks \"" + member +
                      "\": let verbena-info --json write it again");
  }
}

Json read_document(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(path);
    if (!file) throw ToolError("cannot read " + path + ": " + std::strerror(errno));
    text << file.rdbuf();
  }
  Json document = Json::parse(text.str(), nullptr, false);
  if (document.is_discarded() || !document.is_object() || !document.contains("schema_version"))
    throw ToolError(path + " is no document of verbena-info: verbena-info --json FILE writes one");
  if (document["schema_version"] != kSchemaVersion)
    throw ToolError(path + " has schema version " + document["schema_version"].dump() + ", this tool reads " +
                    std::to_string(kSchemaVersion) + ": show it with the release that wrote it");
  demand_members(document, kMembers, path);
  for (const Json& port : document["devices"]) demand_members(port, kMembersOfPorts, path);
  for (const Json& gpu : document["gpus"]["devices"]) demand_members(gpu, kMembersOfGpus, path);
  return document;
}

void print(const std::string& text) {
  write_text("-", text);
}

void write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  write_text(path, text);
  if (path != "-") std::fprintf(stderr, "# wrote %s\n", path.c_str());
}

// One line each, as soon as it is known; `quietly` where the document has standard output.
void run_all_checks(Json& document, const Options& options, bool quietly) {
  if (quietly) return run_checks(document, options, [](const Json&) {});
  run_checks(document, options, [&](const Json& check) { print(format_check(document, check)); });
  print(format_verdict(document));
}

int run_tool(const Options& options) {
  Json document = options.from.empty() ? collect_document(options) : read_document(options.from);
  const bool quietly = options.json == "-";
  if (options.check) {
    run_all_checks(document, options, quietly);
  } else if (!quietly) {
    print(format_document(document, {options.parameters, options.verbose}));
  }
  write_file(options.json, document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  if (!options.topology.empty()) write_file(options.topology, draw_topology(document));
  if (!options.topology_xml.empty()) write_file(options.topology_xml, format_topology_xml(document));
  const int status = judge(document);
  return status == kExitOk && options.check ? judge_checks(document) : status;
}

int run_child(const Options& options) {
  prepare_child_process();
  if (options.child == "view") return run_plugin_view(options);
  return run_rail_tests(options);
}

int run(int argc, const char* const* argv) {
  const Options options = parse_options(argc, argv);
  if (options.exit_status >= 0) return options.exit_status;
  try {
    if (!options.probed_nccl.empty()) return nccl::run_nccl_probe(options.probed_nccl);
    return options.child.empty() ? run_tool(options) : run_child(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena-info: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace
}  // namespace verbena::tools::info

int main(int argc, char** argv) {
  return verbena::tools::info::run(argc, argv);
}
