#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "common/child_group.h"
#include "common/error.h"
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

Json read_document(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(path);
    if (!file) throw ToolError("cannot read " + path);
    text << file.rdbuf();
  }
  Json document = Json::parse(text.str(), nullptr, false);
  if (document.is_discarded() || !document.is_object() || !document.contains("schema_version"))
    throw ToolError(path + " is not what verbena-info --json prints");
  if (document["schema_version"] != kSchemaVersion)
    throw ToolError(path + " has schema version " + document["schema_version"].dump() + ", this tool reads " +
                    std::to_string(kSchemaVersion));
  return document;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw ToolError("cannot write " + path);
  std::fprintf(stderr, "# wrote %s\n", path.c_str());
}

// One line each, as soon as it is known.
int run_check_lines(Json& document, const Options& options) {
  run_checks(document, options, [](const Json& check) { print(format_check(check)); });
  print(format_verdict(document));
  return judge(document) != kExitOk ? judge(document) : judge_checks(document);
}

int run_tool(const Options& options) {
  Json document = options.from.empty() ? collect_document(options) : read_document(options.from);
  if (!options.topology.empty()) write_file(options.topology, draw_topology(document));
  if (!options.topology_xml.empty()) write_file(options.topology_xml, format_topology_xml(document));
  if (options.check && !options.json) return run_check_lines(document, options);
  if (options.check) run_checks(document, options, [](const Json&) {});
  if (options.json) {
    print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    print(format_document(document, {options.parameters, options.verbose}));
  }
  const int status = judge(document);
  return status == kExitOk && options.check ? judge_checks(document) : status;
}

int run_child(const Options& options) {
  prepare_child_process();
  if (options.child == "view") return run_plugin_view(options);
  if (options.child.starts_with("rail ")) return run_rail_tests(options);
  throw ToolError("--child is the tool's own");
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
